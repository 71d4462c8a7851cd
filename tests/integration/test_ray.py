"""`roundk batch --engine ray` on a real cluster of two nodes: the same table, whatever dies meanwhile."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

import polars as pl
import pytest
from held import Held, children, parent, sample, until

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")

SAMPLES = ("killed_rank", "never_entered", "stop", "link_flap")
LIMIT_S = 120
CLUSTER = pathlib.Path(__file__).parent / "scripts" / "ray_cluster.py"


@pytest.fixture
def cluster():
    """Address and raylets of a cluster; nothing of it is left after the test."""
    # Sockets lie below it, whose paths end at 107 bytes: pytest's own folders are too deep.
    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")
    started = subprocess.Popen(
        [sys.executable, str(CLUSTER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "RAY_TMPDIR": folder, "TMPDIR": folder},
    )
    try:
        yield json.loads(started.stdout.readline())
    finally:
        started.stdin.close()
        started.stdout.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            started.wait(30)
        started.kill()
        started.wait()
        for pid in _of(folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def _of(folder):
    """Processes with a folder in their command or environment."""
    found = []
    for process in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            told = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
            if folder.encode() in told:
                found.append(int(process.name))
    return found


def start(folder, *more):
    command = [sys.executable, "-m", "roundk", "batch", "runs", *more]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def table(folder):
    return pl.read_parquet(folder / "runs.parquet")


def below_of(raylet):
    """What a raylet has started: its workers, without what these started."""
    return [int(pid) for pid in pathlib.Path(f"/proc/{raylet}/task/{raylet}/children").read_text().split()]


def raylet(pid):
    """The raylet that an analysis is below."""
    return parent(parent(pid))


def test_a_dead_worker_and_a_dead_node_lose_nothing(tmp_path, cluster):
    runs = tmp_path / "runs"
    held = {name: Held(runs, name) for name in ("0-held", "1-held")}
    for number, name in enumerate(SAMPLES, 2):
        sample(runs, f"{number}-{name}", name)
    batch = start(tmp_path, "--out", "ray", "--engine", "ray", "--ray-address", cluster["address"], "--format", "json")
    try:
        # Both nodes are in the middle of a run.
        for one in held.values():
            until(one.reached, "a worker in the run")
        (first,), (second,) = (children(f'"{name}"') for name in held)
        assert {raylet(first), raylet(second)} == {cluster["head"], cluster["second"]}

        os.kill(parent(first), signal.SIGKILL)
        until(held["0-held"].left, "the end of the analysis with its worker")
        until(held["0-held"].reached, "another worker in the same run")

        # By now one node has judged all others, and both hold a run again.
        below = {name: raylet(children(f'"{name}"')[0]) for name in held}
        assert set(below.values()) == {cluster["head"], cluster["second"]}
        lost, kept = sorted(held, key=lambda name: below[name] == cluster["head"])
        for pid in [cluster["second"], *below_of(cluster["second"])]:
            os.kill(pid, signal.SIGKILL)
        until(held[lost].left, "the end of the analysis with its node")
        held[kept].release()
        until(held[lost].reached, "a worker of the other node in the same run")
        held[lost].release()
        stdout, stderr = batch.communicate(timeout=LIMIT_S)
    finally:
        batch.kill()
        batch.communicate()
    assert batch.returncode == 0, stderr
    assert "6 of 6 runs: 6 judged; the table is in ray/runs.parquet" in stderr
    json.loads(stdout)

    local = start(tmp_path, "--out", "local")
    _, stderr = local.communicate(timeout=LIMIT_S)
    assert local.returncode == 0, stderr
    # Of those that were held, `run.json` was a pipe when the first batch listed the files.
    told, expected = (
        table(tmp_path / out).with_columns(
            fingerprint=pl.when(pl.col("run").str.ends_with("held")).then(pl.lit("")).otherwise("fingerprint")
        )
        for out in ("ray", "local")
    )
    assert told["run"].n_unique() == len(SAMPLES) + len(held)
    assert told["problem"].null_count() == told.height
    assert told.equals(expected)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere.invalid:6379", "nonsense"])
def test_no_cluster_is_an_error_in_words(tmp_path, address):
    sample(tmp_path / "runs", "a")
    batch = start(tmp_path, "--engine", "ray", "--ray-address", address)
    _, said = batch.communicate(timeout=LIMIT_S)
    assert batch.returncode == 2
    assert f"no Ray cluster can be used at {address}" in said
    assert "Traceback" not in said
