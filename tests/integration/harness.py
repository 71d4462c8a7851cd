"""Starts real jobs under `roundk run`, waits for them with a limit, and leaves no process behind."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field

SCRIPTS = pathlib.Path(__file__).parent / "scripts"
LIMIT_S = 150
"""No job here runs longer on an idle machine than a third of this."""
PLAIN_S = 2.0
"""So long after every rank began the fault's round a hang is plain: a round takes milliseconds."""
ROUNDK = (sys.executable, "-m", "roundk")
_TOKEN = "ROUNDK_TEST_JOB"


def torchrun(script, *arguments, ranks=4):
    """The command a user would type, by the interpreter of the tests."""
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
    return [*launcher, str(script), *map(str, arguments)]


@dataclass
class Ended:
    """A job that has ended, and what it printed."""

    code: int
    stdout: str
    stderr: str


@dataclass
class Job:
    """A running job. Its processes, grandchildren in sessions of their own too, are found by a token they inherit."""

    command: list[str]
    cwd: pathlib.Path
    env: dict[str, str] = field(default_factory=dict)
    roundk: bool = True
    dir: pathlib.Path | None = None

    def __post_init__(self):
        self.token = uuid.uuid4().hex
        self.marks = self.cwd / f"marks-{self.token}"
        self.marks.mkdir()
        wrap = [*ROUNDK, "run", *(("--dir", str(self.dir)) if self.dir else ()), "--"] if self.roundk else []
        env = {**os.environ, "MARKS": str(self.marks), **self.env, _TOKEN: self.token}
        self.out = self.cwd / f"stdout-{self.token}"
        self.err = self.cwd / f"stderr-{self.token}"
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [*wrap, *self.command],
                cwd=self.cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def wait(self, limit_s=LIMIT_S):
        try:
            code = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.kill()
            message = f"no end after {limit_s} s: {self.command}\n{self.out.read_text()}\n{self.err.read_text()}"
            raise AssertionError(message) from None
        return Ended(code, self.out.read_text(errors="replace"), self.err.read_text(errors="replace"))

    def wait_for(self, condition, what, limit_s=LIMIT_S):
        """Poll until the condition holds; it is an error if the job ends before."""
        end = time.monotonic() + limit_s
        while not (result := condition()):
            assert time.monotonic() < end, f"{what}: not within {limit_s} s\n{self.err.read_text()}"
            assert self.process.poll() is None, f"{what}: the job ended before\n{self.err.read_text()}"
            time.sleep(0.05)
        return result

    def wait_until_plain(self, ranks=4):
        """Wait until every rank began the round of the fault and the hang is plain; the pids by rank."""
        self.wait_for(lambda: len(list(self.marks.iterdir())) == ranks, "all ranks at the fault")
        time.sleep(PLAIN_S)
        return {int(path.name.removeprefix("rank")): int(path.read_text()) for path in self.marks.iterdir()}

    def pids(self):
        """Every process that carries the job's token, the launcher itself included."""
        wanted = f"{_TOKEN}={self.token}".encode()
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if wanted in (entry / "environ").read_bytes().split(b"\0"):
                        yield int(entry.name)

    def kill(self, *, but_launcher=False):
        """SIGKILL to all that is left, until nothing is; or to all but the launcher, which then sees it."""
        end = time.monotonic() + 20
        while pids := [pid for pid in self.pids() if not (but_launcher and pid == self.process.pid)]:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.poll()
            assert time.monotonic() < end, f"these do not die: {pids}"
            time.sleep(0.02)
        self.process.wait(20)


@dataclass(frozen=True)
class Analysis:
    """What `roundk analyze --format json` said."""

    code: int
    report: dict

    @property
    def verdict(self):
        return self.report["verdicts"][0]


def analyze(path, *options):
    command = [*ROUNDK, "analyze", "--format", "json", *options, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.stdout, done.stderr
    return Analysis(done.returncode, json.loads(done.stdout))


def culprits_of(folder):
    """The ranks that the analysis of the run in a folder blames, in this process; none where there is no run."""
    from click.testing import CliRunner

    from roundk.analyze.commands.analyze import command

    run = pathlib.Path(folder) / "run"
    if not run.exists():
        return set()
    done = CliRunner().invoke(command, ["--format", "json", str(run)])
    return {rank for verdict in json.loads(done.stdout)["verdicts"] for rank in verdict["culprit_ranks"]}
