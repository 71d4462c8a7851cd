"""nccl-tests: every layout's columns, both halves of a line, and the collective where it can be known."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roundk.analyze.sources import nccl_tests
from roundk.analyze.sources.inputs import Hints, Input

_HALF = "     time   algbw   busbw {}"
HEAD_213 = (
    "#" + " " * 62 + "out-of-place" + " " * 23 + "in-place          \n"
    "#       size         count      type   redop    root" + _HALF.format("#wrong") * 2 + "\n"
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)\n"
)
HEAD_OLD = (
    "#\n#" + " " * 53 + "out-of-place                       in-place          \n"
    "#       size         count    type   redop" + _HALF.format(" error") * 2 + "\n"
    "#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)\n"
)
HEAD_ITERATIONS = (
    "#       size         count      type   redop    root     time   algbw   busbw  #wrong    i_min    i_max    i_p99"
    "    i_cv%     time   algbw   busbw  #wrong    i_min    i_max    i_p99    i_cv% \n"
)
"""The lines of `-R`-like runs of 2.17 with a report per iteration."""


def devices(number, groups=1):
    return "# Using devices\n" + "".join(
        f"#  Rank {rank:2d} Group {rank % groups:2d} Pid {1000 + rank:6d} on     node-a device {rank:2d} [07:00] H100\n"
        for rank in range(number)
    )


def line(size, *halves, kind="float", redop="sum", root=-1):
    """A line as `writeBenchmarkLinePreamble` and `writeBenchmarkLineBody` print it."""
    text = f"{size:12d}  {size // 4:12d}  {kind:>8}  {redop:>6}  {root:6d}"
    for half in halves:
        text += " " * 32 if half is None else "  {:7.2f}  {:6.2f}  {:6.2f}  {!s:>5}".format(*half)
    return text + "\n"


@pytest.fixture
def load(tmp_path):
    def read(text, *, is_known=True):
        path = tmp_path / "out.log"
        path.write_text(text)
        item = Input("out.log", path)
        assert nccl_tests.recognises(item) == is_known
        return nccl_tests.load([item], Hints())

    return read


def rows(part):
    return list(part.benchmarks.iter_rows(named=True))


def test_both_halves_of_a_line(load):
    halves = ((61.46, 17.06, 29.86, 0), (61.07, 17.17, 30.05, "N/A"))
    part = load(devices(8) + HEAD_213 + line(1048576, *halves))
    first, second = rows(part)
    assert first == {
        "op": "all_reduce",
        "bytes": 1048576,
        "dtype": "float32",
        "reduce_op": "SUM",
        "is_in_place": False,
        "time_us": 61.46,
        "algbw": 17.06,
        "busbw": 29.86,
        "wrong": 0,
        "ranks": 8,
        "source": "out.log:13",
    }
    assert (second["is_in_place"], second["time_us"], second["wrong"]) == (True, 61.07, None)


def test_the_layout_before_2_13(load):
    old = "     1048576        262144   float     sum    61.46   17.06   29.86  1e-07    61.07   17.17   30.05  0e+00\n"
    first, second = rows(load(HEAD_OLD + old))
    assert (first["busbw"], second["busbw"]) == (29.86, 30.05)
    assert first["wrong"] is None  # `error` is a difference, not a number of elements.


def test_a_report_per_iteration_and_a_time_stamp(load):
    told = (
        "  1048576        262144     float     sum      -1    61.46   17.06   29.86       0    60.10    63.00    62.90"
        "     1.20    61.07   17.17   30.05       3    60.00    63.10    62.80     1.30  2026-01-02 03:04:05\n"
    )
    first, second = rows(load(HEAD_ITERATIONS.rstrip("\n") + "  timestamp\n" + told))
    assert (first["time_us"], second["time_us"], second["wrong"]) == (61.46, 61.07, 3)


def test_a_blank_half_and_one_that_had_not_come_when_the_job_hung(load):
    half = (61.46, 17.06, 29.86, 0)
    blank, cut = rows(load(HEAD_213 + line(64, None, half) + line(128, half)))
    assert (blank["bytes"], blank["is_in_place"]) == (64, True)
    assert (cut["bytes"], cut["is_in_place"]) == (128, False)


@pytest.mark.parametrize("prefix", ["", "[1,0]<stdout>:", "[1,0]<stdout>: ", "0: ", " 0: "])
def test_prefixes_and_log_lines_in_between(load, prefix):
    text = devices(4) + HEAD_213 + line(1048576, (61.0, 17.0, 25.5, 0), (61.0, 17.0, 25.5, 0))
    noise = "node-a:89444:89486 [1] NCCL INFO comm 0x55a7 rank 1 nranks 4 - Init COMPLETE\n"
    part = load(noise + "".join(prefix + one + "\n" + noise for one in text.splitlines()))
    assert [(row["bytes"], row["op"], row["ranks"]) for row in rows(part)] == [(1048576, "all_reduce", 4)] * 2


def test_several_tables_in_one_file(load):
    one = line(1048576, (61.0, 17.0, 14.88, 0), (61.0, 17.0, 14.88, 0), redop="none")
    two = line(2097152, (61.0, 17.0, 17.0, 0), (61.0, 17.0, 17.0, 0), redop="none", root=0)
    text = (
        "+ mpirun -np 8 ./build/all_gather_perf -b 1M -e 1M\n" + devices(8) + HEAD_213 + one
        + "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 14.88\n#\n"
        + "# nccl-tests version 2.17.6 nccl-headers=22809\n# Collective test starting: broadcast_perf\n"
        + devices(2) + HEAD_213 + two + "# Collective test concluded: broadcast_perf\n"
    )  # fmt: skip
    told = [(row["op"], row["bytes"], row["ranks"]) for row in rows(load(text))]
    assert told == [("all_gather", 1048576, 8)] * 2 + [("broadcast", 2097152, 2)] * 2


def test_ranks_are_those_of_the_first_group_where_tests_were_split(load):
    part = load(devices(8, groups=2) + HEAD_213 + line(64, (1.0, 1.0, 1.5, 0)))
    assert rows(part)[0]["ranks"] == 4


@pytest.mark.parametrize(
    ("share", "number", "redop", "root", "op"),
    [
        (1.75, 8, "sum", -1, "all_reduce"),
        (0.875, 8, "sum", -1, "reduce_scatter"),
        (1.0, 8, "sum", 0, "reduce"),
        (1.0, 8, "none", 0, "broadcast"),
        (1.0, 8, "none", -1, "sendrecv"),
        (0.875, 8, "none", -1, "unknown"),  # all_gather and alltoall are alike
        (0.875, 8, "none", 0, "unknown"),  # gather and scatter
        (1.75, None, "sum", -1, "all_reduce"),
        (0.778, 8, "sum", -1, "unknown"),  # NVLink SHARP: (n-1)/(n+1)
        (0.875, None, "sum", -1, "unknown"),
        (0.9990, 1024, "sum", -1, "reduce_scatter"),
        (1.0, 2, "sum", -1, "all_reduce"),
    ],
)
def test_the_collective_by_the_ratio_of_the_bandwidths(load, share, number, redop, root, op):
    table = HEAD_213 + line(1 << 30, (1000.0, 100.0, round(100.0 * share, 2), 0), redop=redop, root=root)
    part = load((devices(number) if number else "") + table)
    assert {row["op"] for row in rows(part)} == {op}
    assert any("cannot be derived" in note for note in part.notes) == (op == "unknown")


def test_the_json_report(load):
    half = {"time": 61.46, "alg_bw": 17.06, "bus_bw": 29.86, "nwrong": 0.0}
    report = {
        "version": 2,
        "start_time": "2026-01-02 03:04:05",
        "args": ["./build/reduce_scatter_perf", "-b", "8"],
        "env": [],
        "nccl_version": 22809,
        "config": {"nthreads": 1, "minimum_bytes": 8, "devices": [{"rank": r, "group": 0} for r in range(4)]},
        "results": [
            {"size": 64, "count": 16, "type": "half", "redop": "avg", "root": "    -1", "out_of_place": half,
             "in_place": {**half, "nwrong": None, "time": "nan"}},
            {"size": 128, "count": 16, "type": "half", "redop": "avg", "root": "    -1", "out_of_place": None,
             "in_place": {**half, "nwrong": 2.0}},
        ],
    }  # fmt: skip
    told = [
        (r["bytes"], r["is_in_place"], r["op"], r["ranks"], r["dtype"], r["wrong"])
        for r in rows(load(json.dumps(report)))
    ]
    assert told == [
        (64, False, "reduce_scatter", 4, "float16", 0), (128, True, "reduce_scatter", 4, "float16", 2)
    ]  # fmt: skip


def test_a_report_of_another_program_is_not_taken(load):
    load("# Rank 0 of size 4\n1048576 262144 float sum -1 61.46\n", is_known=False)


bandwidths = st.floats(0, 9999, allow_nan=False).map(lambda value: round(value, 2))
halves = st.tuples(bandwidths, bandwidths, bandwidths, st.one_of(st.integers(0, 9999), st.just("N/A")))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2**40), halves, halves), min_size=1, max_size=8))
def test_generated_tables_survive(table):
    import pathlib
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "a"
        path.write_text(HEAD_213 + "".join(line(size, out, into) for size, out, into in table))
        part = nccl_tests.load([Input("a", path)], Hints())
    expected = [
        (size, is_in_place, *half[:3], None if half[3] == "N/A" else half[3])
        for size, out, into in table
        for is_in_place, half in ((False, out), (True, into))
    ]
    assert (
        list(part.benchmarks.select("bytes", "is_in_place", "time_us", "algbw", "busbw", "wrong").iter_rows())
        == expected
    )


BASE = (devices(4) + HEAD_213 + line(64, (1.0, 2.0, 3.0, 0), (1.0, 2.0, 3.0, 0)) * 3).encode()


@settings(max_examples=200, deadline=None)
@given(
    cut=st.integers(0, len(BASE)),
    puts=st.lists(st.tuples(st.integers(0, len(BASE)), st.sampled_from(b"\x00\n#-9e. \xff{")), max_size=9),
)
def test_damage_never_raises(cut, puts, tmp_path_factory):
    data = bytearray(BASE[:cut])
    for place, value in puts:
        if data:
            data[place % len(data)] = value
    path = tmp_path_factory.mktemp("tests") / "a"
    path.write_bytes(data)
    item = Input("a", path)
    nccl_tests.recognises(item)
    part = nccl_tests.load([item], Hints())
    assert part.read or part.ignored or part.unreadable


def test_a_report_that_is_cut_or_nested_is_unreadable(tmp_path):
    for text in ('{"nccl_version": 1, "results": [', '{"nccl_version": 1, "in_place": ' + "[" * 100_000):
        path = tmp_path / "a"
        path.write_text(text)
        part = nccl_tests.load([Input("a", path)], Hints())
        assert part.unreadable
        assert part.benchmarks.is_empty()
