"""What the launcher sees of the ranks on its host: their process state, and that they are gone.

Ranks are usually its grandchildren, so their exit codes are not its own to collect; a zombie's is readable until the
parent collects it. A pid that is gone is noted as just that.
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, NamedTuple

from roundk.tracer import rundir

if TYPE_CHECKING:
    from roundk.tracer.rundir import LineFile


class _Rank(NamedTuple):
    rank: int
    pid: int
    started_ticks: int | None


class Watch:
    """Follows the processes that have a side file in a host's folder, from the moment the watch is made on."""

    def __init__(self, folder: str, file: LineFile) -> None:
        self._folder = folder
        self._file = file
        self._old = set(rundir.rank_files(folder))
        self._ranks: dict[str, _Rank] = {}
        self._states: dict[str, str] = {}

    @property
    def seen(self) -> int:
        """Processes seen so far."""
        return len(self._ranks)

    def look(self) -> bool:
        """Note what changed since the last look; True while any of the processes lives."""
        for name, (rank, pid) in rundir.rank_files(self._folder).items():
            if name not in self._ranks and name not in self._old:
                self._ranks[name] = _Rank(rank, pid, _started(os.path.join(self._folder, name)))
        living = [name for name, rank in self._ranks.items() if self._look_at(name, rank)]
        return bool(living)

    def _look_at(self, name: str, rank: _Rank) -> bool:
        before = self._states.get(name, "")
        if before in ("Z", "gone"):
            return False
        stat = rundir.process_stat(rank.pid)
        if stat is None or (rank.started_ticks is not None and stat[1] != rank.started_ticks):
            state, status = "gone", None
        else:
            state, _, status = stat
        if state not in ("T", "t", "Z", "gone"):
            state = "alive"  # running and sleeping alternate all the time, and tell nothing here
        if state != before and (before or state != "alive"):
            self._note(rank, state, status)
        self._states[name] = state
        return state not in ("Z", "gone")

    def _note(self, rank: _Rank, state: str, status: int | None) -> None:
        line = {"kind": "state", "time_ns": time.time_ns(), "rank": rank.rank, "pid": rank.pid, "state": state}
        if state == "Z" and status:  # without ptrace rights the kernel says 0
            line["code"] = os.waitstatus_to_exitcode(status)
        self._file.append(line)


def _started(path: str) -> int | None:
    """Start time of a side file's process, in clock ticks since boot, from its second line."""
    try:
        with open(path, encoding="utf-8") as file:
            file.readline()
            ticks = json.loads(file.readline())["started_ticks"]
    except (OSError, ValueError, KeyError):
        return None
    return ticks if isinstance(ticks, int) else None
