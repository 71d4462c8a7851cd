"""A process per run, watched from outside: what a run does to its process stays its own.

Each child is a fresh interpreter, and not a fork of one that has loaded the analysis. Of 20 recorded runs a fresh one
took 0.85 s of CPU time each and a fork 0.24 s (two cores, byte code cached): 300 runs take two minutes more on two
cores. But polars starts a thread at its import (with pyarrow's and numpy's there are six), and says of itself that it
may hang after a fork (https://docs.pola.rs/user-guide/misc/multiprocessing/): here that would look like a run that
takes too long.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Final

from roundk.analyze.batch.judge_run import Result, failed
from roundk.analyze.batch.run import Run
from roundk.analyze.phrases import signal_name
from roundk.tracer.errors import RoundkError

TIME_LIMIT_S: Final = 300.0
"""A run directory of 16,384 ranks takes about a minute to read."""
MEMORY_LIMIT_MB: Final = 4096
POLL_S: Final = 0.05
"""How often a child is looked at. Memory that it takes faster than the limit allows within that is not noticed."""

_MB: Final = 1 << 20
_RESIDENT: Final = re.compile(rb"^Rss(?:Anon|Shmem):\s+(\d+) kB", re.MULTILINE)
"""What a process holds in memory, files that it maps left out: those the kernel can drop."""
_ACCIDENTS: Final = ("OSError", "MemoryError", "BlockingIOError")
"""Errors of the machine (a full disk) rather than of the run: the next try may go well."""
_SHOWN: Final = 500
"""Characters of an error's message that the table keeps."""


@dataclass(frozen=True)
class Limits:
    """What a run may take.

    Attributes:
        time_s: Seconds from the start of its process, fetching included.
        memory_mb: MiB in memory, its processes together.
        threads: Threads for each pool of the libraries.
    """

    time_s: float = TIME_LIMIT_S
    memory_mb: int = MEMORY_LIMIT_MB
    threads: int = 1


class Child:
    """The process of a run, from its start to `close`."""

    def __init__(
        self, run: Run, *, now_ns: int, limits: Limits, prefix: str = "roundk-batch-", cwd: str | None = None
    ) -> None:
        """Start it.

        Args:
            run: What to judge.
            now_ns: The time of the batch, Unix ns.
            limits: What it may take.
            prefix: Beginning of the name of its scratch folder.
            cwd: Folder that its paths are relative to; None, or not here: the current one.

        Raises:
            RoundkError: No folder or process can be made for it.
        """
        self.run = run
        self._limits = limits
        self._folder: pathlib.Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._folder = pathlib.Path(tempfile.mkdtemp(prefix=prefix))
            self._start(self._folder, now_ns, cwd if cwd is not None and pathlib.Path(cwd).is_dir() else None)
        except OSError as error:
            self.close()
            raise RoundkError(f"{run.name}: no process can be started for it: {error}") from None
        self._deadline = time.monotonic() + limits.time_s

    def _start(self, folder: pathlib.Path, now_ns: int, cwd: str | None) -> None:
        spec = folder / "run.json"
        spec.write_text(json.dumps({"run": asdict(self.run), "now_ns": now_ns}), encoding="utf-8")
        threads = str(self._limits.threads)
        pools = dict.fromkeys(("POLARS_MAX_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), threads)
        # -P: a folder with a `json.py` in which the batch is started shadows nothing.
        command = [sys.executable, "-P", "-m", "roundk.analyze.batch.child"]
        with (folder / "said").open("wb") as said:
            self._process = subprocess.Popen(
                [*command, str(spec), str(folder / "result.json"), str(os.getpid())],
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env={**os.environ, **pools, "TMPDIR": str(folder)},
                start_new_session=True,  # a Ctrl-C is its parent's business
            )

    def poll(self) -> Result | None:
        """What came of it; None: it is still at work."""
        assert self._process is not None
        code = self._process.poll()
        if code is not None:
            return self._result(code)
        if time.monotonic() >= self._deadline:
            return self._over(f"ended at its time limit of {self._limits.time_s:g} s; --time-limit-s sets another")
        if _resident_bytes(self._process.pid) > self._limits.memory_mb * _MB:
            return self._over(
                f"ended at its memory limit of {self._limits.memory_mb} MiB; --memory-limit-mb sets another"
            )
        return None

    def close(self) -> None:
        """End the process and what it started, and remove its folder."""
        if self._process is not None:
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _over(self, why: str) -> Result:
        return Result((failed(self.run, why),), is_final=False)

    def _result(self, code: int) -> Result:
        assert self._folder is not None
        if code == 0:
            told = json.loads((self._folder / "result.json").read_text(encoding="utf-8"))
            return Result(tuple(told["rows"]), is_final=told["is_final"])
        if code < 0:
            why = f"its analysis was killed by {signal_name(-code)}"
            if -code == signal.SIGKILL:
                why += ", and not by roundk: perhaps as the machine ran out of memory"
            # The kernel takes whom it likes; any other signal is of the process's own doing, and comes again.
            return Result((failed(self.run, why),), is_final=-code not in (signal.SIGKILL, signal.SIGTERM))
        said = (self._folder / "said").read_text(encoding="utf-8", errors="replace")
        error = _error(said.replace(f"{self._folder}/", "")) or f"exit code {code}"
        why = f"its analysis failed, which is a fault of roundk (`roundk analyze` shows where): {error}"
        return Result((failed(self.run, why[:_SHOWN]),), is_final=not error.startswith(_ACCIDENTS))


def judged(run: Run, *, now_ns: int, limits: Limits, cwd: str | None = None) -> Result:
    """Judge a run in a process of its own, and wait for it; see `Child`.

    Raises:
        RoundkError: No folder or process can be made for it.
    """
    child = Child(run, now_ns=now_ns, limits=limits, cwd=cwd)
    try:
        while (result := child.poll()) is None:
            time.sleep(POLL_S)
        return result
    finally:
        child.close()


def _error(said: str) -> str:
    """The line of a traceback that names the error: the first after it that is not indented; '' where there is none."""
    lines = said.rpartition("Traceback (most recent call last):")[2].splitlines()
    return next((line for line in lines if line.strip() and not line.startswith(" ")), "")


def _resident_bytes(pid: int) -> int:
    """What a process and those that it started hold in memory; 0 for one that is gone."""
    return sum(_own_bytes(one) for one in _family(pid))


def _family(pid: int) -> Iterator[int]:
    yield pid
    with contextlib.suppress(OSError):
        for thread in pathlib.Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                yield from _family(int(child))


def _own_bytes(pid: int) -> int:
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return 0
    return sum(int(kb) for kb in _RESIDENT.findall(status)) << 10
