"""NCCL RAS: who is behind comes from the counts, whoever is listed; garbage, cuts and the missing comma do no harm."""

from __future__ import annotations

import json
import resource

import polars as pl
import pytest
from costs import cheapest
from hypothesis import given, settings
from hypothesis import strategies as st
from ras_answers import as_json, as_text, comm, missing, rank

from roundk.analyze.sources import ras
from roundk.analyze.sources.inputs import Hints, Input
from roundk.analyze.sources.ras import json as ras_json

T = 1_767_323_045_000_000_000
"""2026-01-02 03:04:05 UTC."""
HASH = "fa93daea854b060b"


@pytest.fixture
def load(tmp_path):
    def read(**files):
        items = []
        for name, content in files.items():
            path = tmp_path / name.replace("__", ".")
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
            items.append(Input(path.name, path))
        assert all(ras.recognises(item) for item in items if item.path.stat().st_size)
        return ras.load(items, Hints())

    return read


def facts(part, kind=None):
    rows = [dict(row, fields=json.loads(row["fields"])) for row in part.facts.iter_rows(named=True)]
    return [row for row in rows if kind in (None, row["kind"])]


def enqueued(part):
    return {(r["rank"], r["op"]): r["enqueued"] for r in part.progress.iter_rows(named=True)}


BEHIND = """#0-0 (fa93daea854b060b) MISMATCH
  Communicator ranks have different AllGather operation counts
  30 ranks have launched up to operation 640
  2 ranks have launched up to operation 641
  Rank 12 -- GPU 4 managed by process 323032 on node 10.137.190.124
  Rank 13 -- GPU 5 (NVML 6) managed by process 323033 on node 10.137.190.124

"""


def test_the_listed_minority_is_ahead_and_the_others_are_behind(load):
    part = load(ras__txt=as_text(word="MISMATCH", warnings=BEHIND))
    (fact,) = facts(part, "ras_mismatch")
    others = [r for r in range(32) if r not in (12, 13)]
    assert fact["fields"]["behind"] == others
    assert (fact["fields"]["low"], fact["fields"]["high"], fact["fields"]["num_behind"]) == (640, 641, 30)
    assert fact["fields"]["op"] == "all_gather"
    assert part.world_size == 32
    counts = enqueued(part)
    assert counts[12, "all_gather"] == counts[13, "all_gather"] == 641
    assert {counts[r, "all_gather"] for r in others} == {640}
    known = {r["rank"]: r for r in part.ranks.iter_rows(named=True)}
    assert (known[13]["host"], known[13]["pid"]) == ("10.137.190.124", 323033)
    assert known[0]["host"] is None


def test_versions_before_types_of_operations(load):
    old = BEHIND.replace("AllGather operation counts", "collective operation counts")
    part = load(ras__txt=as_text(word="MISMATCH", warnings=old, version="2.24.3"))
    (fact,) = facts(part, "ras_mismatch")
    assert fact["fields"]["op"] is None
    assert fact["fields"]["num_behind"] == 30
    assert set(part.progress["op"].unique()) == {"collective"}
    assert part.versions == ("NCCL RAS text, NCCL 2.24.3",)


SINGLE = """#0-0 (fa93daea854b060b) MISMATCH
  Communicator ranks have different AllReduce operation counts
  7 ranks have launched up to operation 10
  Rank 3 has launched up to operation 9 -- GPU 3 managed by process 1 on node 10.0.0.1

  Communicator ranks have different Broadcast operation counts
  7 ranks have launched up to operation 2
  Rank 5 has not launched any operations -- GPU 5 managed by process 7 on node 10.0.0.1

"""


def test_a_single_rank_behind_and_one_that_launched_nothing(load):
    part = load(ras__txt=as_text(size=8, word="MISMATCH", warnings=SINGLE))
    told = {fact["fields"]["op"]: fact for fact in facts(part, "ras_mismatch")}
    assert told["all_reduce"]["rank"] == 3
    assert told["all_reduce"]["host"] == "10.0.0.1"
    assert told["broadcast"]["fields"]["behind"] == [5]
    counts = enqueued(part)
    assert counts[3, "all_reduce"] == 9
    assert counts[5, "broadcast"] is None  # None was launched.
    assert counts[0, "broadcast"] == 2


