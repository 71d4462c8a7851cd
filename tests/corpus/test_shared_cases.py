"""Cases kept beside the project, real dumps and inputs rebuilt from reports: their answers, in the contract's names."""

from __future__ import annotations

import json
import pathlib
import shutil

import pytest
from test_corpus import report_on

CASES = pathlib.Path(__file__).resolve().parents[2].parent / "shared" / "cases"
ANSWERS = shutil.ignore_patterns("expect.*", "fault_injection.log")
EXPECTED = CASES / "expected.json"
NAMED = json.loads(EXPECTED.read_text()) if EXPECTED.exists() else []


@pytest.mark.skipif(not NAMED, reason="the cases are not beside the project")
def test_there_are_cases():
    assert len(NAMED) >= 8


@pytest.mark.parametrize("case", NAMED, ids=lambda case: case["name"])
def test_answers_of_the_cases(case, tmp_path):
    for number, path in enumerate(case["paths"]):
        source, copy = CASES / path, tmp_path / str(number) / pathlib.Path(path).name
        copy.parent.mkdir()
        if source.is_dir():
            shutil.copytree(source, copy, ignore=ANSWERS)
        else:
            shutil.copy(source, copy)
    found = report_on(tmp_path)
    report = found.to_json()
    said = json.dumps(report, indent=1, default=str)
    ranks = sorted({rank for verdict in report["verdicts"] for rank in verdict["culprit_ranks"]})
    hosts = sorted({host for verdict in report["verdicts"] for host in verdict["culprit_hosts"]})
    assert report["verdicts"][0]["structure"] in case["structure"], said
    if "cause" in case:
        assert {verdict["cause"] for verdict in report["verdicts"]} & set(case["cause"]), said
    assert ranks == case.get("ranks", ranks), said
    assert hosts == case.get("hosts", hosts), said
    assert not set(case.get("not_ranks", [])) & set(ranks), said
    assert found.exit_code == case.get("rc", found.exit_code), said
