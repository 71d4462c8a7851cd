"""A rank's own word on its exit code: two bytes in a file that is mapped, stored as the process leaves.

Python shows the code of `sys.exit(n)` to nobody: `atexit` functions are not told, and afterwards no Python runs. The C
library's `on_exit` calls a C function with the code, and any of the form `f(int, void *)` will do: `fputc`, on a stream
in memory. It is registered twice, so that two equal bytes say that it ran. No file descriptor stays open that a script
might close and get again for its own file. `os._exit` skips all that, and gets a wrapper.

A C library without `on_exit` (musl) leaves only `os._exit`. Source: on_exit(3), fmemopen(3), glibc 2.36.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
from typing import Any

from roundk.hooks import failsafe
from roundk.tracer import ring

_NOT_YET = b"\x01\xff"
_SIZE = 16
"""fmemopen may end what it writes with a zero byte."""
_UNBUFFERED = 2
"""_IONBF of stdio.h."""
_MAP_FIXED = 0x10
_NO_ADDRESS = ctypes.c_void_p(-1).value

_armed: list[int] = []
"""Addresses of this process's bytes."""


def install() -> None:
    """Have `os._exit` leave its code too, and a forked child leave its parent's bytes alone."""
    leave = os._exit
    say = failsafe.guard(_say)

    def _exit(status: int) -> None:
        say(status)
        leave(status)

    os._exit = _exit  # type: ignore[assignment]  # it never returns either
    os.register_at_fork(after_in_child=failsafe.guard(_forget))


def arm(path: str) -> None:
    """Have this process's exit code stored in a new file.

    Raises:
        OSError: the file cannot be made.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        ring.allocate(fd, 0, _SIZE)
        os.pwrite(fd, _NOT_YET, 0)
        address = _map(None, fd, mmap.MAP_SHARED)
    finally:
        os.close(fd)
    _armed.append(address)
    _at_exit(address)


@functools.cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = libc.fmemopen.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
    libc.fmemopen.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    libc.setvbuf.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    return libc


def _map(address: int | None, fd: int, flags: int) -> int:
    """Map for good: Python's own mmap object would be unmapped as the interpreter goes, before the bytes are stored."""
    found: int | None = _libc().mmap(address, _SIZE, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, 0)
    if found is None or found == _NO_ADDRESS:
        raise OSError(ctypes.get_errno(), "mmap")
    return found


def _at_exit(address: int) -> None:
    libc = _libc()
    if not hasattr(libc, "on_exit"):
        return
    libc.on_exit.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    stream = libc.fmemopen(address, _SIZE, b"r+")
    if stream is None or libc.setvbuf(stream, None, _UNBUFFERED, 0):
        return
    for _ in _NOT_YET:
        libc.on_exit(ctypes.cast(libc.fputc, ctypes.c_void_p), stream)


def _say(status: int) -> None:
    for address in _armed:
        ctypes.memset(address, status & 0xFF, len(_NOT_YET))


def _forget() -> None:
    """Put memory of the child's own where the file was: what is registered still writes there."""
    for address in _armed:
        _map(address, -1, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED)
    _armed.clear()
