"""Python stacks of all threads of this process, in a file beside its rows: on a stall, on a fatal signal, on SIGTERM.

All are written by `faulthandler`, which needs no GIL in its signal handlers and in its timer. The timer is what speaks
for a process whose main thread holds the GIL: our thread renews it while it can, so that it fires only where it cannot.
There is one such timer per process; a script that sets it itself gets it, and ours is given up.

faulthandler needs an open file descriptor. A script may close all descriptors and get the number again for a file of
its own, so each use looks first, and the number is a high one, which few scripts come to. Between two renewals nobody
looks: if the timer or a signal comes then, and the number is already taken, the stacks land in the script's file.

Source: CPython 3.11 to 3.14, Modules/faulthandler.c.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import resource
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

from roundk.tracer import ring, side

if TYPE_CHECKING:
    from collections.abc import Callable

_RENEWALS = 4
"""Times that the timer is renewed within its term."""
_HIGH = 960
"""The descriptor's number where the process may have that many: a new file is given the lowest free one."""
_ROOM = 64
"""Else so far below the most that it may have."""


class Stacks:
    """The stacks file of one process. Made, dumped to and renewed by the recorder's own thread."""

    def __init__(self, path: str, term_s: float) -> None:
        """Open the file and hook the signals.

        Raises:
            OSError: the file cannot be made.
        """
        self._path = path
        self._fd = _opened(path, os.O_CREAT)
        self._file = ring.same_file(self._fd, path, None)
        self._mark("term")  # what a signal or the timer writes stands behind the last mark
        self._term_s = term_s
        self._renew_at = 0.0
        self._due = float("inf")
        self._timer = _Timer()
        self._forking = threading.Lock()
        self._enabled = not faulthandler.is_enabled()
        if self._enabled:
            self._enable()
        self._handler = signal.getsignal(signal.SIGTERM)
        self._register()

    def dump(self, why: str, call: int | None) -> None:
        """Write all threads' stacks now. `call`: number of the call that stalls; None: it is no call.

        Raises:
            OSError: the file is closed and cannot be opened again.
        """
        self._keep_open()
        self._mark("stall", why=why, call=call)
        faulthandler.dump_traceback(self._fd, all_threads=True)
        self._mark("term")

    def renew(self) -> None:
        """Start the timer anew, if a part of its term is over.

        Raises:
            OSError: the file is closed and cannot be opened again.
        """
        self._keep_open()
        now = time.monotonic()
        if now >= self._due:
            self._mark("term")  # the timer may have fired: what it wrote stands between two marks
        if now >= self._renew_at:
            self._due = now + self._term_s
            self._renew_at = now + self._term_s / _RENEWALS
            with self._forking:
                self._timer.start(self._term_s, self._fd)

    def before_fork(self) -> None:
        """Stop the timer until `after_fork`: a child would find its lock taken by a thread that it does not have."""
        self._forking.acquire()
        self._timer.stop()
        self._renew_at = 0.0

    def after_fork(self) -> None:
        """In the parent: the timer may run again."""
        self._forking.release()

    def in_child(self) -> None:
        """In a forked child: its signals and faults are not to write into the parent's file."""
        self._give_all_back()

    def close(self) -> None:
        """Stop the timer and give the signal back."""
        self._timer.stop()
        self._give_signal_back()

    def _keep_open(self) -> None:
        """Have our descriptor be ours: where it is not any more, open the file again and tell faulthandler."""
        with contextlib.suppress(OSError):
            ring.same_file(self._fd, self._path, self._file)
            return
        self._timer.stop()
        try:
            self._fd = _opened(self._path, 0)
            ring.same_file(self._fd, self._path, self._file)
        except OSError:
            self._give_all_back()
            raise
        self._renew_at = 0.0
        self._register()
        if self._enabled:
            self._enable_at(self._fd)

    def _register(self) -> None:
        """Have SIGTERM write to our descriptor; where it does so already, only the descriptor changes."""
        faulthandler.register(signal.SIGTERM, self._fd, all_threads=True, chain=True)

    def _enable(self) -> None:
        """Have fatal signals told in our file, until somebody else has them told elsewhere."""
        enable = self._enable_at = faulthandler.enable
        enable(self._fd)

        def taken(*args: Any, **kwargs: Any) -> None:
            self._enabled = False
            enable(*args, **kwargs)

        faulthandler.enable = taken

    def _give_all_back(self) -> None:
        """Have no signal write to our descriptor any more."""
        self._give_signal_back()
        if self._enabled:
            faulthandler.disable()

    def _give_signal_back(self) -> None:
        """Undo `register`, which would undo a handler of the job's too that was set since."""
        if signal.getsignal(signal.SIGTERM) is self._handler:
            faulthandler.unregister(signal.SIGTERM)

    def _mark(self, kind: str, **fields: Any) -> None:
        os.write(self._fd, side.encode({"kind": kind, "time_ns": time.time_ns(), **fields}))


def _opened(path: str, flags: int) -> int:
    """Open a file to append to, under a high number."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ring.above_streams():
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | flags, 0o644)
        try:
            return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, max(fd, min(_HIGH, most - _ROOM)))
        finally:
            os.close(fd)


class _Timer:
    """faulthandler's one timer, until somebody else takes it."""

    def __init__(self) -> None:
        self._start: Callable[..., None] = faulthandler.dump_traceback_later
        self._stop: Callable[[], None] = faulthandler.cancel_dump_traceback_later
        self._taken = False
        faulthandler.dump_traceback_later = self._others(self._start)
        faulthandler.cancel_dump_traceback_later = self._others(self._stop)

    def _others(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def taken(*args: Any, **kwargs: Any) -> Any:
            self._taken = True
            return original(*args, **kwargs)

        return taken

    def start(self, term_s: float, fd: int) -> None:
        if not self._taken:
            self._start(term_s, file=fd)

    def stop(self) -> None:
        if not self._taken:
            self._stop()
