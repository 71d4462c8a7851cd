"""Runs `roundk batch` as a user does, in a process of its own, and reads what it leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import polars as pl

POLL_S = 0.05
LIMIT_S = 1800
"""Longest that a batch may take before a test gives up on it."""


def command(runs, out, *more):
    return [sys.executable, "-m", "roundk", "batch", str(runs), "--out", str(out), *map(str, more)]


def batch(runs, out, *more):
    """A whole batch: the table's rows, the report, and what it told while it went."""
    done = subprocess.run(
        command(runs, out, "--format", "json", *more), capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    if done.returncode != 0:
        msg = f"exit code {done.returncode}: {done.stderr[-2000:]}"
        raise RuntimeError(msg)
    return rows(out), json.loads(done.stdout), done.stderr


def rows(out):
    return pl.read_parquet(out / "runs.parquet").to_dicts()


def finished(out):
    """The files of finished runs, each with what tells whether it was written anew."""
    return {path.name: path.stat().st_mtime_ns for path in (out / "done").glob("*.json")}


def kill_half_way(runs, out, count, *more):
    """Begin a batch and kill it and its processes once `count` runs are finished; give what was finished then."""
    process = subprocess.Popen(
        command(runs, out, *more), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + LIMIT_S
    try:
        while len(finished(out)) < count:
            if process.poll() is not None or time.monotonic() > deadline:
                msg = f"it ended, with code {process.poll()}, before {count} runs were finished"
                raise RuntimeError(msg)
            time.sleep(POLL_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return finished(out)
