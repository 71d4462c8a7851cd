"""Keeps a copy of the job's stdout and stderr, without the job noticing.

What the job gets depends on what the launcher has:

- a file: the same file, with nothing in between; the log is copied from it while it grows;
- a terminal: a pseudo-terminal for output, of the same size, that changes no byte. Its input stays the terminal, so
  that the keyboard's signals and job control are as ever;
- a pipe, a socket, /dev/null: a pipe.

Where stdout and stderr are the same file, pipe or terminal they are one stream here too, so that their order is kept.

What the job prints into a pipe or a pseudo-terminal goes on through the copier: a process of its own, in a session of
its own, that no signal of the job reaches. It outlives the launcher: after a SIGKILL of the launcher, or for a process
that the job left behind, output goes on as long as anybody can write it. Where the reader goes away the copier closes
its end, so the job gets the same EPIPE or SIGPIPE as without us. What remains: SIGKILL of the copier itself is a broken
pipe for the job; a program that asks the terminal for keys or modes through its stdout or stderr (full-screen programs
made with curses, `more`) finds a pseudo-terminal that has no keyboard.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import signal
import stat
import struct
import termios
import threading
import time
from dataclasses import dataclass
from typing import Any

from roundk.hooks import failsafe
from roundk.hooks.logfile import Log

DRAIN_S = 1.0
"""How long the launcher waits for the last output once the command is gone: longer only if a process it left writes."""
CHUNK_BYTES = 65_536
"""One read: as much as a pipe holds."""
_FILE_CHUNK_BYTES = 2**20
_STDOUT, _STDERR = 1, 2
_OPOST_AT = 1
_IGNORED = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_GROUP = struct.Struct("i")
_SIZE_BYTES = 8
"""struct winsize of ioctl_tty(2)."""


@dataclass
class _Stream:
    """A stream of the launcher with the log of it. `source`: where it can be read; `job`: what the job gets of ours."""

    fds: tuple[int, ...]
    kind: str
    log: Log
    source: int
    job: int | None

    @property
    def out(self) -> int:
        return self.fds[0]


def hold_closed_streams() -> None:
    """Where stdin, stdout or stderr is closed, have something there that the job will not get.

    Else the next file opened would take the number, and the job's output.
    """
    while (fd := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) <= _STDERR:
        pass
    os.close(fd)


class Tee:
    """The launcher's streams, as the job gets them."""

    def __init__(self, folder: str, suffix: str) -> None:
        """Make the logs, and start the copier where one is needed.

        Raises:
            OSError: a log, a pipe, a pseudo-terminal or the process cannot be made.
        """
        self._streams = [_open(folder, suffix, fds) for fds in _distinct()]
        self._files = [_Follower(stream) for stream in self._streams if stream.kind == "file"]
        copied = [stream for stream in self._streams if stream.kind != "file"]
        self._sizes = {stream.out: _size(stream.out) for stream in copied if stream.kind == "terminal"}
        self._copier: int | None = None
        self._control = -1
        if copied:
            self._copier, self._control = _start_copier(copied)
            for stream in copied:
                os.close(stream.source)
                stream.log.close()

    @property
    def has_terminal(self) -> bool:
        """Whether a stream is a terminal, whose size may change."""
        return bool(self._sizes)

    def job_end(self, fd: int) -> int | None:
        """What the job is to have as its stdout (1) or stderr (2); None: the launcher's own."""
        return next((stream.job for stream in self._streams if fd in stream.fds), None)

    def describe(self) -> list[dict[str, Any]]:
        """The logs: name, what they are of, and for a file its path."""
        names = {_STDOUT: "stdout", _STDERR: "stderr"}
        return [
            {
                "log": stream.log.name,
                "streams": [names[fd] for fd in stream.fds],
                "of": stream.kind,
                "file": os.path.realpath(f"/proc/self/fd/{stream.out}") if stream.kind == "file" else None,
            }
            for stream in self._streams
        ]

    def started(self) -> None:
        """Let go of the job's ends: the command has them now, or did not start."""
        for stream in self._streams:
            if stream.job is not None:
                os.close(stream.job)
                stream.job = None

    def look(self) -> None:
        """Copy what files have got, and pass on a terminal's new size."""
        for file in self._files:
            file.copy()
        for fd, size in self._sizes.items():
            now = _size(fd)
            if now != size:
                self._sizes[fd] = now
                with contextlib.suppress(OSError):  # the copier is gone
                    os.write(self._control, _GROUP.pack(_group_in_front(fd)))

    def finish(self) -> None:
        """Copy the last output, and wait for the copier as long as it takes or `DRAIN_S`."""
        for file in self._files:
            file.copy()
        if self._copier is None:
            return
        os.close(self._control)
        until = time.monotonic() + DRAIN_S
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(self._copier, os.WNOHANG)[0] == 0 and time.monotonic() < until:
                time.sleep(0.005)


def _distinct() -> list[tuple[int, ...]]:
    """The open ones of stdout and stderr; together where they are the same."""
    found = {fd: identity for fd in (_STDOUT, _STDERR) if (identity := _identity(fd)) is not None}
    if len(found) == 2 and found[_STDOUT] == found[_STDERR]:
        return [(_STDOUT, _STDERR)]
    return [(fd,) for fd in found]


def _identity(fd: int) -> tuple[int, ...] | None:
    try:
        if not os.get_inheritable(fd):
            return None  # it was closed when we came: this is one of ours
        found = os.fstat(fd)
    except OSError:
        return None
    if stat.S_ISCHR(found.st_mode) and not os.isatty(fd):
        return (fd,)  # /dev/null: no order to keep
    return (-1, found.st_dev, found.st_ino)


