"""Segments: Arrow IPC files of preallocated rows that a process stores into in place.

A row is written by plain stores into its columns through an mmap, `commit` last. The kernel keeps the pages when the
process is killed, so that at every instant, and after SIGKILL, any Arrow reader opens the file; a row counts once its
commit is set. Rows are never reused. Aligned stores of 8 bytes and less do not tear.

Standard library only: a training process loads no pyarrow.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
from typing import TYPE_CHECKING, NamedTuple

from roundk.tracer import template

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_STDERR = 2
_MAP_FIXED = 0x10
"""Of the C library's mmap(2); Python has no name for it."""


class Columns(NamedTuple):
    """The columns of a segment, in the order of `schema.RING`, as writable views."""

    commit: memoryview
    enter_ns: memoryview
    issued_ns: memoryview
    start_ns: memoryview
    end_ns: memoryview
    seq: memoryview
    numel: memoryview
    bytes_in: memoryview
    bytes_out: memoryview
    group: memoryview
    signature: memoryview
    site: memoryview
    step: memoryview
    thread: memoryview
    peer: memoryview
    op: memoryview
    dtype: memoryview
    reduce_op: memoryview
    is_async: memoryview
    is_timed: memoryview
    outcome: memoryview


class Segment:
    """One preallocated file of rows.

    Attributes:
        path: The file.
        rows: How many rows it has.
        base: Calls of this process before its first row; row i holds call `base + i + 1`.
        size: Bytes on disk.
        columns: Views to store into.
        entry: Those that every call is stored into as it enters.
        take: Gives the next row number, from 0, to any thread; numbers from `rows` on mean that the segment is full.
    """

    __slots__ = ("base", "columns", "entry", "path", "rows", "size", "take")

    def __init__(self, path: str, rows: int, base: int, size: int, columns: Columns) -> None:
        self.path = path
        self.rows = rows
        self.base = base
        self.size = size
        self.columns = columns
        c = columns
        stored = (c.commit, c.enter_ns, c.seq, c.numel, c.bytes_in, c.bytes_out)
        self.entry = (*stored, c.group, c.signature, c.site, c.thread, c.op, c.dtype)
        self.take: Callable[[], int] = itertools.count().__next__

    @classmethod
    def create(cls, path: str, rows: int, base: int) -> Segment:
        """Make an empty segment with all its blocks allocated; the file has its final name only when it is whole.

        Raises:
            OSError: no space, no permission, no such directory.
            KeyError: there is no template with that many rows.
        """
        parts = template.SEGMENTS[rows]
        return cls(path, rows, base, parts.size, Columns(*created(path, rows, parts)))


def created(path: str, rows: int, parts: template.Template) -> list[memoryview]:
    """Make an empty segment as `Segment.create` does; give its columns as writable views.

    Raises:
        OSError: no space, no permission, no such directory.
    """
    with above_streams():
        view = _in_place(f"{path}.new", path, parts)
    width = {"b": 1, "i": 4, "q": 8}
    return [view[at : at + rows * width[code]].cast(code) for _, code, at in parts.columns]  # type: ignore[call-overload]


def _in_place(unfinished: str, path: str, parts: template.Template) -> memoryview:
    fd = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        allocate(fd, 0, parts.size)
        os.pwrite(fd, parts.head, 0)
        os.pwrite(fd, parts.tail, parts.size - len(parts.tail))
        view = memoryview(mapped(fd, parts.size))
        os.rename(unfinished, path)
    except OSError:
        os.unlink(unfinished)
        raise
    finally:
        os.close(fd)
    return view


@contextlib.contextmanager
def above_streams() -> Iterator[None]:
    """Have no file opened in between take the number of a closed stdin, stdout or stderr.

    What the job prints there would land in that file.
    """
    held = []
    try:
        while (fd := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) <= _STDERR:
            held.append(fd)
        os.close(fd)
        yield
    finally:
        for fd in held:
            if os.fstat(fd).st_rdev == os.stat(os.devnull).st_rdev:  # else the job has opened it anew meanwhile
                os.close(fd)


def allocate(fd: int, start: int, size: int) -> None:
    """Give a file real blocks: a store into a hole of a full disk would be SIGBUS in the training process.

    Raises:
        OSError: the space is not to be had.
    """
    os.posix_fallocate(fd, start, size)


def mapped(fd: int, size: int) -> mmap.mmap:
    """Map a file's beginning without keeping a descriptor.

    Python's own mmap of a file keeps one and closes that number with the map, whosever it is by then. So the file is
    put in the place of a map of memory, which has none.

    Raises:
        OSError: it cannot be mapped.
    """
    import ctypes  # whoever only reads pays nothing for it

    memory = mmap.mmap(-1, size)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    flags = mmap.MAP_SHARED | _MAP_FIXED
    if libc.mmap(address, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, 0) != address:
        raise OSError(ctypes.get_errno(), "mmap")
    return memory


def same_file(fd: int, path: str, known: tuple[int, int] | None) -> tuple[int, int]:
    """Device and inode of an open file, which must be the known ones where there are any.

    Raises:
        OSError: it is another file.
    """
    stat = os.fstat(fd)
    found = stat.st_dev, stat.st_ino
    if known not in (None, found):
        msg = f"{path}: another file has taken its place"
        raise OSError(msg)
    return found
