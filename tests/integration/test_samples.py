"""Every recorded sample is explained as its `expected.json` says, and tells nothing about where it was recorded."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess

import harness
import pytest

ROOT = pathlib.Path(__file__).parents[2] / "sample_traces"
SAMPLES = sorted(path.parent for path in ROOT.glob("*/expected.json"))
EMPTY_SEGMENT_BYTES = 500_000


def test_the_four_samples_are_there():
    assert [sample.name for sample in SAMPLES] == ["healthy_ddp", "killed_rank", "never_entered", "size_mismatch"]


@pytest.mark.parametrize("sample", SAMPLES, ids=[sample.name for sample in SAMPLES])
def test_a_sample_is_explained_as_expected(sample):
    expected = json.loads((sample / "expected.json").read_text())
    analysis = harness.analyze(sample)
    said = {**analysis.verdict, "exit_code": analysis.code, "status": analysis.report["status"]}
    assert {key: said[key] for key in expected} == expected
    assert analysis.report["coverage"]["unreadable"] == []


@pytest.mark.parametrize("sample", SAMPLES, ids=[sample.name for sample in SAMPLES])
def test_a_sample_is_neutral_and_small(sample):
    for path in filter(pathlib.Path.is_file, sample.rglob("*")):
        assert path.stat().st_size < EMPTY_SEGMENT_BYTES
        for name in re.findall(rb'[\w.-]*/(?:root|home|work|Users|opt|tmp)/[^\s"]*', path.read_bytes()):
            assert name.startswith(b"/tmp/demo/"), path
    assert [path.name for path in sample.iterdir() if path.is_dir()] == ["node-a"]
    assert f"`{sample.name}`" in (ROOT / "README.md").read_text()


def test_the_readme_shows_what_the_sample_gives():
    command = "roundk analyze sample_traces/never_entered"
    full = [*harness.ROUNDK, *command.split()[1:]]
    env = {**os.environ, "COLUMNS": "80"}
    done = subprocess.run(full, cwd=ROOT.parent, env=env, capture_output=True, text=True, check=False)
    assert f"$ {command}\n{done.stdout}```" in (ROOT.parent / "README.md").read_text()
