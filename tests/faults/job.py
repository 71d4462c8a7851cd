"""The driver's side of a job: starts it in the lab's namespaces, watches its rounds, ends it."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import lab
import pyarrow as pa
from board import Board, Order, State

LOOK_S = 0.02
START_S = 60
"""Ranks that have not met by then never will: it takes 0.3 s on an idle machine, and a minute is a loaded one."""
TIMEOUT_S = 90
"""Of the process group: no fault here lasts so long, and the records are copied while the ranks still wait."""
STALL_S = 1.5
"""When a rank writes its stacks: between the rounds of a slow job, which take a second, and the copy of a hang."""
PATIENCE_S = 60
"""For what takes a second on an idle machine."""


class Zygote:
    """The process that starts jobs; see `ranks`. Everything that it started ends with it."""

    def __init__(self):
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("ROUNDK_", "TORCHELASTIC"))}
        self._process = subprocess.Popen(
            [sys.executable, str(pathlib.Path(__file__).with_name("ranks.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env={**clean, "OMP_NUM_THREADS": "1"},
        )
        self._answer("ready")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()

    def ask(self, request):
        """Send a request and give the answer."""
        with contextlib.suppress(BrokenPipeError):  # the answer tells
            print(json.dumps(request), file=self._process.stdin, flush=True)
        return json.loads(self._answer())

    def _answer(self, wanted=None):
        line = self._process.stdout.readline().strip()
        if not line or wanted not in (None, line):
            raise lab.LabError(f"the process that forks ranks said {line!r} and is {self._process.poll()}")
        return line


class Job:
    """A job of `hosts` times `per_host` ranks. A context manager: nothing of it is left afterwards."""

    def __init__(self, zygote, scratch, *, hosts=4, per_host=1, seed=0, pause_s=(0.0, 0.02), cpu_s=0.0, mib=4):
        """Start the job.

        Args:
            zygote: Who starts it.
            scratch: An empty folder; the run directory is `run` in it, the ranks' output is beside that.
            hosts, per_host: Ranks are numbered by host.
            seed: Of the ranks' pauses.
            pause_s: Least and longest pause before a round.
            cpu_s: Work of the processor before a round.
            mib: Size of a round's all_reduce.
        """
        self.hosts, self.per_host, self.ranks = hosts, per_host, hosts * per_host
        self.run = scratch / "run"
        self._scratch = scratch
        self._zygote = zygote
        self.board = Board(scratch / "board", self.ranks, new=True)
        self._codes = {}
        self._hosts = zygote.ask(
            {
                "run": str(self.run),
                "scratch": str(scratch),
                "hosts": hosts,
                "ranks": self.ranks,
                "seed": seed,
                "timeout_s": TIMEOUT_S,
                "stall_s": STALL_S,
                "pause_s": pause_s,
                "cpu_s": cpu_s,
                "elements": mib << 18,
            }
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        self.board.close()

    def pid(self, rank):
        """A rank's process."""
        return self.board.pid(rank)

    def ranks_of(self, host):
        """The ranks on a host."""
        return range(host * self.per_host, (host + 1) * self.per_host)

    @property
    def ended(self):
        """Whether every host's process has ended."""
        waiting = [pid for pid in self._hosts if pid not in self._codes]
        for pid, code in zip(waiting, self._zygote.ask({"poll": waiting}), strict=True):
            if code is not None:
                self._codes[pid] = code
        return len(self._codes) == len(self._hosts)

    def wait_for(self, condition, what, limit_s=PATIENCE_S):
        """Wait until a condition holds.

        Raises:
            LabError: it does not hold in time.
        """
        until = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > until:
                raise lab.LabError(f"{what}: not within {limit_s} s; rounds {self.board.rounds}\n{self.output()}")
            time.sleep(LOOK_S)

    def wait_for_rounds(self, count):
        """Wait until all ranks have begun so many more rounds."""
        wanted = min(self.board.rounds) + count
        self.wait_for(lambda: self._must_live() and min(self.board.rounds) >= wanted, f"{count} more rounds")

    @property
    def failed(self):
        """Ranks whose program raised."""
        return [rank for rank in range(self.ranks) if self.board.state(rank) == State.FAILED]

    @property
    def progress(self):
        """What changes as long as anything of the job goes on."""
        return self.board.rounds, self.failed, sorted(self._codes)

    def _must_live(self):
        if self.failed:
            raise lab.LabError(f"ranks {self.failed} failed\n{self.output()}")
        return True

    def wait_for_samples(self):
        """Wait until every host's links have been sampled: a fault before that would leave no change to see.

        Raises:
            LabError: a host has no samples.
        """
        wanted = {lab.host_name(host) for host in range(self.hosts)}
        self.wait_for(lambda: sampled_hosts(self.run) == wanted, "a first sample of every host's links", START_S)

    def finish(self):
        """Have the job end in order, and wait for it."""
        self.board.stop()
        self.wait_until_ended()

    def wait_until_ended(self):
        """Wait for the end of all hosts.

        Raises:
            LabError: they do not end, or a sampler failed.
        """
        self.wait_for(lambda: self.ended, "the end of the job")
        if bad := {pid: code for pid, code in self._codes.items() if code}:
            raise lab.LabError(f"samplers failed: {bad}\n{self.output()}")

    def snapshot(self, where):
        """Copy the run directory as it is now, while the ranks hang: what kills them later is not to be seen in it."""
        shutil.copytree(self.run, where)
        return time.time_ns()

    def kill(self):
        """End everything of the job at once: a host's children die with it, and a stopped one does not run again."""
        for pid in self._hosts:
            if pid not in self._codes:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.wait_for(lambda: self.ended, "the end of the job's processes")
        self.wait_for(lambda: not any(map(self._runs, range(self.ranks))), "the end of the job's ranks")

    def _runs(self, rank):
        pid = self.pid(rank)
        try:
            return bool(pid) and (pathlib.Path("/proc") / str(pid) / "comm").exists()
        except OSError:
            return False

    def order(self, rank, order, amount_s=0.0):
        """Have a rank make a fault; gives the function that takes it back."""
        self.board.order(rank, order, amount_s)
        return lambda: self.board.order(rank, Order.NONE)

    def output(self):
        """The last lines of what hosts and ranks printed."""
        told = []
        for path in sorted(self._scratch.glob("*.out")):
            lines = path.read_text(errors="replace").splitlines()[-4:]
            told += [f"{path.name}: {line}" for line in lines]
        return "\n".join(told)


def sampled_hosts(run):
    """Names of the hosts whose links have been sampled so far."""
    return {path.parent.name for path in run.glob("*/links-*-*.arrow") if _has_rows(path)}


def _has_rows(path):
    with pa.memory_map(str(path)) as file:
        return bool(pa.ipc.open_file(file).read_all()["state"][0].as_py())
