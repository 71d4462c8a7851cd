from __future__ import annotations

import polars as pl
import pytest
from dumps import rows, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roundk.analyze.sources import table
from roundk.analyze.sources.inputs import Hints

INPLACE = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def load(tmp_path):
    def read(*contents, is_one=True):
        files = {f"calls{at}": of if isinstance(of, bytes) else of.encode() for at, of in enumerate(contents)}
        items = write(tmp_path, files)
        assert [table.recognises(item) for item in items] == [is_one] * len(items)
        return table.load(items, Hints())

    return read


def as_parquet(frame, tmp_path):
    frame.write_parquet(tmp_path / "made")
    return (tmp_path / "made").read_bytes()


def as_arrow(frame, tmp_path):
    frame.write_ipc(tmp_path / "made", compat_level=pl.CompatLevel.oldest())
    return (tmp_path / "made").read_bytes()


CSV = """rank,group,seq,op,bytes,dtype,root,step,host,enter_us,start_us,end_us
1,tp,3,AllReduce,4096,BFloat16,,7,node1,1700000000000000,1700000000000100,
0,tp,3,_allgather_base,4096,float32,1,7,node0,1700000000000050,1700000000000100,1700000000000200
"""


def test_a_table_becomes_calls(load):
    part = load(CSV)
    assert rows(part.calls, "rank", "group", "seq", "op", "source_op", "bytes_in", "dtype", "root", "step") == [
        (0, 0, 3, "all_gather_into_tensor", "_allgather_base", 4096, "float32", 1, 7),
        (1, 0, 3, "all_reduce", "AllReduce", 4096, "bfloat16", None, 7),
    ]
    us = 1_700_000_000_000_000_000
    assert rows(part.calls, "enter_ns", "issued_ns", "start_ns", "end_ns", "is_timed", "outcome") == [
        (us + 50_000, us + 50_000, us + 100_000, us + 200_000, True, "completed"),
        (us, us, us + 100_000, None, True, "open"),
    ]
    assert rows(part.groups, "name", "desc", "ranks") == [("tp", "", [0, 1])]
    assert rows(part.ranks, "rank", "host", "data", "calls", "last_alive_ns") == [
        (0, "node0", "present", 1, us + 200_000),
        (1, "node1", "present", 1, us + 100_000),
    ]
    assert part.notes == ("the members of groups are the ranks that have rows of them",)


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_separators(load, separator):
    part = load("# made by hand\n" + CSV.replace(",", separator))
    assert rows(part.calls, "seq", "op") == [(3, "all_gather_into_tensor"), (3, "all_reduce")]


def test_parquet_and_arrow_say_the_same(load, tmp_path):
    frame = pl.read_csv(CSV.encode())
    for content in (as_parquet(frame, tmp_path), as_arrow(frame, tmp_path)):
        assert load(content).calls.equals(load(CSV).calls)


@pytest.mark.parametrize(("unit", "factor"), [("ns", 1), ("us", 10**3), ("ms", 10**6), ("s", 10**9)])
def test_units(load, unit, factor):
    part = load(f"RANK,Seq,op,End_{unit}\n0,1,barrier,12\n0,2,barrier,1.5\n0,3,barrier,\n0,4,barrier,-1\n")
    assert dict(rows(part.calls, "seq", "end_ns")) == {1: 12 * factor, 2: round(1.5 * factor), 3: None, 4: None}
    assert sorted(rows(part.calls, "outcome")) == ["completed", "completed", "open", "open"]


def test_large_whole_numbers_stay_exact(load):
    part = load("rank,seq,op,enter_ns\n0,1,barrier,1700000000123456789\n")
    assert rows(part.calls, "enter_ns", "outcome") == [(1700000000123456789, "not_recorded")]


def test_without_groups_there_is_one_of_all_ranks(load):
    part = load("rank,seq,op,enter_ms\n0,1,barrier,1\n2,1,barrier,1\n")
    assert rows(part.groups, "name", "ranks") == [("default_pg", [0, 1, 2])]
    assert not part.notes


def test_sends_and_receives_are_counted_by_pair(load):
    lines = ["0,5,send,1,1", "0,9,send,1,2", "0,11,send,2,3", "1,4,recv,0,1"]
    part = load("rank,seq,op,peer,enter_s\n" + "\n".join(lines))
    assert rows(part.calls, "rank", "op", "peer", "seq") == [
        (0, "send", 1, 1),
        (0, "send", 1, 2),
        (0, "send", 2, 1),
        (1, "recv", 0, 1),
    ]


def test_several_files_are_one_table(load):
    part = load(*(f"rank,seq,op,enter_s\n{rank},1,barrier,{rank}\n" for rank in (1, 0)))
    assert rows(part.calls, "rank", "enter_ns") == [(0, 0), (1, 10**9)]
    assert part.read == ("calls0", "calls1")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("rank,seq,op,enter\n0,1,barrier,5\n", "its column `enter` has no unit: call it `enter_ns`"),
        ("rank,seq,op,enter_ns,enter_us\n0,1,barrier,5,5\n", "has `enter` in two units, ns and us"),
        ("rank,seq,op,enter_ns,bytes,bytes_in\n0,1,barrier,5,1,1\n", "has the column `bytes_in` twice"),
        ("rank,seq,op,enter_ns\nx,1,barrier,5\n", "has no row with a rank, a seq and an op"),
        ("rank,seq,op,enter_ns\n", "has no row with a rank, a seq and an op"),
    ],
)
def test_what_cannot_be_used_is_told(load, content, why):
    part = load(content)
    assert not part.calls.height
    assert why in part.unreadable[0].why


