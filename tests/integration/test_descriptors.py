"""A job that closes every descriptor, and gets the numbers again for files of its own, keeps those files whole."""

from __future__ import annotations

import sys

import harness

STALL_S = 2


def test_files_at_the_numbers_of_closed_descriptors_are_the_jobs(start, tmp_path):
    own, run = tmp_path / "own", tmp_path / "run"
    own.mkdir()
    command = [sys.executable, str(harness.SCRIPTS / "descriptors.py"), str(own), str(STALL_S)]
    launcher = [*harness.ROUNDK, "run", "--no-logs", "--stall-s", str(STALL_S), "--dir", str(run), "--"]
    ended = start([*launcher, *command], roundk=False).wait()
    assert ended.code == 0, ended.stderr
    assert ended.stdout.splitlines() == ["damaged: []", "closed: []", "called at the end"]
    assert "recording is off" not in ended.stderr

    [side] = run.rglob("rank-*.jsonl")  # the call after the goodbye makes no second one
    lines = side.read_text()
    assert lines.count('"kind":"site"') > 300
    assert '"kind":"goodbye"' in lines
    stacks = side.with_suffix(".stacks").read_text()
    assert stacks.index('"kind":"stall"') < stacks.index("Timeout (")
    assert len(list(run.rglob("rank-*.arrow"))) > 1