SILENT = """INCOMPLETE
  Missing communicator data from 1 job process
  Process 3487984 on node 172.16.64.213 managing GPU 5

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  {rank}

"""
DEAD = """DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 3487984 on node 172.16.64.213 managing GPU 5

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 21 -- GPU 5 managed by process 3487984 on node 172.16.64.213

"""
LINE = "Rank 21 -- GPU 5 managed by process 3487984 on node 172.16.64.213"


@pytest.mark.parametrize(("text", "kind"), [(SILENT.format(rank=LINE), "ras_unresponsive"), (DEAD, "ras_dead")])
def test_a_process_that_is_silent_or_dead_is_told_once_and_with_its_rank(load, text, kind):
    part = load(ras__txt=as_text(word="INCOMPLETE", errors=text))
    (fact,) = [fact for fact in facts(part) if fact["kind"] != "ras_timeout"]
    assert (fact["kind"], fact["rank"], fact["host"]) == (kind, 21, "172.16.64.213")
    assert (fact["fields"]["pid"], fact["fields"]["gpu"]) == (3487984, 5)
    (row,) = part.ranks.filter(pl.col("rank") == 21).iter_rows(named=True)
    assert row["data"] == "missing"
    assert row["last_alive_ns"] is None


def test_the_missing_ranks_of_the_first_versions_have_numbers_only(load):
    part = load(
        ras__txt=as_text(word="INCOMPLETE", version="2.24.3", errors=SILENT.format(rank="The missing rank: 21"))
    )
    told = facts(part, "ras_unresponsive")
    assert {fact["rank"] for fact in told} == {None, 21}
    assert {fact["fields"]["pid"] for fact in told} == {3487984, None}


def test_processes_that_are_only_counted(load):
    text = "DEAD\n  12 job processes are considered dead (unreachable via the RAS network)\n\n"
    (fact,) = facts(load(ras__txt=as_text(errors=text)), "ras_dead")
    assert fact["fields"] == {"processes": 12}


def test_errors_timeouts_and_status_of_the_text(load):
    errors = """#0-0 (fa93daea854b060b) ERROR
  Initialization error on 1 rank
  Rank 2 reported Unhandled CUDA error -- GPU 2 managed by process 11 on node 10.0.0.1
  Asynchronous errors on 2 ranks
  2 ranks reported Remote process error
  Rank 4 -- GPU 4 managed by process 13 on node 10.0.0.1
  Rank 5 -- GPU 5 managed by process 14 on node 10.0.0.1

"""
    warnings = """TIMEOUT
  Encountered 2 communication timeouts while gathering communicator data

#0-0 (fa93daea854b060b) MISMATCH
  Communicator ranks have different status
  6 ranks have status RUNNING
  Rank 6 has status ABORT -- GPU 6 managed by process 15 on node 10.0.0.1
  Rank 7 has status NOCOMM -- GPU 7 managed by process 16 on node 10.0.0.1
"""
    part = load(ras__txt=as_text(size=8, errors=errors, warnings=warnings))
    told = {(fact["kind"], fact["rank"]): fact["fields"] for fact in facts(part)}
    assert told["ras_error", 2]["error"] == "initialization: Unhandled CUDA error"
    assert told["ras_error", 4]["error"] == told["ras_error", 5]["error"] == "asynchronous: Remote process error"
    assert told["ras_timeout", None] == {"timeouts": 2}
    assert told["ras_status", 6]["status"] == "ABORT"
    assert told["ras_not_member", 7]["pid"] == 16


def test_an_answer_that_ends_early_is_told(load):
    whole = as_text(word="MISMATCH", warnings=BEHIND)
    part = load(ras__txt=whole[: whole.index("Errors\n=")])
    assert any("cut" in note for note in part.notes)
    assert part.world_size is None


def halves(counts):
    """A communicator of all eight ranks and two of four, as tensor parallelism makes them."""
    world = comm([rank(r, counts={"AllReduce": counts[r]}) for r in range(8)])
    low = comm(
        [rank(r, (f"10.0.0.{1 + r // 4}", 1000 + r, r % 4), counts={"AllGather": 5}) for r in range(4)], number=0xA
    )
    high = comm([rank(r, ("10.0.0.2", 1004 + r, r), counts={"AllGather": 5 - (r == 2)}) for r in range(4)], number=0xB)
    return [world, low, high]


