"""That the judge of the proof can tell right from wrong."""

from __future__ import annotations

import json
import pathlib
from dataclasses import replace

import prove
import pytest
from planted import judge, plan, tree
from planted.incidents import INCIDENTS
from planted.materials import corpus, samples
from planted.plan import NOTHING, PARTLY, Plan, Planned, Truth
from planted.rows import row, table

from roundk.analyze.batch.table import CATEGORIES
from roundk.analyze.names import Cause

LINK = {"host": "b", "device": "mlx5_0", "port": 1}
DOWN = Truth("link_down", ("LINK_DOWN",), ("PARTIAL_COMPLETION",), (), (0, 1, 2), ("b",), ("a", "c"), ("b/mlx5_0",))
SAID = {"structure": "PARTIAL_COMPLETION", "cause": "LINK_DOWN", "cause_confidence": "high", "culprit_hosts": ["b"]}


def planned(**fields):
    return Planned(**({"run": "r", "source": "incident", "truth": DOWN} | fields))


def marked(plan_of_run, *rows):
    return judge.judge(plan_of_run, [row("r", **fields) for fields in rows]).mark


@pytest.mark.parametrize(
    ("fields", "mark"),
    [
        ({}, "right"),
        ({"culprit_links": [LINK]}, "right"),
        ({"cause": "LINK_FLAP"}, "wrong"),
        ({"cause": None, "status": "healthy", "structure": "HEALTHY", "culprit_hosts": []}, "wrong"),
        ({"structure": "SHARED_SLOWDOWN"}, "wrong"),
        ({"structure": "SHARED_SLOWDOWN", "structure_confidence": "low"}, "right"),
        ({"culprit_hosts": ["a"], "structure_confidence": "low"}, "wrong"),
        ({"culprit_ranks": [1], "structure_confidence": "low"}, "wrong"),
        ({"culprit_links": [LINK | {"device": "mlx5_1"}]}, "wrong"),
        ({"cause": "UNDETERMINED"}, "undetermined"),
        ({"cause": "UNDETERMINED", "culprit_ranks": [1], "structure_confidence": "medium"}, "undetermined"),
        ({"cause": "UNDETERMINED", "culprit_ranks": [1]}, "wrong"),
        ({"status": "undetermined", "structure": "METHODS_DISAGREE", "culprit_hosts": []}, "undetermined"),
        ({"status": "error", "structure": None, "cause": None, "problem": "gone", "culprit_hosts": []}, "wrong"),
    ],
)
def test_a_verdict_is_judged_by_what_was_planted(fields, mark):
    assert marked(planned(), SAID | fields) == mark


@pytest.mark.parametrize(
    ("rank", "confidence", "mark"), [(1, "medium", "right"), (1, "high", "wrong"), (2, "medium", "wrong")]
)
def test_a_rank_whose_files_are_lost_may_be_named_but_not_at_high_confidence(rank, confidence, mark):
    of_lost = planned(truth=replace(DOWN, lost=(1,)))
    assert marked(of_lost, SAID | {"culprit_ranks": [rank], "structure_confidence": confidence}) == mark


def test_an_innocent_in_a_later_verdict_counts_too():
    assert marked(planned(), SAID, SAID | {"verdict": 1, "culprit_hosts": ["c"]}) == "wrong"


@pytest.mark.parametrize(
    ("readable", "fields", "mark"),
    [
        (NOTHING, {"structure": None, "cause": None, "problem": "empty files", "culprit_hosts": []}, "unreadable"),
        (NOTHING, {"structure": None, "cause": None, "culprit_hosts": []}, "wrong"),
        (NOTHING, {"problem": "empty files"}, "wrong"),
        (PARTLY, {"ranks_empty": 2}, "right"),
        (PARTLY, {"unreadable": 1, "problem": "dump 3: refused", "cause": "UNDETERMINED"}, "undetermined"),
        (PARTLY, {"unreadable": 1}, "wrong"),
        (PARTLY, {"structure": None, "cause": None, "problem": "cut short", "culprit_hosts": []}, "unreadable"),
        (PARTLY, {}, "wrong"),
    ],
)
def test_damage_has_to_be_told(readable, fields, mark):
    assert marked(planned(damage="some", readable=readable, is_told=True), SAID | fields) == mark


def test_a_run_without_a_row_is_wrong():
    assert judge.judge(planned(), []).mark == "wrong"


def counted(name, count, total):
    return {"name": name, "count": count, "total": total}


def outcome(rows, by_cause, *, slow=(), listed=()):
    report = {"interruptions": {"by_cause": by_cause}, "slow_by_cause": list(slow), "problems": list(listed)}
    made = Plan(1, [planned(run="r"), planned(run="s")])
    return prove.problems(made, table(rows).to_pylist(), report)


BOTH = [row("r", **SAID), row("s", **SAID | {"cause": "UNDETERMINED", "culprit_hosts": []})]
RIGHT = [counted("LINK_DOWN", 1, 2), counted("UNDETERMINED", 1, 2)]


def test_a_table_and_a_report_as_planned_have_no_problem():
    assert outcome(BOTH, RIGHT) == []


@pytest.mark.parametrize(
    ("rows", "by_cause", "listed"),
    [
        (BOTH, [counted("LINK_DOWN", 2, 2)], ()),
        (BOTH, [counted("LINK_DOWN", 1, 3), counted("UNDETERMINED", 1, 3)], ()),
        (BOTH[:1], RIGHT, ()),
        ([*BOTH, row("t")], RIGHT, ()),
        (BOTH, RIGHT, [{"run": "r", "problem": "something"}]),
        ([row("r", **SAID | {"cause": "GPU_FAULT"}), BOTH[1]], [counted("GPU_FAULT", 1, 2), RIGHT[1]], ()),
    ],
)
def test_what_differs_from_the_plan_is_told(rows, by_cause, listed):
    assert outcome(rows, by_cause, listed=listed)


def test_the_plan_of_a_seed_is_the_same_again(tmp_path):
    one, two = (tree.make(tmp_path / name, 12, 5) for name in ("one", "two"))
    assert one == two == plan.read(tmp_path / "two" / "plan.json")
    content = [
        {path.relative_to(tmp_path / name).as_posix(): path.read_bytes() for path in files(tmp_path / name / "runs")}
        for name in ("one", "two")
    ]
    assert {name for name in content[0] if not name.endswith(".gz")} == {n for n in content[1] if not n.endswith(".gz")}


def files(folder):
    return sorted(path for path in pathlib.Path(folder).rglob("*") if path.is_file())


def test_every_kind_of_cause_and_structure_has_material():
    """What nothing is planted of would be counted right by an empty proof."""
    causes = {root["cause"] for told in corpus().values() for root in told["roots"]}
    causes |= {cause for told in samples().values() for cause in words(told["cause"])}
    assert {"DUPLICATE_GPU", "NVLINK_FAULT", "MTU_MISMATCH", "PROCESS_STOPPED", "HOST_STALL", "LINK_DEGRADED"} <= causes
    assert len(INCIDENTS) >= 16
    assert {Cause(cause) for cause in causes} <= set(CATEGORIES)


def words(told):
    return told if isinstance(told, list) else [told]


def test_the_plan_is_plain_json(tmp_path):
    made = Plan(3, [planned()])
    made.write(tmp_path)
    assert json.loads((tmp_path / "plan.json").read_text())["runs"][0]["truth"]["causes"] == ["LINK_DOWN"]
    assert (tmp_path / "plan.csv").read_text().splitlines()[1].startswith("r,incident,,,,link_down,LINK_DOWN,,b,")
