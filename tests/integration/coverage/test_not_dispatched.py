"""Calls that are not dispatched, in jobs: one that hangs is a row without an end, and the absent rank has none."""

from __future__ import annotations

import pathlib

import harness
import polars as pl
import pytest

from roundk.tracer import words
from roundk.tracer.reader import read_run

HERE = pathlib.Path(__file__).parent


def rows(run):
    calls = pl.from_arrow(run.calls).join(pl.from_arrow(run.groups).select("group", "desc", "ranks"), on="group")
    return calls.with_columns(pl.col("op", "outcome").cast(pl.String))


@pytest.mark.parametrize(("where", "seq"), [("init", 1), ("new_group", 2)])
def test_a_rank_that_does_not_come_has_no_row_and_the_others_one_without_an_end(start, tmp_path, where, seq):
    job = start(harness.torchrun(HERE / "hangs.py", where, 1, ranks=2), dir=tmp_path / "run")
    job.wait_until_plain(ranks=2)
    job.kill(but_launcher=True)
    found = rows(read_run(tmp_path / "run"))
    last = found.filter(pl.col("rank") == 0).row(-1, named=True)
    assert last["op"] == {"init": "init_process_group", "new_group": "new_group"}[where]
    assert (last["seq"], last["desc"], last["ranks"], last["end_ns"]) == (seq, words.CONTROL, [0, 1], None)
    theirs = found.filter(pl.col("rank") == 1, pl.col("desc") == words.CONTROL)
    assert theirs["op"].to_list() == ["init_process_group"][: seq - 1]


def test_names_bound_before_roundk_was_installed_are_recorded(start, tmp_path):
    command = harness.torchrun(HERE / "bound_before.py", tmp_path / "run", ranks=2)
    assert start(command, roundk=False).wait().code == 0
    found = rows(read_run(tmp_path / "run"))
    for rank in range(2):
        assert found.filter(pl.col("rank") == rank)["op"].to_list() == [
            "init_process_group",
            "new_group",
            "all_reduce",
            "destroy_process_group",
            "destroy_process_group",
        ]
    assert set(found["outcome"]) == {"completed"}
