"""The beginning and the end of a stream of bytes, kept in files of bounded size.

`NAME.log` holds the beginning. What follows goes into parts `NAME.<offset>.log`, named after the place of their first
byte in the stream; the last two are kept. Where parts are deleted, the end of `NAME.log` says what is missing.
"""

from __future__ import annotations

import collections
import os
from typing import Final

from roundk.hooks import failsafe

HEAD_BYTES: Final = 8 * 2**20
"""The beginning: configuration, versions and NCCL's topology stand there."""
PART_BYTES: Final = 28 * 2**20
"""One part of the end; with the beginning a stream takes 64 MiB at most."""
_PARTS = 2
_GAP = "\n[roundk: bytes {first} to {last:015d} of this stream were not kept]\n"


class Log:
    """Takes a stream; after the first error it takes it no further and says so once."""

    def __init__(self, folder: str, name: str, *, head: int = HEAD_BYTES, part: int = PART_BYTES) -> None:
        """Make the first file.

        Raises:
            OSError: it cannot be made.
        """
        self.name = name
        self._stem = os.path.join(folder, name)
        self._head, self._part = head, part
        self._head_fd = self._fd = _create(f"{self._stem}.log")
        self._room = head
        self._taken = 0
        self._parts: collections.deque[tuple[int, str]] = collections.deque()

    def write(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        if self._fd < 0:
            return
        try:
            self._write(memoryview(data))
        except OSError as error:
            self.close()
            failsafe.warn(f"the log {self.name} stops, the job goes on: {error.strerror}")

    def _write(self, data: memoryview) -> None:
        while data:
            if not self._room:
                self._begin_part()
            written = os.write(self._fd, data[: self._room])
            data = data[written:]
            self._room -= written
            self._taken += written

    def _begin_part(self) -> None:
        if len(self._parts) == _PARTS:
            _, path = self._parts.popleft()
            os.unlink(path)
            gap = _GAP.format(first=self._head, last=self._parts[0][0])
            os.pwrite(self._head_fd, gap.encode(), self._head)
        path = f"{self._stem}.{self._taken:015d}.log"
        fd = _create(path)
        if self._fd != self._head_fd:
            os.close(self._fd)
        self._fd, self._room = fd, self._part
        self._parts.append((self._taken, path))

    def close(self) -> None:
        """Take nothing any more."""
        for fd in {self._fd, self._head_fd} - {-1}:
            os.close(fd)
        self._fd = self._head_fd = -1

    def fds(self) -> set[int]:
        """Open file descriptors."""
        return {self._fd, self._head_fd} - {-1}


def _create(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
