"""Xid lines of the kernel's log, by which the NVIDIA driver tells of errors of a GPU or of NVLink.

Source: Linux `Documentation/ABI/testing/dev-kmsg` (`priority,sequence,microseconds,flags;text`); NVIDIA "XID Errors".
"""

from __future__ import annotations

import os
import re
import time
from typing import NamedTuple

_XID = re.compile(rb"NVRM: (S?)Xid \(PCI:([0-9a-fA-F:.]{4,20})\): (\d{1,6})(?:, pid='?([^',]*)'?)?")
_RECORD_BYTES = 8_192
"""One reading gives one record, of 1 KiB and its dictionary at most."""
_MOST = 1_000
"""Records at a time: a kernel that writes without end must not keep us busy."""


class Xid(NamedTuple):
    """An error of a GPU (of a switch, where `is_switch`), by its time."""

    time_ns: int
    bus_id: str
    number: int
    is_switch: bool
    text: str


class KernelLog:
    """The kernel's log from now on."""

    def __init__(self, path: str = "/dev/kmsg") -> None:
        """Open it at its end.

        Raises:
            OSError: not permitted, or it is not there.
        """
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.lseek(self._fd, 0, os.SEEK_END)

    def xids(self) -> list[Xid]:
        """What came since the last reading.

        Raises:
            OSError: it cannot be read.
        """
        found = []
        for _ in range(_MOST):
            try:
                record = os.read(self._fd, _RECORD_BYTES)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue  # the kernel has overwritten what we had not read
            if not record:
                break
            if (xid := _xid(record)) is not None:
                found.append(xid)
        return found

    def close(self) -> None:
        """Let go of it."""
        os.close(self._fd)


def _xid(record: bytes) -> Xid | None:
    head, _, text = record.partition(b";")
    match = _XID.search(text)
    if match is None:
        return None
    since_boot_ns = int(head.split(b",")[2]) * 1_000
    ago_ns = max(0, time.monotonic_ns() - since_boot_ns)
    line = text.split(b"\n")[0].decode(errors="replace")
    return Xid(time.time_ns() - ago_ns, match[2].decode(), int(match[3]), bool(match[1]), line)
