"""`roundk explain`: every name of a verdict has its text, and a mistyped one is met with the closest."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner

from roundk.analyze import explain
from roundk.analyze.names import Cause, Detail, Structure
from roundk.cli import group

KINDS = {"structure": Structure, "detail": Detail, "cause": Cause}


def test_every_name_has_a_meaning_and_no_other_is_listed():
    names = {(kind, name.value) for kind, of in KINDS.items() for name in of}
    assert {(entry.kind, entry.name) for entry in explain.entries()} == names
    listed = CliRunner().invoke(group, ["explain"])
    assert listed.exit_code == 0
    assert {line.split()[0] for line in listed.stdout.splitlines() if line.startswith("  ") and line[2] != " "} == {
        name for _, name in names
    }
    assert max(map(len, listed.stdout.splitlines())) <= 80


@pytest.mark.parametrize("name", ["RANK_NOT_ENTERED", "rank_not_entered", "Rank-Not-Entered"])
def test_explain_one_name(name):
    told = CliRunner().invoke(group, ["explain", name])
    assert told.exit_code == 0
    assert told.stdout.startswith("RANK_NOT_ENTERED  structure\n")
    for title in ("What was seen", "What it needs", "What it can be mistaken for", "What to do"):
        assert f"\n{title}\n" in told.stdout


@pytest.mark.parametrize(("name", "offered"), [("ORDER_DEADLCK", "ORDER_DEADLOCK"), ("gpu", "GPU_FAULT")])
def test_explain_an_unknown_name_offers_the_closest(name, offered):
    done = subprocess.run(
        [sys.executable, "-m", "roundk", "explain", name], check=False, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"roundk: {name}: no name of a verdict; did you mean {offered}")
