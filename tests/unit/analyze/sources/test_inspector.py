"""NCCL Inspector: finished operations of all processes as calls, per type, with global ranks where they are certain."""

from __future__ import annotations

import gzip
import json

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roundk.analyze.sources import inspector
from roundk.analyze.sources.inputs import Hints, Input

T = 1_752_867_229_235_059
"""Microseconds of Unix time."""
WORLD = "0xe62dedaa97644a"


def record(
    op="AllReduce", sn=0, *, rank=0, size=2, comm=WORLD, pid=None, host="node0", verbose=True, bytes_=1024, **more
):
    """One line, with the keys in NCCL's order."""
    kind = "p2p" if op in ("Send", "Recv") else "coll"
    told = {
        kind: op,
        f"{kind}_sn": sn,
        **({"p2p_peer": more.pop("peer")} if kind == "p2p" else {}),
        f"{kind}_msg_size_bytes": bytes_,
        f"{kind}_exec_time_us": more.pop("spent", 40),
        f"{kind}_timing_source": "kernel_gpu",
        f"{kind}_algobw_gbs": 1.0,
        f"{kind}_busbw_gbs": more.pop("busbw", 1.5),
    }
    start = more.pop("start", T + 1000 * sn)
    if verbose:
        channels = [
            {
                "channel_id": n,
                "kernel_start_ts": start + 10 + n,
                "kernel_stop_ts": start + 50 + n,
                "kernel_record_ts": 0,
            }
            for n in range(2)
        ]
        told["event_trace_sn"] = {f"{kind}_start_sn": 1}
        told["event_trace_ts"] = {f"{kind}_start_ts": start, f"{kind}_stop_ts": start + 5, "kernel_events": channels}
    header = {"id": comm, "rank": rank, "n_ranks": size, "nnodes": 1, **more}
    about = {
        "inspector_output_format_version": "v4.0",
        "git_rev": "x",
        "rec_mechanism": "nccl_profiler_interface",
        "dump_timestamp_us": start + 100,
        "hostname": host,
        "pid": 100 + rank if pid is None else pid,
    }
    return {"header": header, "metadata": about, f"{kind}_perf": told}


@pytest.fixture
def load(tmp_path):
    def read(tail=b"", **files):
        items = []
        for name, records in files.items():
            path = tmp_path / f"{name}.log"
            path.write_bytes(b"".join(json.dumps(one).encode() + b"\n" for one in records) + tail)
            items.append(Input(path.name, path))
        assert all(inspector.recognises(item) for item in items)
        return inspector.load(items, Hints())

    return read


def by_name(part):
    return {row["name"]: row["ranks"] for row in part.groups.iter_rows(named=True)}


def test_a_verbose_line_becomes_a_call_with_its_times(load):
    part = load(a=[record(sn=7)], b=[record(sn=7, rank=1, start=T + 7003)])
    first, second = part.calls.iter_rows(named=True)
    at = T + 7000
    assert (first["rank"], first["seq"], first["op"], first["source_op"]) == (0, 7, "all_reduce", "AllReduce")
    assert (first["enter_ns"], first["issued_ns"]) == (at * 1000, (at + 5) * 1000)
    assert (first["start_ns"], first["end_ns"]) == ((at + 10) * 1000, (at + 51) * 1000)  # First and last channel.
    assert (first["bytes_in"], first["bytes_out"]) == (1024, 1024)
    assert (first["outcome"], first["is_timed"]) == ("completed", True)
    assert second["enter_ns"] - first["enter_ns"] == 3000
    assert by_name(part) == {"e62dedaa97644a": [0, 1]}
    assert part.world_size == 2
    assert part.versions == ("NCCL Inspector v4.0",)


def test_a_line_that_is_not_verbose_has_no_times(load):
    (call,) = load(a=[record(verbose=False, size=1)]).calls.iter_rows(named=True)
    assert {call[name] for name in ("enter_ns", "issued_ns", "start_ns", "end_ns")} == {None}
    assert not call["is_timed"]


