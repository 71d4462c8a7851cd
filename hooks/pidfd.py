"""How a process ended that is not our child, from a kernel that tells.

Source: include/uapi/linux/pidfd.h, Linux 6.15 (`PIDFD_GET_INFO` with `PIDFD_INFO_EXIT`): whoever holds a pidfd may ask
for the exit status once the parent has collected it. Older kernels refuse the call or leave the bit unset.
"""

from __future__ import annotations

import fcntl
import os
import struct

_INFO = struct.Struct("=QQ11Ii")
"""struct pidfd_info, its first version: mask, cgroupid, eleven ids, exit_code."""
_PIDFD_GET_INFO = 0xC0000000 | _INFO.size << 16 | 0xFF << 8 | 11
"""_IOWR(0xFF, 11, struct pidfd_info)."""
_PIDFD_INFO_EXIT = 1 << 3


def open_(pid: int) -> int | None:
    """A pidfd; None where the process is gone, or kernel or Python know no pidfds."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def exit_code(fd: int) -> int | None:
    """Exit code (negative after a signal); None: not collected yet, or the kernel does not tell."""
    request = _INFO.pack(_PIDFD_INFO_EXIT, *[0] * 13)
    try:
        mask, *_, status = _INFO.unpack(fcntl.ioctl(fd, _PIDFD_GET_INFO, request))
    except OSError:
        return None
    return os.waitstatus_to_exitcode(status) if mask & _PIDFD_INFO_EXIT else None
