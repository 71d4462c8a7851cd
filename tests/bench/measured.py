"""A command in a process of its own, with what it took: CPU seconds and memory as the kernel counts them."""

from __future__ import annotations

import os
import resource
import subprocess
import tempfile
from dataclasses import dataclass


@dataclass(frozen=True)
class Run:
    """How a command ended and what it took.

    Attributes:
        code: Exit code; negative: the signal that ended it.
        cpu_s: User and system time.
        peak_mib: Largest resident set.
        out: Standard output and standard error.
    """

    code: int
    cpu_s: float
    peak_mib: float
    out: str


def run(command, cpu_limit_s=None, env=None):
    """Run a command to its end, or to its limit of CPU time."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env)
        if cpu_limit_s is not None:
            resource.prlimit(process.pid, resource.RLIMIT_CPU, (cpu_limit_s, cpu_limit_s + 5))
        _, state, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(state)
        log.seek(0)
        out = log.read().decode("utf-8", "replace")
    return Run(process.returncode, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, out)


def least(command, times, **how):
    """Of several runs the one that took the least: what else a machine does can only add."""
    return min((run(command, **how) for _ in range(times)), key=lambda one: one.cpu_s)
