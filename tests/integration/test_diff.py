"""`roundk diff` of jobs that `roundk run` recorded: what was changed between them is told, and no secret is written."""

from __future__ import annotations

import json
import subprocess

import harness
import pytest

STEPS = 40
SECRET = "hunter2-that-nobody-may-read"
PLAIN = {"STEPS": str(STEPS), "STEP_S": "0.03", "NCCL_IB_TIMEOUT": "22", "NCCL_IB_HCA": "mlx5_0"}
CHANGED = {
    "STEPS": str(STEPS),
    "STEP_S": "0.09",
    "EXTRA_CALL": "1",
    "NCCL_IB_TIMEOUT": "18",
    "NCCL_IB_HCA": "mlx5_0",
    "ODD_RANK": "1",
    "UCX_TLS": "tcp",
    "NCCL_API_KEY": SECRET,
    "TORCH_PROXY": f"http://me:{SECRET}@proxy/",
    "MY_TOKEN": SECRET,
}


def diff(*arguments):
    command = [*harness.ROUNDK, "diff", "--format", "json", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=harness.LIMIT_S, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def rows(told, *, without=()):
    return {row["name"]: (row["a"], row["b"]) for row in told["differs"] if row["topic"] not in without}


@pytest.fixture
def record(start, tmp_path):
    def record(name, env, *options):
        script = harness.SCRIPTS / "stepping.py"
        command = [*harness.ROUNDK, "run", "--dir", str(tmp_path / name), *options, "--"]
        job = start([*command, *harness.torchrun(script, ranks=2)], roundk=False, env=env)
        ended = job.wait()
        assert ended.code == 0, ended.stderr
        return tmp_path / name

    return record


def test_what_was_changed_is_told_and_no_secret_is_written(record):
    plain, changed = record("plain", PLAIN), record("changed", CHANGED, "--stall-s", "20")
    code, told = diff(plain, changed)
    assert code == 1
    found = rows(told)
    assert found["NCCL_IB_TIMEOUT"] == ("22", "18")
    assert found["UCX_TLS"] == ("not set", "tcp")
    assert found["NCCL_IB_HCA"] == ("mlx5_0", "mlx5_0 on rank 0, mlx5_1 on rank 1")
    assert found["--stall-s"] == ("30", "20")
    # A step has an all_reduce for weight and bias each, 16 x 16 and 16 numbers of 4 bytes, in both.
    assert found["barrier, default_pg"] == ("-", "1 a step")
    assert "all_reduce, default_pg" in told["same"]["calls"]
    first = "first other call: number 3 of default_pg, ranks 0, 1"
    assert (found[first][0].split()[0], found[first][1].split()[0]) == ("all_reduce", "barrier")
    (_, slower) = found["time of a step"]
    assert float(slower.split(": ")[1].removesuffix(" x A")) > 1.5
    assert {"python", "torch", "roundk", "kernel"} <= set(told["same"]["versions"])
    assert set(found) - {"TORCH_PROXY"} == {
        "NCCL_IB_TIMEOUT",
        "UCX_TLS",
        "NCCL_IB_HCA",
        "--stall-s",
        "barrier, default_pg",
        first,
        "time of a step",
        *(name for name in found if name.startswith("barrier at ")),
    }
    written = [path.read_bytes() for path in changed.rglob("*") if path.is_file()]
    assert any(b"UCX_TLS" in data for data in written)
    assert not [data for data in written if SECRET.encode() in data]
    assert SECRET not in json.dumps(told)


def test_two_runs_of_one_job_differ_in_nothing_but_perhaps_their_pace(record):
    one, two = record("one", PLAIN), record("two", PLAIN)
    _, told = diff(one, two)
    assert rows(told, without={"step time"}) == {}
    assert {"NCCL_IB_TIMEOUT", "NCCL_IB_HCA", "--max-mb"} <= set(told["same"]["settings"])
    assert (told["a"]["status"], told["b"]["status"]) == ("healthy", "healthy")


def test_a_recording_of_before_tells_less_and_that_is_no_difference(record):
    """Without the line of its settings a side file is one of an older recorder."""
    new, old = record("new", PLAIN), record("old", PLAIN)
    for path in old.glob("*/rank-*.jsonl"):
        lines = path.read_bytes().split(b"\n")
        path.write_bytes(b"\n".join(line for line in lines if b'"kind":"environment"' not in line))
    _, told = diff(new, old)
    assert rows(told, without={"step time"}) == {}
    (missing,) = [one for one in told["not_recorded"] if "NCCL_IB_TIMEOUT" in one["name"]]
    assert missing["where"] == "B"
    assert "NCCL_IB_HCA" in told["same"]["settings"]
    assert harness.analyze(old).report["status"] == "healthy"


def test_samples(tmp_path):
    samples = harness.SCRIPTS.parents[2] / "sample_traces"
    code, told = diff(samples / "healthy_ddp", samples / "never_entered")
    # The same job with a rank that is held up inside: all that was set is the same, and the calls up to there.
    assert (code, told["differs"]) == (0, [])
    assert (told["a"]["structure"], told["b"]["structure"]) == ("HEALTHY", "RANK_NOT_ENTERED")
    code, told = diff(samples / "healthy_ddp", samples / "link_flap")
    assert code == 1
    assert rows(told)["only in one"] == ("node-a", "h0, h1, h2, h3")


def test_what_cannot_be_read_is_an_error_in_words(tmp_path):
    (tmp_path / "empty").mkdir()
    samples = harness.SCRIPTS.parents[2] / "sample_traces"
    command = [*harness.ROUNDK, "diff", str(samples / "healthy_ddp"), str(tmp_path / "empty")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=harness.LIMIT_S, check=False)
    assert done.returncode == 2
    assert "no file here" in done.stderr
