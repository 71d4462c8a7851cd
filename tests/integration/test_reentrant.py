"""A call that comes up inside another one is recorded as what it is, and so is the other one."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import harness
import polars as pl
import pytest

from roundk.tracer import reader

SCRIPT = pathlib.Path(__file__).parent / "scripts" / "reentrant.py"
REDUCTIONS = ["SUM", "MIN", "MAX", "PRODUCT"]


@pytest.fixture
def recorded(tmp_path):
    def run(how):
        command = [
            *harness.ROUNDK,
            "run",
            "--no-logs",
            "--dir",
            str(tmp_path / "run"),
            "--",
            sys.executable,
            SCRIPT,
            how,
        ]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
        found = reader.read_run(tmp_path / "run")
        assert found.unreadable == ()
        names = dict(zip(found.groups["group"].to_pylist(), found.groups["name"].to_pylist(), strict=True))
        calls = pl.from_arrow(found.calls).filter(pl.col("op").cast(pl.String).is_in(["all_reduce", "reduce"]))
        return calls.with_columns(name=pl.col("group").replace_strict(names, return_dtype=pl.String))

    return run


@pytest.mark.parametrize("how", ["functional", "method"])
def test_calls_of_a_signal_handler_in_the_middle_of_others(recorded, how):
    calls = recorded(how)
    from_cpp = calls.filter(pl.col("numel") >= 100)
    assert (from_cpp["name"] == (from_cpp["numel"] - 100).cast(pl.String)).all()
    assert from_cpp["reduce_op"].null_count() == from_cpp.height
    assert calls["shapes"].cast(pl.String).to_list() == [f"[[{numel}]]" for numel in calls["numel"]]
    ours = calls.filter(pl.col("numel") < 100).with_columns(code=pl.col("numel") - 1)
    assert ours.height > 100
    assert ours["name"].to_list() == [str(code // 4) for code in ours["code"]]
    assert ours["reduce_op"].to_list() == [REDUCTIONS[code % 4] for code in ours["code"]]
    assert set(calls["outcome"].cast(pl.String)) == {"completed"}
    for (_,), part in calls.group_by("group"):
        assert sorted(part["seq"]) == list(range(1, part.height + 1))


def test_a_call_that_a_dispatch_mode_makes_twice_is_two_calls_that_end(recorded):
    calls = recorded("twice").filter(pl.col("numel") < 100, pl.col("op").cast(pl.String) == "all_reduce")
    assert calls.height > 100
    assert calls.height % 2 == 0
    assert calls["name"].to_list() == [str((numel - 1) // 4) for numel in calls["numel"]]
    assert "open" not in set(calls["outcome"].cast(pl.String))
