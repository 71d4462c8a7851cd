"""Recorded cases with a known end: what their dumps and tables say, read off the files by hand."""

from __future__ import annotations

import pathlib

import pytest

from roundk.analyze.sources import flight_recorder, table
from roundk.analyze.sources.inputs import Hints, Input

CASES = pathlib.Path(__file__).parents[2].parent / "shared" / "cases"

pytestmark = pytest.mark.skipif(not CASES.is_dir(), reason="the recorded cases are not beside this checkout")


def load(folder, pattern, source=flight_recorder):
    items = [Input(path.name, path) for path in sorted((CASES / folder).glob(pattern))]
    assert all(source.recognises(item) for item in items)
    return source.load(items, Hints())


def named(part):
    return {(row["name"], row["desc"]): (row["group"], row["ranks"]) for row in part.groups.iter_rows(named=True)}


def counters(part, key):
    found = part.progress.filter(group=key).select("rank", "enqueued", "completed").rows()
    return {rank: (enqueued, completed) for rank, enqueued, completed in found}


def test_gpu_errors_on_two_ranks():
    part = load("real-nccl/gpu_error_2nd", "_dump_*")
    calls = dict(part.ranks.select("rank", "calls").rows())
    assert calls == {**dict.fromkeys(range(8), 11), **dict.fromkeys(range(8, 16), 25), 9: 20, 14: 20}
    assert part.calls.height == 278
    assert set(part.ranks["data"]) == {"present"}
    assert part.ranks["first_call"][0] == 188338
    assert set(part.calls["outcome"]) == {"open"}
    assert not part.calls["is_timed"].any()
    groups = named(part)
    key, ranks = groups["72", "EXPERT_MODEL_PARALLEL_GROUP"]
    assert ranks == list(range(8, 16))
    lagging = {rank: (44790, 44787) if rank in (9, 14) else (44796, 44790) for rank in ranks}
    assert counters(part, key) == lagging
    key, ranks = groups["108", "INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP"]
    assert ranks == list(range(16))
    assert counters(part, key) == dict.fromkeys(ranks, (116, 116))
    assert part.progress.height == 16 * 13
    assert not part.progress["is_start_told"].any()
    world = groups["0", "default_pg"][0]
    assert set(part.progress.filter(group=world)["counts"]) == {"calls"}
    assert set(part.progress.filter(group=key)["counts"]) == {"collectives"}
    pipeline, ranks = groups["39", "PIPELINE_MODEL_PARALLEL_GROUP"]
    assert ranks == [0, 8]
    p2p = part.calls.filter(rank=0).head(4).select("group", "op", "peer", "seq", "shapes").rows()
    shapes = "[[2048, 1, 5120]] -> [[2048, 1, 5120]]"
    assert p2p == [
        (pipeline, "send", 8, 1, shapes),
        (world, "recv", 8, 1, shapes),
        (pipeline, "send", 8, 2, shapes),
        (world, "recv", 8, 2, shapes),
    ]
    assert part.world_size == 16
    assert part.versions == ("Flight Recorder 2.9, pickle, communication library 2.27.3",)
    assert not part.unreadable
    assert not part.notes


def test_ranks_that_hold_the_interpreter_lock_have_no_calls_and_still_speak():
    part = load("real-nccl/lock_gil_1st", "_dump_*")
    data = dict(part.ranks.select("rank", "data").rows())
    assert data == {**dict.fromkeys(range(16), "present"), 9: "empty", 14: "empty"}
    key, ranks = named(part)["72", "EXPERT_MODEL_PARALLEL_GROUP"]
    behind = {rank: (45264, 45264) if rank in (9, 14) else (45267, 45264) for rank in ranks}
    assert counters(part, key) == behind
    assert part.progress.height == 16 * 13
    assert set(part.calls.filter(rank=8, group=key)["op"]) == {"all_to_all"}
    assert part.calls.filter(rank=8, group=key)["seq"].to_list() == [45265, 45266, 45267]


def test_an_extra_barrier_of_rank_0():
    part = load("reports/04-rank0-extra-barrier/fr", "*")
    assert part.ranks["calls"].to_list() == [8, 7, 7, 7]
    last = part.calls.filter(rank=0).tail(1).row(0, named=True)
    assert (last["op"], last["source_op"], last["seq"], last["outcome"]) == ("barrier", "all_reduce_barrier", 8, "open")
    assert (last["start_ns"], last["end_ns"], last["is_timed"]) == (1750000000054400000, None, True)
    sites = {row["rank"]: row["site"] for row in part.calls.filter(seq=7).iter_rows(named=True)}
    stacks = dict(part.sites.select("site", "stack").rows())
    assert "save_checkpoint" in " ".join(stacks[sites[0]])
    assert {rank: "finalize_alias" in " ".join(stacks[sites[rank]]) for rank in (1, 2, 3)} == dict.fromkeys(
        (1, 2, 3), True
    )
    assert {(row["file"], row["line"]) for row in part.sites.iter_rows(named=True)} >= {
        ("/opt/lib/lightning/strategies/ddp.py", 321)
    }
    assert counters(part, 0) == {0: (8, 7), 1: (7, 7), 2: (7, 7), 3: (7, 7)}


def test_a_rank_that_raised_left_no_dump():
    part = load("reports/05-exception-rank-has-no-dump/fr", "*")
    assert part.ranks["rank"].to_list() == [0, 1, 3]
    assert part.world_size == 4
    assert named(part)["0", "default_pg"] == (0, [0, 1, 2, 3])
    assert counters(part, 0) == dict.fromkeys((0, 1, 3), (12, 11))
    waiting = part.calls.filter(outcome="open").select("rank", "seq", "op", "numel").rows()
    assert waiting == [(rank, 12, "all_reduce", 2048) for rank in (0, 1, 3)]


def test_a_table_of_calls_with_pauses():
    part = load("reports/12-gc-pause-straggler", "events.csv", table)
    assert part.calls.height == 480
    assert part.ranks.select("rank", "calls").rows() == [(rank, 60) for rank in range(8)]
    first = part.calls.row(0, named=True)
    assert (first["rank"], first["seq"], first["op"], first["bytes_in"]) == (0, 0, "broadcast", 64)
    assert (first["enter_ns"], first["start_ns"], first["end_ns"]) == (299_488_000, 299_508_000, 322_749_000)
    assert part.groups.select("name", "ranks").rows() == [("default_pg", list(range(8)))]
    assert set(part.calls["outcome"]) == {"completed"}
    assert not part.notes
