"""Several sources of one job become one set of tables."""

from __future__ import annotations

import pathlib

import polars as pl
import pytest
from jobs import table

from roundk.analyze.sources.merge import merge
from roundk.analyze.sources.part import Part
from roundk.analyze.trace import Trace, Unreadable
from roundk.tracer import schema

ROOT = pathlib.Path("job")


def rows(columns, *given):
    """A table of these columns; what is not given is null."""
    return table(given, columns)


def group(key, name, ranks, desc=""):
    return {"group": key, "name": name, "desc": desc, "backend": "nccl", "ranks": list(ranks)}


def call(rank, group, seq):
    outcome = {"outcome": "completed", "is_timed": False}
    return {"rank": rank, "group": group, "seq": seq, "op": "all_reduce", "source_op": "all_reduce", **outcome}


def rank(number, **known):
    return {"rank": number, "data": "missing", "calls": 0, "calls_lost": 0, **known}


def progress(number, group, completed):
    return {
        "rank": number,
        "group": group,
        "completed": completed,
        "is_start_told": False,
        "counts": "collectives",
        "source": "log:1",
    }


DUMPS = Part(
    kind="flight_recorder",
    read=("dump_0",),
    groups=rows(schema.GROUPS, group(0, "tp", [0, 1]), group(1, "0", range(4), "default_pg")),
    calls=rows(schema.CALLS, call(0, 0, 7), call(0, 1, 9)),
    ranks=rows(schema.RANKS, rank(0, data="present", calls=2, last_alive_ns=50)),
    progress=rows(schema.PROGRESS, progress(0, 1, 8)),
    world_size=4,
)
LOG = Part(
    kind="job_log",
    read=("job.log",),
    ignored=("notes.txt",),
    groups=rows(schema.GROUPS, group(0, "0", [], "default_pg"), group(1, "pp", [2, 3])),
    calls=rows(schema.CALLS, call(3, 1, 1)),
    ranks=rows(schema.RANKS, rank(0, host="a", pid=11), rank(2, host="b", exit_code=1, last_alive_ns=99)),
    progress=rows(schema.PROGRESS, progress(2, 0, 7), progress(3, 1, 2)),
    facts=rows(
        schema.FACTS,
        {"kind": "x", "text": "none", "source": "s"},
        {"kind": "x", "text": "late", "source": "s", "time_ns": 9},
    ),
    notes=("a note",),
)


@pytest.fixture
def both():
    return merge([LOG, DUMPS], None, ROOT, [Unreadable("x", "it is cut")])


def test_calls_are_those_of_one_source(both):
    assert both.calls.select("rank", "seq").rows() == [(0, 7), (0, 9)]
    assert merge([LOG], None, ROOT, []).calls.select("rank", "seq").rows() == [(3, 1)]


def test_a_group_is_known_by_its_name_and_members_whoever_tells_of_it(both):
    members = {row["group"]: (row["name"], row["ranks"]) for row in both.groups.iter_rows(named=True)}
    assert sorted(members.values()) == [("0", [0, 1, 2, 3]), ("pp", [2, 3]), ("tp", [0, 1])]
    counters = {
        (members[key][0], number): done
        for number, key, done in both.progress.select("rank", "group", "completed").rows()
    }
    assert counters == {("0", 0): 8, ("0", 2): 7, ("pp", 3): 2}
    assert [members[key][0] for key in both.calls["group"]] == ["tp", "0"]


def test_one_name_with_other_members_is_another_group():
    one = Part(kind="flight_recorder", groups=rows(schema.GROUPS, group(0, "tp", [0, 1]), group(1, "tp", [2, 3])))
    two = Part(
        kind="job_log",
        groups=rows(schema.GROUPS, group(0, "tp", [])),
        progress=rows(schema.PROGRESS, progress(1, 0, 5)),
    )
    merged = merge([one, two], None, ROOT, [])
    assert sorted(map(tuple, merged.groups["ranks"])) == [(), (0, 1), (2, 3)]
    assert merged.groups.filter(pl.col("group") == merged.progress["group"][0])["ranks"].to_list() == [[]]


def test_a_group_of_which_a_source_saw_some_members_is_the_one_that_has_them():
    log = Part(
        kind="job_log",
        groups=rows(schema.GROUPS, group(0, "tp", [1])),
        progress=rows(schema.PROGRESS, progress(1, 0, 5)),
    )
    merged = merge([DUMPS, log], None, ROOT, [])
    assert merged.groups["ranks"].to_list() == [[0, 1], [0, 1, 2, 3]]
    assert merged.progress.filter(completed=5)["group"].to_list() == merged.groups.filter(name="tp")["group"].to_list()


def test_two_groups_of_one_source_stay_two():
    both = Part(kind="job_log", groups=rows(schema.GROUPS, group(0, "tp", [0, 1]), group(1, "tp", [1])))
    assert merge([both], None, ROOT, []).groups["ranks"].to_list() == [[0, 1], [1]]


def test_of_a_rank_every_source_tells_what_it_knows(both):
    told = {row["rank"]: row for row in both.ranks.iter_rows(named=True)}
    assert [row["data"] for row in told.values()] == ["present", "missing", "missing", "missing"]
    assert (told[0]["host"], told[0]["pid"], told[0]["calls"], told[0]["last_alive_ns"]) == ("a", 11, 2, 50)
    assert (told[2]["exit_code"], told[2]["last_alive_ns"]) == (1, 99)


def test_what_was_found_and_what_was_not_is_kept(both):
    assert both.world_size == 4
    assert both.sources == {"flight_recorder": 1, "job_log": 1}
    assert both.notes == ()  # it is of the log, whose calls are not taken
    assert merge([LOG], None, ROOT, []).notes == ("a note",)
    assert both.unreadable == (Unreadable("x", "it is cut"),)
    assert both.facts["text"].to_list() == ["late", "none"]
    assert both.is_post_mortem


def test_a_run_directory_comes_first():
    run = Trace(
        root=ROOT,
        groups=rows(schema.GROUPS, group(5, "0", range(2), "default_pg")),
        calls=rows(schema.CALLS, call(1, 5, 3)),
        ranks=rows(schema.RANKS, rank(0, data="present"), rank(1, data="present")),
        world_size=2,
        command=("train",),
        sources={"run_directory": 1},
    )
    merged = merge([DUMPS], run, ROOT, [])
    assert merged.calls["rank"].to_list() == [1]
    assert merged.world_size == 2
    assert merged.command == ("train",)
    assert not merged.is_post_mortem
    assert merged.sources == {"run_directory": 1, "flight_recorder": 1}


def test_without_a_word_on_its_size_a_world_ends_with_the_last_rank_seen():
    merged = merge([LOG], None, ROOT, [])
    assert merged.world_size == 4
    assert merged.ranks["rank"].to_list() == [0, 1, 2, 3]
