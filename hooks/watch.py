"""What the launcher sees of the ranks on its host: their process state, and that they are gone.

Ranks are usually its grandchildren, so their exit codes are not its own to collect. A new kernel tells them
nevertheless (`pidfd`); a zombie's is readable until the parent collects it. Else a pid that is gone is noted as just
that.
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, NamedTuple

from roundk.hooks import pidfd
from roundk.tracer import rundir

if TYPE_CHECKING:
    from roundk.tracer.rundir import LineFile


class _Rank(NamedTuple):
    rank: int
    pid: int
    started_ticks: int | None
    pidfd: int | None

    def is_this(self, stat: tuple[str, int, int] | None) -> bool:
        """Whether a look at the pid saw this process and not a later one."""
        return stat is not None and self.started_ticks in (None, stat[1])


class Watch:
    """Follows the processes that have a side file in a host's folder, from the moment the watch is made on."""

    def __init__(self, folder: str, file: LineFile) -> None:
        self._folder = folder
        self._file = file
        self._old = set(rundir.rank_files(folder))
        self._ranks: dict[str, _Rank] = {}
        self._states: dict[str, str] = {}
        self._over: set[str] = set()

    @property
    def seen(self) -> int:
        """Processes seen so far."""
        return len(self._ranks)

    def left(self) -> int:
        """How many of them have left something in their files."""
        return sum(_size(os.path.join(self._folder, name)) > 0 for name in self._ranks)

    def look(self) -> bool:
        """Note what changed since the last look; True while any of the processes lives."""
        for name, (rank, pid) in rundir.rank_files(self._folder).items():
            if name not in self._ranks and name not in self._old:
                self._ranks[name] = _rank(rank, pid, os.path.join(self._folder, name))
        living = [name for name, rank in self._ranks.items() if self._look_at(name, rank)]
        return bool(living)

    def _look_at(self, name: str, rank: _Rank) -> bool:
        if name in self._over:
            return False
        before = self._states.get(name, "")
        stat = rundir.process_stat(rank.pid)
        state, code = "gone", None
        if stat is None or not rank.is_this(stat):
            code = pidfd.exit_code(rank.pidfd) if rank.pidfd is not None else None
        elif stat[0] in ("T", "t", "Z"):
            state = stat[0]
            code = _zombies_code(stat[2]) if state == "Z" else None
        else:
            state = "alive"  # running and sleeping alternate all the time, and tell nothing here
        if state != before and (before or state != "alive"):
            self._note(rank, state, code)
        self._states[name] = state
        if state == "gone" or code is not None or (state == "Z" and rank.pidfd is None):
            self._forget(name, rank)
        return state not in ("Z", "gone")

    def _forget(self, name: str, rank: _Rank) -> None:
        self._over.add(name)
        if rank.pidfd is not None:
            os.close(rank.pidfd)

    def _note(self, rank: _Rank, state: str, code: int | None) -> None:
        line = {"kind": "state", "time_ns": time.time_ns(), "rank": rank.rank, "pid": rank.pid, "state": state}
        if code is not None:
            line["code"] = code
        self._file.append(line)


def _rank(number: int, pid: int, path: str) -> _Rank:
    rank = _Rank(number, pid, _started(path), pidfd.open_(pid))
    if rank.pidfd is not None and not rank.is_this(rundir.process_stat(pid)):
        os.close(rank.pidfd)
        return rank._replace(pidfd=None)
    return rank


def _size(path: str) -> int:
    """Bytes in a file; 0 where there is none any more."""
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def _zombies_code(status: int) -> int | None:
    """None for 0: that is what a kernel says without ptrace rights."""
    return os.waitstatus_to_exitcode(status) if status else None


def _started(path: str) -> int | None:
    """Start time of a side file's process, in clock ticks since boot, from its second line."""
    try:
        with open(path, encoding="utf-8") as file:
            file.readline()
            ticks = json.loads(file.readline())["started_ticks"]
    except (OSError, ValueError, KeyError):
        return None
    return ticks if isinstance(ticks, int) else None
