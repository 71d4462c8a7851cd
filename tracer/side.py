"""The side file: what a call's row refers to by id, and what happened to its process, as JSON lines in an mmap.

A line is stored, not written: the caller does no I/O, and a line survives SIGKILL like the rows do. The unused rest of
the file is newlines, so that the file is valid JSON lines at every moment. Its first line is the sign of life, renewed
in place. `reserve` (which does I/O) belongs to the recorder's own thread.

No file descriptor stays open: a script that closes them all gets their numbers again for files of its own.

Lines (`kind` says which): `alive`, `process`, `environment`, `group`, `signature`, `site`, `exception`, `goodbye`,
`lost`, `deleted`, `off`. The reader documents the keys it uses of each.
"""

from __future__ import annotations

import json
import mmap
import os
import threading
from typing import Any

from roundk.tracer import ring

_ALIVE = b'{"kind": "alive", "time_ns": %19d, "waits_since_ns": %19d}\n'
_FIRST_BYTES = 16_384
"""Enough for the definitions of a small job; every rank pays it."""
_GROWTH = 4
"""Factor by which the file grows: few remaps, little waste."""


def encode(line: dict[str, Any]) -> bytes:
    """One line of a side, launcher or agent file."""
    return json.dumps(line, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"


def alive(time_ns: int, waits_since_ns: int = 0) -> bytes:
    """The sign of life: the first line of a file, always of one length.

    Args:
        time_ns: Now.
        waits_since_ns: When the oldest call in flight entered; 0: none is. For the sampler of the host's links.
    """
    return _ALIVE % (time_ns, waits_since_ns)


class SideFile:
    """An append-only file of lines that is stored into."""

    def __init__(self, path: str) -> None:
        """Create the file.

        Raises:
            OSError: it exists (FileExistsError), or cannot be made.
        """
        self.path = path
        self._lock = threading.Lock()
        self._waiting: list[bytes] = []
        self._file: tuple[int, int] | None = None
        self._map = self._mapped(0, _FIRST_BYTES, os.O_CREAT | os.O_EXCL)
        self._used = len(alive(0))

    def _mapped(self, old: int, size: int, flags: int = 0) -> mmap.mmap:
        """Make the file larger and map it."""
        with ring.above_streams():
            fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | flags, 0o644)
        try:
            self._file = ring.same_file(fd, self.path, self._file)
            ring.allocate(fd, old, size - old)
            os.pwrite(fd, b"\n" * (size - old), old)
            return ring.mapped(fd, size)
        finally:
            os.close(fd)

    def append(self, line: dict[str, Any]) -> None:
        """Store a line, or keep it in memory until `reserve` has made room."""
        data = encode(line)
        with self._lock:
            if self._waiting or not self._store(data):
                self._waiting.append(data)

    def _store(self, data: bytes) -> bool:
        end = self._used + len(data)
        if end > len(self._map):
            return False
        self._map[self._used : end] = data
        self._used = end
        return True

    def renew(self, time_ns: int, waits_since_ns: int = 0) -> None:
        """Renew the sign of life; see `alive`."""
        self._map[: len(alive(0))] = alive(time_ns, waits_since_ns)

    def reserve(self) -> None:
        """Make the file larger where it is half full or lines wait, and store what waits.

        Raises:
            OSError: no space, or the file is gone.
        """
        need = self._used + sum(map(len, self._waiting))
        if 2 * need > len(self._map):
            larger = self._mapped(len(self._map), max(_GROWTH * len(self._map), 2 * need))
            with self._lock:
                self._map = larger  # the old map stays valid for whoever still stores into it: same file
        if self._waiting:
            with self._lock:
                while self._waiting and self._store(self._waiting[0]):
                    del self._waiting[0]