def test_types_that_count_apart_are_groups_apart(load):
    ops = ["AllReduce", "AllGather", "ReduceScatter"]
    part = load(a=[record(op, sn, size=1) for op in ops for sn in (0, 1)])
    assert set(by_name(part)) == {f"e62dedaa97644a:{op}" for op in ops}
    assert part.calls.group_by("group").len()["len"].to_list() == [2, 2, 2]
    sizes = {row["op"]: (row["bytes_in"], row["bytes_out"]) for row in part.calls.iter_rows(named=True)}
    # The README's ReduceScatter of 2 GiB at 418 GB/s in 41 ms on 8 ranks: the size is what one rank receives.
    assert sizes == {"all_reduce": (1024, 1024), "all_gather": (1024, None), "reduce_scatter": (None, 1024)}


def test_ranks_of_small_communicators_are_made_global_by_process(load):
    def lines(rank):
        half = {"rank": rank % 2, "comm": f"0xaa{rank // 2}", "pid": 100 + rank, "host": f"node{rank // 2}"}
        whole = {"rank": rank, "size": 4, "pid": 100 + rank, "host": f"node{rank // 2}"}
        return [record(**whole), record("AllGather", 3, **half)]

    part = load(**{f"r{rank}": lines(rank) for rank in range(4)})
    assert by_name(part) == {"e62dedaa97644a": [0, 1, 2, 3], "aa0": [0, 1], "aa1": [2, 3]}
    assert part.calls.filter(pl.col("op") == "all_gather")["rank"].to_list() == [0, 1, 2, 3]
    assert part.ranks.select("rank", "host", "pid").row(3) == (3, "node1", 103)


def test_a_silent_rank_keeps_its_communicator_out_but_not_the_job(load):
    lines = {f"r{rank}": [record(rank=rank, size=4)] for rank in range(3)}
    lines["r0"].append(record("AllGather", rank=0, size=2, comm="0xaa", pid=100))
    part = load(**lines)
    assert by_name(part) == {"e62dedaa97644a": [0, 1, 2, 3]}
    assert part.calls["rank"].to_list() == [0, 1, 2]
    assert any("members without a line" in note for note in part.notes)


def test_without_a_communicator_of_all_nothing_is_guessed(load):
    part = load(a=[record(comm="0x1", pid=1)], b=[record(comm="0x2", pid=2)], c=[record(comm="0x3", pid=3)])
    assert part.calls.is_empty()
    assert part.world_size is None
    assert any("left out" in note for note in part.notes)
    assert part.facts.height == 3  # The bandwidths stay.


def test_p2p_of_2_30(load):
    part = load(
        a=[record("Send", 4, peer=1, comm_name="pipeline"), record("AllReduce", 0)],
        b=[record("Recv", 4, rank=1, peer=0)],
    )
    sent, received = part.calls.filter(pl.col("op").is_in(["send", "recv"])).sort("rank").iter_rows(named=True)
    assert (sent["op"], sent["peer"], sent["seq"]) == ("send", 1, 4)
    assert (received["op"], received["peer"]) == ("recv", 0)
    assert sent["group"] == received["group"]
    assert set(part.groups["desc"]) == {"pipeline"}


def test_lines_that_the_plugin_lost_are_told(load):
    stats = {key: value for key, value in record().items() if key != "coll_perf"}
    lost = {"coll_records": 3, "coll_dropped_total": 5, "p2p_records": 0, "p2p_dropped_total": 2}
    part = load(a=[record(), {**stats, "dump_stats": lost}], b=[record(rank=1)])
    (fact,) = part.facts.filter(pl.col("kind") == "inspector_dropped").iter_rows(named=True)
    assert fact["rank"] == 0
    assert json.loads(fact["fields"]) == {"comm": "e62dedaa97644a", "comm_rank": 0, "collectives": 5, "p2p": 2}
    assert part.ranks["calls_lost"].to_list() == [7, 0]


