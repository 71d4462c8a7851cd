"""What the sampler of a host's links learns from the ranks there: their settings, and since when they wait.

By the first two lines of their side files, which a stopped or dead rank leaves as they are.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from roundk.tracer import rundir, side

_OLD_NS = 10_000_000_000
"""A rank without a sign of life for so long when it is first seen is one of an earlier job in the same directory."""
_HEADER_BYTES = 4_096
"""More than the first two lines."""


class Ranks:
    """The ranks that have a side file in a host's folder."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._began_ns = time.time_ns()
        self._files: dict[str, int | None] = {}

    def look(self) -> tuple[int | None, list[dict[str, Any]]]:
        """Since when the rank that has waited longest is in its call (None: no rank is), and the new ranks' headers."""
        new = []
        for name in rundir.rank_files(self._folder):
            if name not in self._files:
                header = self._first_seen(name)
                if header is not None:
                    new.append(header)
        signs = (_sign(fd) for fd in self._files.values() if fd is not None)
        return min((since for _, since in signs if since), default=None), new

    def _first_seen(self, name: str) -> dict[str, Any] | None:
        """The header of a new rank; None where it is not there yet, or is an old one's."""
        try:
            fd = os.open(os.path.join(self._folder, name), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        header = _header(fd)
        if header is not None and _sign(fd)[0] > self._began_ns - _OLD_NS:
            self._files[name] = fd
            return header
        os.close(fd)
        if header is not None:
            self._files[name] = None
        return None

    def close(self) -> None:
        """Let go of their files."""
        for fd in self._files.values():
            if fd is not None:
                os.close(fd)


def _header(fd: int) -> dict[str, Any] | None:
    lines = os.pread(fd, _HEADER_BYTES, 0).split(b"\n")
    try:
        found = json.loads(lines[1])
    except (ValueError, IndexError):
        return None
    return found if isinstance(found, dict) and found.get("kind") == "process" else None


def _sign(fd: int) -> tuple[int, int]:
    """When a rank was last alive, and since when it is in a call; 0: not, or it is just being written."""
    try:
        found = json.loads(os.pread(fd, len(side.alive(0)), 0).split(b"\n")[0])
        return int(found["time_ns"]), int(found.get("waits_since_ns", 0))
    except (OSError, ValueError, KeyError, TypeError):
        return 0, 0