def _kind(fd: int) -> str:
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return "file"
    return "terminal" if os.isatty(fd) else "pipe"


def _open(folder: str, suffix: str, fds: tuple[int, ...]) -> _Stream:
    name = "output" if len(fds) == 2 else {_STDOUT: "stdout", _STDERR: "stderr"}[fds[0]]
    out, kind = fds[0], _kind(fds[0])
    log = Log(folder, f"{name}-{suffix}")
    if kind == "file":
        return _Stream(fds, kind, log, os.open(f"/proc/self/fd/{out}", os.O_RDONLY | os.O_CLOEXEC), None)
    source, job = _terminal(out) if kind == "terminal" else os.pipe()
    return _Stream(fds, kind, log, source, job)


def _terminal(like: int) -> tuple[int, int]:
    """A pseudo-terminal of another's size and settings, but for the output processing: the other one does that."""
    master, slave = os.openpty()
    try:
        settings = termios.tcgetattr(like)
        settings[_OPOST_AT] &= ~termios.OPOST
        termios.tcsetattr(slave, termios.TCSANOW, settings)
    except termios.error as error:
        raise OSError(*error.args) from error
    fcntl.ioctl(slave, termios.TIOCSWINSZ, _size(like))
    return master, slave


def _size(fd: int) -> bytes:
    try:
        return fcntl.ioctl(fd, termios.TIOCGWINSZ, bytes(_SIZE_BYTES))
    except OSError:
        return bytes(_SIZE_BYTES)


def _group_in_front(terminal: int) -> int:
    """The process group that the terminal's keyboard speaks to; 0: it is not our terminal to ask."""
    try:
        return os.tcgetpgrp(terminal)
    except OSError:
        return 0


class _Follower:
    """Copies what a file gets from now on."""

    def __init__(self, stream: _Stream) -> None:
        self._source, self._log = stream.source, stream.log
        self._appended = bool(fcntl.fcntl(stream.out, fcntl.F_GETFL) & os.O_APPEND)
        end = os.fstat(self._source).st_size
        self._at = end if self._appended else os.lseek(stream.out, 0, os.SEEK_CUR)

    def copy(self) -> None:
        if self._appended and os.fstat(self._source).st_size < self._at:
            self._at = 0  # somebody cut the file (logrotate's copytruncate); writers begin anew
        while data := os.pread(self._source, _FILE_CHUNK_BYTES, self._at):
            self._log.write(data)
            self._at += len(data)


def _start_copier(streams: list[_Stream]) -> tuple[int, int]:
    """Its process id, and a pipe to tell it of new sizes; it stays for longer than the pipe is open."""
    told, control = os.pipe()
    ready, say_ready = os.pipe()
    pid = os.fork()
    if pid:
        os.close(told)
        os.close(say_ready)
        started = os.read(ready, 1)
        os.close(ready)
        if not started:
            raise OSError(errno.ECHILD, "the process that copies the output did not start")
        return pid, control
    try:
        failsafe.guard(_be_copier)(streams, told, say_ready)
    finally:
        os._exit(0)


def _be_copier(streams: list[_Stream], told: int, say_ready: int) -> None:
    os.setsid()
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    wanted = {null, told, say_ready, *(fd for stream in streams for fd in (stream.source, *stream.log.fds()))}
    close_others({0, _STDOUT, _STDERR} | wanted)
    threads = [threading.Thread(target=failsafe.guard(_copy), args=(stream, null)) for stream in streams]
    for thread in threads:
        thread.start()
    os.write(say_ready, b"1")
    os.close(say_ready)
    resize = failsafe.guard(_resize)
    while message := os.read(told, _GROUP.size):
        resize(streams, message)
    for thread in threads:
        thread.join()


def close_others(wanted: set[int]) -> None:
    """Whoever waits for the end of a pipe that we inherited must not wait for us."""
    for fd in {int(name) for name in os.listdir("/proc/self/fd")} - wanted:
        with contextlib.suppress(OSError):  # the listing's own
            os.close(fd)


def _resize(streams: list[_Stream], message: bytes) -> None:
    """Give the pseudo-terminals the terminal's size, then tell the processes in front, who have asked too early."""
    group = _GROUP.unpack(message)[0]
    for stream in streams:
        if stream.kind == "terminal":
            with contextlib.suppress(OSError):  # closed by now
                fcntl.ioctl(stream.source, termios.TIOCSWINSZ, _size(stream.out))
    if group > 0:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGWINCH)


def _copy(stream: _Stream, null: int) -> None:
    """Pass a stream on until nobody can write it, or nobody reads it, any more; then let go of both its ends."""
    keep = failsafe.guard(stream.log.write)  # a log that fails must not be a broken pipe for the job
    poll = select.poll()
    poll.register(stream.source, select.POLLIN)
    poll.register(stream.out, 0)
    try:
        while all(fd != stream.out for fd, _ in poll.poll()):
            data = _read(stream.source)
            if not data:
                return
            passed_on = _write(stream.out, data)
            keep(data)
            if not passed_on:
                return
    finally:
        os.close(stream.source)
        for fd in stream.fds:
            os.dup2(null, fd)
        stream.log.close()


def _read(source: int) -> bytes:
    try:
        return os.read(source, CHUNK_BYTES)
    except OSError as error:
        if error.errno == errno.EIO:  # a pseudo-terminal that nobody has open
            return b""
        raise


def _write(out: int, data: bytes) -> bool:
    """Whether all of it could be passed on."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(out, rest) :]
        except BlockingIOError:  # whoever started us made it non-blocking
            ready = select.poll()
            ready.register(out, select.POLLOUT)
            ready.poll()
        except OSError:
            return False
    return True