def test_rows_that_are_no_call_are_told(load):
    lines = [
        "0,1,barrier,5",
        "1057455228,1,barrier,5",
        "0,-3,barrier,5",
        "0,2,,5",
        "zero,2,barrier,5",
        "3.0,2.0,barrier,6",
    ]
    part = load("rank,seq,op,enter_ns\n" + "\n".join(lines) + "\n")
    assert rows(part.calls, "rank", "seq") == [(0, 1), (3, 2)]
    assert part.notes[0] == "calls0: 4 of 6 rows have no rank, seq or op, and are left out"


@pytest.mark.parametrize(
    "content",
    [
        "",
        "a,b,c\n1,2,3\n",
        "rank,seq,enter_ns\n0,1,2\n",
        "rank,op,enter_ns\n0,barrier,1\n",
        "rank,seq,op,time\n0,1,barrier,2\n",
        "rank 0 seq 1 op barrier enter_ns 5\n",
        '{"rank": 0, "seq": 1}',
        b"PAR1 and nothing else",
        b"ARROW1\0\0",
        b"\x80\x02}.",
    ],
)
def test_other_files_are_none(load, tmp_path, content):
    load(content, is_one=False)


def test_other_parquet_is_none(load, tmp_path):
    load(as_parquet(pl.DataFrame({"a": [1]}), tmp_path), is_one=False)


def test_a_parquet_file_that_says_that_it_is_huge_is_refused(load, tmp_path, monkeypatch):
    monkeypatch.setattr(table, "MOST_ROWS", 1)
    part = load(as_parquet(pl.read_csv(CSV.encode()), tmp_path))
    assert "it says that it has 2 rows; 1 are read at most" in part.unreadable[0].why


calls = st.lists(
    st.tuples(
        st.integers(0, 50),
        st.sampled_from(["tp", "dp", "é;x"]),
        st.integers(0, 2**40),
        st.sampled_from(["all_reduce", "barrier", "swizzle"]),
        st.none() | st.integers(0, 2**60),
        st.none() | st.integers(0, 2**60),
    ),
    min_size=1,
    max_size=10,
)


def test_a_row_that_is_there_twice_is_one_call(load):
    """Two equal rows are a file that was written or joined twice; rows that differ are parts of a coalesced call."""
    part = load("rank,group,seq,op,enter_s,end_s\n0,w,1,all_reduce,1,2\n1,w,1,all_reduce,1,2\n0,w,1,all_reduce,1,2\n")
    assert rows(part.calls, "rank", "seq", "op") == [(0, 1, "all_reduce"), (1, 1, "all_reduce")]
    assert part.notes[0] == "1 row repeats another one in every column, and is left out"


def test_numbers_that_repeat_without_a_column_group_are_of_several_groups(load):
    part = load("rank,seq,op,enter_s\n0,1,all_reduce,1\n0,1,all_gather,2\n1,1,all_reduce,1\n1,1,all_gather,2\n")
    assert not part.calls.height
    assert part.unreadable[0].why.startswith("the column `group` is missing: rank 0 has 2 different calls with seq 1")


def test_sends_may_repeat_a_number_without_a_column_group(load):
    part = load("rank,seq,op,peer,enter_s\n0,1,send,1,1\n0,1,send,1,2\n1,1,recv,0,1\n1,1,recv,0,2\n")
    assert part.calls.height == 4


def test_times_that_cannot_be_are_not_taken_and_counted(load):
    lines = ["0,w,1,all_reduce,5,4", "1,w,1,all_reduce,5,nan", "2,w,1,all_reduce,5,inf", "3,w,1,all_reduce,x,"]
    part = load("rank,group,seq,op,enter_s,end_s\n" + "\n".join(lines))
    assert rows(part.calls.sort("rank"), "end_ns", "outcome") == [
        (None, "not_recorded"),
        (None, "open"),
        (None, "not_recorded"),
        (None, "open"),
    ]
    assert part.notes[:3] == (
        "calls0: 2 times are no number that can be used (inf, text, too large) and not taken",
        "calls0: 1 time is nan: that is taken for what did not happen",
        "calls0: 1 call ends before its beginning: that end is not taken",
    )


@INPLACE
@given(calls, st.sampled_from([",", "\t", None]))
def test_generated_content_survives(tmp_path, made, separator):
    frame = pl.DataFrame(
        made,
        orient="row",
        schema={
            "rank": pl.Int64,
            "group": pl.String,
            "seq": pl.Int64,
            "op": pl.String,
            "enter_ns": pl.Int64,
            "end_ns": pl.Int64,
        },
    )
    content = as_parquet(frame, tmp_path) if separator is None else frame.write_csv(separator=separator).encode()
    part = table.load(write(tmp_path, {"calls": content}), Hints())
    names = dict(rows(part.groups, "group", "name"))
    found = [
        (row[0], names[row[1]], *row[2:])
        for row in rows(part.calls, "rank", "group", "seq", "op", "enter_ns", "end_ns")
    ]
    # A row twice is one row, and nothing ends before it begins.
    expected = {(*row[:5], None if row[4] and row[5] is not None and row[5] < row[4] else row[5]) for row in made}
    assert sorted(found, key=str) == sorted(expected, key=str)


@INPLACE
@given(st.data(), st.booleans())
def test_damage_gives_partial_data_or_a_reason(tmp_path, data, is_parquet):
    content = bytearray(as_parquet(pl.read_csv(CSV.encode()), tmp_path) if is_parquet else CSV.encode())
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = bytes(content[: data.draw(st.integers(1, len(content)))])
    (item,) = write(tmp_path, {"calls": content})
    if table.recognises(item):
        part = table.load([item], Hints())
        assert len(part.read) + len(part.unreadable) == 1
