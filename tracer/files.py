"""Reading files of others: by any path, regular ones only, since a pipe or a device may never come to an end."""

from __future__ import annotations

import errno
import mmap
import os
import pathlib
import stat
from typing import IO

import pyarrow as pa

NOT_REGULAR = "it is not a regular file"


def opened(path: pathlib.Path) -> IO[bytes]:
    """A regular file, open for reading.

    Raises:
        OSError: it cannot be opened, or is something else.
    """
    if not stat.S_ISREG(path.stat().st_mode):  # before it is opened: that alone moves some devices
        raise OSError(errno.EINVAL, NOT_REGULAR, str(path))
    # Should a pipe have taken its place meanwhile, there is no waiting for a writer.
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb")


def is_folder(path: pathlib.Path) -> bool:
    """Whether a path is one of a folder; not where that may not be asked."""
    try:
        return path.is_dir()
    except OSError:  # it lies in a folder that may not be entered
        return False


def mapped(path: pathlib.Path) -> pa.Buffer:
    """The content of a regular file, mapped and not read. Arrow's own takes no path that is not UTF-8.

    Raises:
        OSError: it cannot be opened, or is something else.
    """
    with opened(path) as file:
        if os.fstat(file.fileno()).st_size == 0:
            return pa.py_buffer(b"")
        return pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def name_of(path: pathlib.Path | str) -> str:
    """A path as text that tables and reports take: bytes that are no UTF-8 are written out."""
    return str(path).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
