"""Every case of `cases/`: its inputs are analysed as a user's would be, and the report compared with `expected.json`.

A case is a directory with `input/` (files as a job leaves them) or `make.py` (whose `make(folder)` writes them), and
`expected.json`:

    why             where the answer comes from: a public report, another project's test, a rule of the design
    roots           acceptable first verdicts; of each, the fields that must hold, as the JSON contract names them
    verdicts        optional: how many verdicts there are
    status, exit    optional: those of the report
    must_not_blame  optional: {"ranks": [...], "hosts": [...]} that no verdict may name
    says            optional: texts that the first verdict must contain, in its summary, evidence or lists
    says_not        optional: texts that it must not contain
"""

from __future__ import annotations

import importlib.util
import json
import pathlib
import time

import pytest

from roundk.analyze import sources
from roundk.analyze.diagnose import diagnose

CASES = pathlib.Path(__file__).parent / "cases"
KEYS = {"why", "roots", "verdicts", "status", "exit", "must_not_blame", "says", "says_not"}


def inputs_of(case, folder):
    """Where the inputs of a case are; made there where a program makes them."""
    if (case / "input").is_dir():
        return case / "input"
    spec = importlib.util.spec_from_file_location(f"corpus_{case.name}", case / "make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = folder / "input"
    made.mkdir()
    module.make(made)
    return made


def report_on(folder):
    trace, _ = sources.load([str(folder)])
    return diagnose(trace, now_ns=time.time_ns())


def differences(verdict, wanted):
    """The fields in which a verdict is not what was wanted."""
    return {key: (verdict[key], value) for key, value in wanted.items() if verdict[key] != value}


@pytest.mark.parametrize("name", sorted(path.name for path in CASES.iterdir() if path.is_dir()))
def test_the_verdict_is_the_expected_one(name, tmp_path):
    expected = json.loads((CASES / name / "expected.json").read_text())
    assert set(expected) <= KEYS, f"unknown keys: {set(expected) - KEYS}"
    assert expected["why"]
    assert expected["roots"]
    found = report_on(inputs_of(CASES / name, tmp_path))
    report = json.loads(json.dumps(found.to_json()))
    first = report["verdicts"][0]
    shown = json.dumps(first, indent=1)
    off = [differences(first, wanted) for wanted in expected["roots"]]
    assert not all(off), f"{off}\n{shown}"
    assert len(report["verdicts"]) == expected.get("verdicts", len(report["verdicts"])), shown
    assert report["status"] == expected.get("status", report["status"]), shown
    assert found.exit_code == expected.get("exit", found.exit_code), shown
    innocent = expected.get("must_not_blame", {})
    for verdict in report["verdicts"]:
        assert not set(innocent.get("ranks", [])) & set(verdict["culprit_ranks"]), json.dumps(verdict, indent=1)
        assert not set(innocent.get("hosts", [])) & set(verdict["culprit_hosts"]), json.dumps(verdict, indent=1)
    text = json.dumps(first, ensure_ascii=False)
    for words in expected.get("says", []):
        assert words in text, shown
    for words in expected.get("says_not", []):
        assert words not in text, shown