def test_ranks_of_a_communicator_become_global_by_process_and_gpu(load):
    part = load(ras__json=as_json(halves([9] * 8)))
    assert part.world_size == 8
    groups = {row["name"]: row["ranks"] for row in part.groups.iter_rows(named=True)}
    assert groups == {HASH: list(range(8)), "a": [0, 1, 2, 3], "b": [4, 5, 6, 7]}
    assert enqueued(part)[6, "all_gather"] == 4
    (fact,) = facts(part, "ras_mismatch")
    assert (fact["rank"], fact["host"], fact["fields"]["behind"]) == (6, "10.0.0.2", [6])
    assert set(part.progress["time_ns"]) == {T}
    row = part.ranks.row(6, named=True)
    assert (row["host"], row["pid"], row["data"], row["last_alive_ns"]) == ("10.0.0.2", 1006, "present", T)
    assert not part.progress["is_start_told"].any()


def test_without_a_communicator_of_all_no_rank_is_guessed(load):
    part = load(ras__json=as_json(halves([9] * 8)[1:]))
    assert part.groups.is_empty()
    assert part.progress.is_empty()
    assert part.ranks.is_empty()
    (fact,) = facts(part, "ras_mismatch")
    assert (fact["rank"], fact["host"], fact["fields"]["behind"]) == (None, "10.0.0.2", [2])
    assert not fact["fields"]["are_global"]
    assert any("cannot be told as global ranks" in note for note in part.notes)


def test_two_numberings_of_all_processes_are_no_numbering(load):
    world = comm([rank(r) for r in range(4)])
    turned = comm([rank(r, ("10.0.0.1", 1003 - r, 3 - r)) for r in range(4)], number=0xC)
    part = load(ras__json=as_json([world, turned]))
    assert part.world_size is None
    assert any("differently" in note for note in part.notes)


@pytest.mark.parametrize("version", ["2.28.7", "2.28.9", "2.29.2"])
def test_the_missing_comma_is_put_back(load, version):
    text = as_json(
        [comm([rank(0), rank(1)], [missing(2, dead=True), missing(3), missing(4, answers=True)])], version=version
    )
    if version.startswith("2.28"):
        with pytest.raises(ValueError, match="delimiter"):
            json.loads(text)
    part = load(ras__json=text)
    kinds = {fact["rank"]: fact["kind"] for fact in facts(part)}
    assert kinds == {2: "ras_dead", 3: "ras_unresponsive", 4: "ras_not_member"}
    assert any("commas" in note for note in part.notes) == version.startswith("2.28")
    assert dict(part.ranks.select("rank", "data").iter_rows()) == {
        0: "present", 1: "present", 2: "missing", 3: "missing", 4: "present"
    }  # fmt: skip


def test_errors_and_flags_of_json(load):
    ranks = [rank(0), rank(1, error=6), rank(2, init=7), rank(3, flags=(False, True, True)), rank(4, init=1)]
    part = load(ras__json=as_json([comm(ranks)], timeouts=3))
    told = {(fact["kind"], fact["rank"]): fact["fields"] for fact in facts(part)}
    assert told["ras_error", 1]["error"] == "asynchronous: Remote process error"
    assert told["ras_error", 4]["error"] == "initialization: Unhandled CUDA error"
    assert told["ras_status", 3]["status"] == "ABORT"
    assert ("ras_error", 2) not in told  # 7 is "in progress".
    assert told["ras_timeout", None]["timeouts"] == 3


def test_garbage_is_left_out_and_told(load):
    ranks = [rank(0), rank(1), rank(1_057_455_228), rank(-3)]
    part = load(ras__json=as_json([comm(ranks, size=2), comm([rank(0)], size=1 << 40, number=1)]))
    assert sorted(part.ranks["rank"]) == [0, 1]
    assert any("impossible numbers" in note for note in part.notes)


def test_level_counts_are_not_called_healthy(load):
    part = load(ras__json=as_json([comm([rank(r, counts={"AllReduce": 4}) for r in range(4)])]))
    assert part.facts.is_empty()
    assert any("do not mean" in note for note in part.notes)


