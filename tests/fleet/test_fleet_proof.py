"""The proof of `prove.py` in the form that fits a test run: forty failed runs of all sources, in one command.

docs/batch.md has the result for three hundred.
"""

from __future__ import annotations

import collections

import prove
import pytest
from planted import batches, judge, tree

RUNS = 40
LEAST_RIGHT = 0.55
"""Of all runs; what nothing tells (an idle rank, a device that is stuck) is honestly open. Some 0.7 were seen."""


@pytest.fixture(scope="module")
def proof(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fleet") / "a"
    plan = tree.make(folder, RUNS, 1)
    return plan, *batches.batch(folder / "runs", folder / "out")[:2]


def test_the_table_and_the_report_are_as_planned(proof):
    assert prove.problems(*proof) == []


def test_enough_is_told(proof):
    plan, rows, _ = proof
    marks = collections.Counter(one.mark for one in judge.marks(plan, rows))
    assert marks["right"] >= LEAST_RIGHT * RUNS, judge.as_text(judge.table(judge.marks(plan, rows)))


def test_a_tenth_is_damaged(proof):
    plan, rows, _ = proof
    assert sum(one.damage is not None for one in plan.runs) == RUNS // 10
    assert len({row["run"] for row in rows}) == RUNS
