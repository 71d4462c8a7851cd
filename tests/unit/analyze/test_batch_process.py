"""A process per run: its limits, its crashes, and that it never outlives who started it."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import textwrap

import pytest
from held import Held, children, sample, until

from roundk.analyze.batch import process
from roundk.analyze.batch.discover import discover
from roundk.analyze.batch.process import Child, Limits

NOW_NS = 1_800_000_000 * 10**9


@pytest.fixture(autouse=True)
def scratch(tmp_path, monkeypatch):
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(process.tempfile, "tempdir", str(folder))
    return folder


def one(root):
    return next(iter(discover([str(root)]).runs))


def finished(child):
    return until(child.poll, "the end of an analysis")


def test_rows_come_back_and_the_folder_goes(tmp_path, scratch):
    sample(tmp_path / "runs", "a", "killed_rank")
    result = process.judged(one(tmp_path / "runs"), now_ns=NOW_NS, limits=Limits())
    expected = json.loads((tmp_path / "runs/a/expected.json").read_text())
    assert (result.rows[0]["structure"], result.rows[0]["cause"]) == (expected["structure"], expected["cause"])
    assert result.rows[0]["culprit_ranks"] == expected["culprit_ranks"]
    assert result.is_final
    assert not list(scratch.iterdir())


def test_a_run_that_hangs_ends_at_the_time_limit(tmp_path, scratch):
    held = Held(tmp_path / "runs", "a")
    child = Child(one(tmp_path / "runs"), now_ns=NOW_NS, limits=Limits(time_s=5))
    try:
        until(held.reached, "the reader")
        result = finished(child)
    finally:
        child.close()
    assert held.left()
    assert [row["status"] for row in result.rows] == ["error"]
    assert result.rows[0]["problem"].startswith("ended at its time limit of 5 s")
    assert not result.is_final
    assert not list(scratch.iterdir())


def test_a_run_that_takes_too_much_memory_is_ended(tmp_path):
    # A dump of 20 MB that becomes many times that as Python objects.
    root = tmp_path / "runs"
    entry = {"pg_id": 0, "process_group": ["0", "default_pg"], "profiling_name": "nccl:barrier"}
    entries = [
        {**entry, "collective_seq_id": k, "frames": [{"name": f"f{k}", "filename": "train.py", "line": k}]}
        for k in range(120_000)
    ]
    (root / "big").mkdir(parents=True)
    (root / "big/nccl_trace_rank_0").write_text(json.dumps({"version": "2.9", "pg_config": {}, "entries": entries}))
    sample(root, "small")
    limits = Limits(memory_mb=120)
    big, small = discover([str(root)]).runs
    result = process.judged(big, now_ns=NOW_NS, limits=limits)
    assert result.rows[0]["problem"].startswith("ended at its memory limit of 120 MiB")
    assert not result.is_final
    assert process.judged(small, now_ns=NOW_NS, limits=limits).rows[0]["problem"] is None


def test_memory_of_all_its_processes_counts():
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'x = b\"1\" * (200 << 20); input()'])"
    started = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    try:
        until(lambda: process._resident_bytes(started.pid) > 200 << 20, "200 MB")
        assert process._own_bytes(started.pid) < 100 << 20
    finally:
        started.communicate(b"\n")


@pytest.mark.parametrize(("sent", "is_final"), [(signal.SIGKILL, False), (signal.SIGSEGV, True)])
def test_a_crash_is_told_by_its_signal(tmp_path, sent, is_final):
    held = Held(tmp_path / "runs", "a")
    child = Child(one(tmp_path / "runs"), now_ns=NOW_NS, limits=Limits())
    try:
        until(held.reached, "the reader")
        os.kill(child._process.pid, sent)
        held.release()  # most signals wait for that
        result = finished(child)
    finally:
        child.close()
    assert sent.name in result.rows[0]["problem"]
    assert result.is_final == is_final


def test_an_error_of_ours_is_told_by_its_last_line(tmp_path):
    sample(tmp_path / "runs", "a")
    # A time that is no number stands for a mistake in the analysis.
    child = Child(one(tmp_path / "runs"), now_ns="noon", limits=Limits())
    try:
        result = finished(child)
    finally:
        child.close()
    assert result.rows[0]["status"] == "error"
    assert "fault of roundk" in result.rows[0]["problem"]
    assert "TypeError: unsupported operand" in result.rows[0]["problem"]
    assert result.is_final


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("warning\nTraceback (most recent call last):\n  File x\n    y\nOSError: full\n", "OSError: full"),
        ("Traceback (most recent call last):\n  File x\nValueError: two\nlines\n", "ValueError: two"),
        ("", ""),
    ],
)  # fmt: skip
def test_the_line_that_names_an_error(said, error):
    assert process._error(said) == error


def test_a_child_dies_with_its_parent(tmp_path):
    held = Held(tmp_path / "runs", "a")
    code = textwrap.dedent(f"""
        from roundk.analyze.batch import process
        from roundk.analyze.batch.discover import discover
        run = next(iter(discover([{str(tmp_path / "runs")!r}]).runs))
        process.judged(run, now_ns=0, limits=process.Limits())
    """)
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    started = subprocess.Popen([sys.executable, "-c", code], env=env)
    try:
        until(held.reached, "the reader")
        assert children(str(tmp_path))
    finally:
        started.kill()
        started.wait()
    until(held.left, "the end of the child")
    until(lambda: not children(str(tmp_path)), "the end of the child's process")


def test_a_child_whose_parent_went_before_it_could_ask_ends_at_once(tmp_path):
    spec, result = tmp_path / "run.json", tmp_path / "result.json"
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    command = [sys.executable, "-P", "-m", "roundk.analyze.batch.child", str(spec), str(result), str(gone.pid)]
    assert subprocess.run(command, check=False, timeout=60).returncode == -signal.SIGKILL


def test_no_room_for_a_scratch_folder_is_an_error_in_words(tmp_path, monkeypatch):
    sample(tmp_path / "runs", "a")
    monkeypatch.setattr(process.tempfile, "tempdir", str(pathlib.Path(tmp_path / "missing")))
    with pytest.raises(process.RoundkError, match="a: no process can be started for it"):
        Child(one(tmp_path / "runs"), now_ns=NOW_NS, limits=Limits())