def test_a_directory_of_answers_as_ray_writes_it_tells_progress_from_none(load):
    def poll(second, world, half):
        counts = [{"AllReduce": world}] * 4
        comms = [
            comm([rank(r, counts=counts[r]) for r in range(4)]),
            comm([rank(r, counts={"AllGather": half - r}) for r in range(2)], number=0xD),
        ]
        return as_json(comms, at=f"2026-01-02 03:04:{second:02d}")

    files = {
        f"ncclras_2026-01-02-03-04-{s:02d}__json": poll(s, w, 7) for s, w in ((5, 10), (15, 10), (25, 12), (35, 12))
    }
    part = load(**files, ncclras_report__txt=as_text(size=8))
    moved = part.progress.filter(pl.col("op") == "all_reduce", pl.col("rank") == 1)
    seconds = [(t - T) // 10**9 for t in moved["time_ns"]]
    assert list(zip(seconds, moved["enqueued"], strict=True)) == [(0, 10), (10, 10), (20, 12), (30, 12)]
    # Where nothing changes over all answers, the first and the last say so.
    frozen = part.progress.filter(pl.col("op") == "all_gather", pl.col("rank") == 1)
    assert [(t - T) // 10**9 for t in frozen["time_ns"]] == [0, 30]
    assert frozen["enqueued"].to_list() == [6, 6]


def test_the_time_in_a_name_that_says_utc_goes_before_the_local_one(load):
    part = load(**{"ncclras_2026-06-01T00-00-00__5Z__json": as_json([comm([rank(0, counts={"AllReduce": 1})])])})
    assert part.progress["time_ns"].to_list() == [1_780_272_000_500_000_000]


EVENTS_TEXT = """RAS Monitor Mode - watching for peer changes (Ctrl+C to exit)...
================================================================
[2026-01-02 03:04:05] PEER_DEAD: Process 1524345 on node 172.16.64.245 managing GPU 1
[2026-01-02 03:04:06] PEER_RECOVERED: Process 7 on node 172.16.64.246 managing GPUs 0,1
"""
EVENTS_JSON = """RAS Monitor Mode - watching for peer changes (Ctrl+C to exit)...
{
  "timestamp": "2026-01-02 03:04:05",
  "group": "LIFECYCLE",
  "event": "PEER_DEAD",
  "peer": {
    "host": "172.16.64.245",
    "pid": 1524345,
    "cuda_devs": [1],
    "nvml_devs": [1]
  },
  "details": ""
}
{
  "timestamp": "2026-01-02 03:04:06",
  "group": "TRACE",
  "event": "PEER_RETRY",
  "peer": {
    "addr": "10.0.0.9<4242>"
  },
  "details": "attempt 2"
}
"""


@pytest.mark.parametrize(
    ("text", "second"), [(EVENTS_TEXT, ("PEER_RECOVERED", "172.16.64.246")), (EVENTS_JSON, ("PEER_RETRY", "10.0.0.9"))]
)
def test_monitor_events(load, text, second):
    first, other = facts(load(events__log=text), "ras_event")
    assert first["fields"] == {"event": "PEER_DEAD", "details": first["fields"]["details"], "pid": 1524345, "gpu": 1}
    assert (first["host"], first["time_ns"]) == ("172.16.64.245", T)
    assert (other["fields"]["event"], other["host"]) == second


def test_several_answers_in_one_file(load):
    one = as_json([comm([rank(0, counts={"Reduce": 1}), rank(1)])])
    part = load(both__json=one + one.replace("03:04:05", "03:05:05"))
    assert len({fact["source"] for fact in facts(part, "ras_mismatch")}) == 2
    text = as_text(size=8, word="MISMATCH", warnings=SINGLE)
    assert len({fact["source"] for fact in facts(load(both__txt=text + text), "ras_mismatch")}) == 2


def test_an_answer_too_large_to_parse_at_once_is_read_piece_by_piece(load, monkeypatch):
    text = as_json(halves([9, 9, 8, 9, 9, 9, 9, 9]), version="2.28.9", timeouts=4)
    whole = load(ras__json=text)
    monkeypatch.setattr(ras_json, "MOST_AT_ONCE", 100)
    pieces = load(ras__json=text)
    assert pieces.facts.equals(whole.facts)
    assert pieces.progress.equals(whole.progress)
    assert pieces.groups.equals(whole.groups)
    assert pieces.notes == whole.notes


def test_what_is_whole_in_a_cut_answer_is_used(load):
    text = as_json([comm([rank(r, counts={"AllReduce": 5}) for r in range(16)])])
    part = load(ras__json=text[: text.index('"rank": 11')])
    assert sorted(part.progress["rank"]) == list(range(11))
    assert part.world_size == 16
    assert any("cut" in note for note in part.notes)


def test_a_file_without_anything_whole_is_unreadable(load):
    part = load(ras__json='{\n "nccl_version": "2.29", "communicators_count": 3, "commu')
    (one,) = part.unreadable
    assert one.path == "ras.json"
    assert "fetch it again" in one.why


counts_of_ranks = st.lists(
    st.dictionaries(st.sampled_from(["AllReduce", "AllGather"]), st.integers(0, 2**60)), min_size=2, max_size=9
)


@settings(max_examples=60, deadline=None)
@given(counts=counts_of_ranks, gone=st.integers(0, 3), version=st.sampled_from(["2.28.8", "2.30.1"]))
def test_generated_answers_survive(counts, gone, version):
    ranks = [rank(number, counts=own) for number, own in enumerate(counts)]
    lost = [missing(len(ranks) + number) for number in range(gone)]
    snapshots, _, _ = ras.parse(as_json([comm(ranks, lost)], version=version).encode(), "a")
    (told,) = snapshots[0].comms
    assert told.size == len(counts) + gone
    for number, own in enumerate(counts):
        assert {op: n for op, n in told.members[number].counts.items() if n} == {op: n for op, n in own.items() if n}
    for lag in told.lags():
        have = [own.get(lag.op, 0) for own in counts]
        assert list(lag.behind) == [number for number, n in enumerate(have) if n < max(have)]


def damaged(base):
    """The bytes cut at a random place, with a few others put in."""

    def spoil(cut, puts):
        data = bytearray(base[:cut])
        for place, value in puts:
            if data:
                data[place % len(data)] = value
        return bytes(data)

    puts = st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), max_size=6)
    return st.builds(spoil, st.integers(0, len(base)), puts)


