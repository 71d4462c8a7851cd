"""The run directory: who writes which file, and how files are named.

```
RUN/run.json                          made once: schema version, roundk version, time
RUN/<host>/launcher-<pid>.jsonl       `roundk run` on that host: command, processes' states, end
RUN/<host>/stdout-<pid>.log           the job's stdout; also stderr-<pid>.log, or output-<pid>.log where both are one;
                                      with the end of a long one in parts NAME.<offset>.log
RUN/<host>/nccl-<host>-<pid>.log      NCCL's own log of one process, by `--nccl-debug`
RUN/<host>/agent-<pid>.jsonl          a parent of ranks (torchrun's agent): exit codes of its workers
RUN/<host>/early-<pid>.jsonl          of a process without a side file: its uncaught exception, why it is not recorded
RUN/<host>/rank-<rank>-<pid>.jsonl    one process that took part: the side file
RUN/<host>/rank-<rank>-<pid>.exit     its exit code, in two equal bytes, by itself
RUN/<host>/rank-<rank>-<pid>-<n>.arrow    its segments, n counted from 0
RUN/<host>/rank-<rank>-<pid>.stacks   its Python stacks, as faulthandler writes them
RUN/<host>/rank-<rank>-<pid>.fr       torch's Flight Recorder dump on a stall
RUN/<host>/links-<pid>.jsonl          that host's link sampler: what its rows refer to, links that went up or down
RUN/<host>/links-<pid>-<n>.arrow      its samples, n counted from 0
RUN/<host>/site-<pid>/                what `roundk run` put on PYTHONPATH
```

A file has one writing process. A host lists only its own folder, so that nothing grows with the number of hosts.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import time
import zlib
from typing import TYPE_CHECKING, Any

from roundk.tracer import ring, side, words

if TYPE_CHECKING:
    from collections.abc import Mapping

RUN_FILE = "run.json"
HOST_VARIABLE = "ROUNDK_HOST"
"""Overrides the host's name: two containers of one name can be told apart."""

_HOST_BYTES = 230
"""Of 255 that a file system takes: the name stands in others with `run.json.` or `nccl-` and a process id."""
_RANK_FILE = re.compile(r"rank-(\d+)-(\d+)(?:\.\d+)?\.jsonl")


_told = ""


def call_host(name: str) -> None:
    """Give this host a name for this process, which its environment does not tell."""
    global _told  # noqa: PLW0603 - a process is on one host
    _told = name


def told_host_name() -> str:
    """The name that this host was given for the run; '' where it has its own."""
    return os.environ.get(HOST_VARIABLE) or _told


def full_host_name() -> str:
    """This host's name, as it is."""
    return told_host_name() or socket.gethostname()


def host_name() -> str:
    """This host's name, as file names may carry it.

    Letters of any script stay. Where something else than ASCII is replaced, or the end is cut off, a checksum of the
    whole name keeps two hosts apart.
    """
    full = full_host_name()
    name = "".join(char if _may_stay(char) else "_" for char in full).lstrip(".") or "host"
    raw = os.fsencode(name)
    if len(raw) <= _HOST_BYTES and all(_may_stay(char) or char.isascii() for char in full):
        return name
    checksum = f"-{zlib.crc32(full.encode(errors='surrogatepass')):08x}"
    return raw[: _HOST_BYTES - len(checksum)].decode(errors="ignore") + checksum


def _may_stay(char: str) -> bool:
    """Whether file names may have a character: any letter or digit, where file names are UTF-8."""
    if char.isascii():
        return char.isalnum() or char in "._-"
    return char.isalnum() and sys.getfilesystemencoding() == "utf-8"


def prepare(run: str) -> str:
    """Make the run directory and this host's folder in it, where they are missing; give the folder.

    Raises:
        OSError: they cannot be made.
    """
    folder = os.path.join(run, host_name())
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(run, RUN_FILE)
    if not os.path.exists(path):
        content = {"roundk_schema": words.SCHEMA_VERSION, "created_ns": time.time_ns()}
        unfinished = f"{path}.{host_name()}-{os.getpid()}"
        with open(unfinished, "w", encoding="utf-8") as file:
            json.dump(content, file)
        os.replace(unfinished, path)
    return folder


def side_file(folder: str, rank: int) -> tuple[str, side.SideFile]:
    """Create this process's side file; give the stem of its segments' names too.

    Raises:
        OSError: it cannot be made.
    """
    for attempt in range(100):  # a pid comes back after a reboot, or in another container of the same name
        stem = os.path.join(folder, f"rank-{rank:05d}-{os.getpid()}" + (f".{attempt}" if attempt else ""))
        try:
            return stem, side.SideFile(f"{stem}.jsonl")
        except FileExistsError:
            continue
    msg = f"{folder}: a hundred files of rank {rank} and process {os.getpid()} exist"
    raise OSError(msg)


def links_file(folder: str) -> tuple[str, LineFile]:
    """Create the side file of this process's link samples; give the stem of its segments' names too.

    Raises:
        OSError: it cannot be made.
    """
    stem = os.path.join(folder, f"links-{os.getpid()}")
    number = 0
    while os.path.exists(f"{stem}.jsonl"):  # a pid comes back, as above
        number += 1
        stem = os.path.join(folder, f"links-{os.getpid()}.{number}")
    return stem, LineFile(f"{stem}.jsonl")


def segment_path(stem: str, number: int) -> str:
    """Path of a process's segment."""
    return f"{stem}-{number:06d}.arrow"


def rank_files(folder: str) -> dict[str, tuple[int, int]]:
    """Names of a host folder's side files, with rank and process id of each; empty where there is no folder."""
    try:
        names = os.listdir(folder)
    except OSError:
        return {}
    matches = ((name, _RANK_FILE.fullmatch(name)) for name in names)
    return {name: (int(match[1]), int(match[2])) for name, match in matches if match}


class LineFile:
    """A file of JSON lines for processes that may do I/O: the launcher, torchrun's agent. One write per line."""

    def __init__(self, path: str) -> None:
        """Create or continue the file.

        Raises:
            OSError: it cannot be opened.
        """
        self.path = path
        with ring.above_streams():
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if os.lseek(self._fd, 0, os.SEEK_END) == 0:
            os.write(self._fd, side.alive(time.time_ns()))

    def append(self, line: dict[str, Any]) -> None:
        """Write a line at the end.

        Raises:
            OSError: it cannot be written.
        """
        os.lseek(self._fd, 0, os.SEEK_END)
        os.write(self._fd, side.encode(line))

    def renew(self, time_ns: int) -> None:
        """Renew the sign of life in the first line.

        Raises:
            OSError: it cannot be written.
        """
        os.pwrite(self._fd, side.alive(time_ns), 0)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._fd)


def generation(environment: Mapping[str, str]) -> dict[str, Any]:
    """What tells one start of a job's ranks from another in one run directory: the job, and torchelastic's count."""
    parts = (environment.get(name, "") for name in ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"))
    return {"job": "/".join(parts), "attempt": int(environment.get("TORCHELASTIC_RESTART_COUNT") or 0)}


def process_stat(pid: int) -> tuple[str, int, int] | None:
    """State letter, start time in clock ticks since boot, and exit status of a process; None where there is none.

    The exit status is that of `waitpid`, and is set only for a zombie that this user may trace.

    Source: proc(5), /proc/PID/stat, fields 3, 22 and 52.
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return (fields[0], int(fields[19]), int(fields[49]))
