"""`roundk run` in front of a command changes nothing for the command, nor for whoever started it."""

from __future__ import annotations

import signal
import sys

import harness
import pytest

PYTHON = sys.executable


@pytest.mark.parametrize("code", [0, 7])
def test_the_exit_code_is_the_commands(start, tmp_path, code):
    assert start([PYTHON, "-c", f"raise SystemExit({code})"], dir=tmp_path / "run").wait().code == code


def test_a_command_killed_by_a_signal_gives_what_a_shell_gives(start, tmp_path):
    command = [PYTHON, "-c", "import os; os.kill(os.getpid(), 9)"]
    assert start(command, dir=tmp_path / "run").wait().code == 128 + signal.SIGKILL


def test_a_command_that_is_not_there_gives_what_a_shell_gives(start, tmp_path):
    ended = start(["./no-such-command"], dir=tmp_path / "run").wait()
    assert ended.code == 127
    assert "no-such-command" in ended.stderr


def test_arguments_output_and_streams_are_the_commands_own(start, tmp_path):
    code = "import sys; print(sys.argv[1:]); print('to stderr', file=sys.stderr); sys.exit(3)"
    ended = start([PYTHON, "-c", code, "--dir", "a b", "--", "--help"], dir=tmp_path / "run").wait()
    assert ended.code == 3
    assert ended.stdout == "['--dir', 'a b', '--', '--help']\n"
    assert "to stderr" in ended.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_signals_are_forwarded(start, tmp_path, number):
    ready = tmp_path / "ready"
    code = f"""
import pathlib, signal, sys, time
def stop(number, frame):
    print("got", number, flush=True)
    sys.exit(40)
signal.signal({int(number)}, stop)
pathlib.Path({str(ready)!r}).touch()
time.sleep(100)
"""
    job = start([PYTHON, "-c", code], dir=tmp_path / "run")
    job.wait_for(ready.exists, "the command is ready")
    job.process.send_signal(number)
    ended = job.wait(30)
    assert ended.stdout == f"got {int(number)}\n"
    assert ended.code == 40


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_launcher_ends_a_torchrun_job(start, tmp_path, number):
    env = {"FAULT": "sleep", "FAULT_RANK": "1", "FAULT_ROUND": "3"}
    # torchrun's heartbeat, every 5 s, is a daemon thread: where it returns from the store while the interpreter shuts
    # down, C++ is unwound through a noexcept frame and torchrun aborts (-6), with roundk or without.
    launcher, module, name, *rest = harness.torchrun(harness.SCRIPTS / "manual.py", ranks=2)
    command = [launcher, module, name, "--rdzv-conf", "keep_alive_interval=3600", *rest]
    job = start(command, dir=tmp_path / "run", env={**env, "GROUP_TIMEOUT_S": "100"})
    pids = job.wait_until_plain(ranks=2)
    job.process.send_signal(number)
    with_roundk = job.wait(60).code
    assert not set(pids.values()) & set(job.pids()), "ranks left behind"

    job = start(command, roundk=False, env={**env, "GROUP_TIMEOUT_S": "100"})
    job.wait_until_plain(ranks=2)
    job.process.send_signal(number)
    code = job.wait(60).code
    assert with_roundk == (code if code >= 0 else 128 - code)


def test_the_users_own_sitecustomize_still_runs(start, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import sys\nsys.user_was_here = 'yes, by ' + __file__\n")
    code = "import sys, os; print(sys.user_was_here); print(os.environ['PYTHONPATH'].split(os.pathsep)[-1])"
    ended = start([PYTHON, "-c", code], dir=tmp_path / "run", env={"PYTHONPATH": str(own)}).wait()
    assert ended.code == 0, ended.stderr
    assert ended.stdout.splitlines() == [f"yes, by {own / 'sitecustomize.py'}", str(own)]


def test_a_failing_sitecustomize_of_the_user_fails_as_without_us(start, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("raise RuntimeError('the user broke this')\n")
    ended = start([PYTHON, "-c", "print('still runs')"], dir=tmp_path / "run", env={"PYTHONPATH": str(own)}).wait()
    assert (ended.code, ended.stdout) == (0, "still runs\n")
    assert "the user broke this" in ended.stderr


def test_a_command_without_torch_leaves_no_rank_files(start, tmp_path):
    run_dir = tmp_path / "run"
    code = "import sys; print(sorted(m for m in sys.modules if m.split('.')[0] in ('torch', 'pyarrow', 'polars')))"
    ended = start([PYTHON, "-c", code], dir=run_dir).wait()
    assert (ended.code, ended.stdout) == (0, "[]\n")
    assert list(run_dir.rglob("rank-*")) == []
    assert list(run_dir.rglob("launcher-*.jsonl"))


DATALOADER = """
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, get_worker_info

class Pids(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        import os
        assert get_worker_info() is not None
        return os.getpid()

if __name__ == "__main__":
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(8))
    workers = set()
    for method in ("fork", "spawn"):
        loader = DataLoader(Pids(), num_workers=2, multiprocessing_context=method)
        workers |= {int(pid) for batch in loader for pid in batch}
        dist.all_reduce(torch.ones(8))
    print(len(workers), flush=True)
    dist.destroy_process_group()
"""


def test_dataloader_workers_leave_no_files(start, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(DATALOADER)
    run_dir = tmp_path / "run"
    ended = start(harness.torchrun(script, ranks=1), dir=run_dir).wait()
    assert (ended.code, ended.stdout) == (0, "4\n"), ended.stderr
    (segment,) = run_dir.rglob("rank-*.arrow")
    assert segment.name.startswith("rank-00000-")
    assert len(list(run_dir.rglob("rank-*.jsonl"))) == 1
    assert harness.analyze(run_dir).code == 0


def test_a_job_whose_run_directory_cannot_be_made_runs_all_the_same(start, tmp_path):
    (tmp_path / "file").write_text("no folder")
    ended = start(harness.torchrun(harness.SCRIPTS / "manual.py", ranks=2), dir=tmp_path / "file" / "run").wait()
    assert ended.code == 0, ended.stderr
    assert ended.stdout.count("done") == 2
    warnings = [line for line in ended.stderr.splitlines() if "roundk" in line.lower()]
    assert any("file" in line for line in warnings), ended.stderr


INSTALL = """
import sys
import torch, torch.distributed as dist
from roundk.hooks import install

install(sys.argv[1])
dist.init_process_group("gloo")
for _ in range(5):
    dist.all_reduce(torch.ones(8))
dist.destroy_process_group()
"""


def test_install_in_code_records_without_the_launcher(start, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(INSTALL)
    run_dir = tmp_path / "run"
    ended = start(harness.torchrun(script, run_dir, ranks=2), roundk=False).wait()
    assert ended.code == 0, ended.stderr
    analysis = harness.analyze(run_dir)
    assert analysis.report["coverage"]["ranks_seen"] == 2
    assert (analysis.code, analysis.verdict["structure"]) == (0, "HEALTHY")


def test_without_roundk_an_installed_roundk_records_nothing(start, tmp_path):
    ended = start(harness.torchrun(harness.SCRIPTS / "manual.py", ranks=2), roundk=False).wait()
    assert ended.code == 0
    assert [path for path in tmp_path.rglob("*") if path.suffix in {".arrow", ".jsonl"}] == []
    assert "roundk" not in ended.stderr
    assert ended.stdout.count("done") == 2