def test_bandwidths_by_communicator_type_and_size(load):
    rates = [1.0, 2.0, 4.0]
    part = load(a=[record(sn=n, busbw=rate, spent=10 * (n + 1), size=1) for n, rate in enumerate(rates)])
    (fact,) = part.facts.iter_rows(named=True)
    fields = json.loads(fact["fields"])
    assert fields["busbw_gb_per_s"] == [1.0, 2.0, 4.0]
    assert fields["exec_us"] == [10.0, 20.0, 30.0]
    assert (fields["calls"], fields["bytes"], fields["op"]) == (3, 1024, "all_reduce")


def test_the_cut_last_line_is_told_and_the_rest_is_used(load):
    part = load(tail=b'{"header":{"id":"0xe6', a=[record(), record(sn=1)], b=[record(rank=1)])
    assert part.calls.height == 3
    assert part.truncated == (0, 1)
    assert part.ranks["data"].to_list() == ["truncated", "truncated"]
    assert not part.unreadable


def test_a_compressed_file_cut_in_the_middle(tmp_path):
    path = tmp_path / "a.log.gz"
    lines = b"".join(json.dumps(record(sn=n, size=1, spent=n * 7919 % 1000)).encode() + b"\n" for n in range(4000))
    data = gzip.compress(lines)
    path.write_bytes(data[: len(data) // 2])
    item = Input("a.log.gz", path, gzip.open)
    part = inspector.load([item], Hints())
    assert 100 < part.calls.height < 4000
    (one,) = part.unreadable
    assert "cannot be read beyond line" in one.why
    assert part.truncated == (0,)


def test_garbage_numbers_are_no_calls(load):
    bad = [record(rank=7, size=2), record(sn=-4), record(rank=1_057_455_228, size=1_057_455_229), record(sn=True)]
    part = load(a=[record(size=2), *bad], b=[record(rank=1)])
    assert part.calls.height == 2
    (one,) = part.unreadable
    assert one.why.startswith("4 of its lines")


numbers = st.one_of(
    st.none(), st.booleans(), st.floats(), st.integers(-(2**70), 2**70), st.text(max_size=3), st.just([])
)


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_any_values_under_the_keys_do_no_harm(data, tmp_path_factory):
    one = record(size=1)
    keys = st.sampled_from([(part, key) for part, told in one.items() for key in told])
    for part, key in data.draw(st.lists(keys, max_size=5)):
        one[part][key] = data.draw(numbers)
    path = tmp_path_factory.mktemp("inspector") / "a"
    path.write_text(json.dumps(one) + "\n")
    part = inspector.load([Input("a", path)], Hints())
    assert part.read or part.unreadable


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["AllReduce", "Broadcast"]), st.integers(0, 2**40), st.integers(0, 2**40)), min_size=1
    )
)
def test_generated_lines_survive(calls):
    import pathlib
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "a"
        path.write_text("".join(json.dumps(record(op, sn, size=1, bytes_=size)) + "\n" for op, sn, size in calls))
        part = inspector.load([Input("a", path)], Hints())
    names = {"AllReduce": "all_reduce", "Broadcast": "broadcast"}
    expected = sorted((names[op], sn, size) for op, sn, size in calls)
    assert sorted(part.calls.select("op", "seq", "bytes_in").iter_rows()) == expected


@settings(max_examples=80, deadline=None)
@given(cut=st.integers(0, 2000), puts=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=5))
def test_damage_never_raises(cut, puts, tmp_path_factory):
    base = b"".join(json.dumps(record(sn=n, rank=n % 2)).encode() + b"\n" for n in range(3))
    data = bytearray(base[:cut])
    for place, value in puts:
        if data:
            data[place % len(data)] = value
    path = tmp_path_factory.mktemp("inspector") / "a"
    path.write_bytes(data)
    item = Input("a", path)
    inspector.recognises(item)
    part = inspector.load([item], Hints())
    assert part.read or part.unreadable


def test_a_line_without_end_takes_no_memory(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b'{"header": {"id": "' + b"x" * (8 << 20))
    part = inspector.load([Input("a", path)], Hints())
    assert part.calls.is_empty()
    assert part.unreadable