JSON = as_json(halves([9, 9, 8, 9, 9, 9, 9, 9]), version="2.28.9").encode()
TEXT = as_text(size=8, word="MISMATCH", errors=DEAD, warnings=BEHIND + SINGLE).encode()


@settings(max_examples=150, deadline=None)
@given(data=st.one_of(damaged(JSON), damaged(TEXT), damaged(EVENTS_JSON.encode()), st.binary(max_size=300)))
def test_damage_never_raises(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("ras") / "x"
    path.write_bytes(data)
    item = Input("x", path)
    ras.recognises(item)
    part = ras.load([item], Hints())
    assert part.read or part.unreadable or part.ignored
    assert part.ranks.filter(pl.col("rank") >= 1 << 20).is_empty()


def many(number):
    """Communicators of a million ranks each, all of them missing: nothing may be written out for each."""
    one = '{{"hash": "0x{:x}", "size": 1048576, "ranks": []}}'
    return '{"communicators": [' + ",".join(one.format(n) for n in range(number)) + "]}"


TALLIES = "  Communicator ranks have different AllReduce operation counts\n  9 ranks have status X\n"


@pytest.mark.parametrize(
    "grown",
    [
        lambda n: '{"communicators": [' * n,
        lambda n: "{\n" * 10 * n,
        lambda n: '{"a":\n' * 5 * n,
        lambda n: '{"nccl_version": "2", "communicators": ' + "[" * 5 * n,
        lambda n: "Job summary\n===========\n" * n,
        lambda n: "\n" * 50 * n + "{",
        lambda n: "Job summary\n=====\n#0-0 (a) MISMATCH\n" + TALLIES * n,
        lambda n: many(n // 10),
    ],
)
def test_hostile_text_costs_no_more_than_its_length(tmp_path, grown):
    def cost(number):
        path = tmp_path / "x"
        path.write_text(grown(number))
        return cheapest(lambda: ras.load([Input("x", path)], Hints()))

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    small = cost(1_000)
    assert cost(8_000) < 24 * max(small, 0.02)  # 8 times the text; a quadratic reader would take 64 times as long.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < peak + (1 << 20)  # KiB
