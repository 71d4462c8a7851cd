"""When a call starts and ends on a CUDA device, by timing events of our own around it. Never waits, never synchronises.

Not run on a GPU yet: written from torch's sources, and tested with events that stand in for CUDA's.

An event on the caller's stream ahead of the call tells when the device reached it (`start`). A synchronous call runs on
that stream, so that a second event behind it tells its end exactly; an asynchronous one runs on a stream of NCCL's own,
and its Work is asked. During graph capture nothing is recorded: the events would become part of the graph.

Source: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, torch 2.6 to 2.14 (a synchronous collective returns no Work;
the watchdog's CUDAStreamCaptureModeGuard); CUDA Runtime API, "Stream Management" and "Event Management".
"""

from __future__ import annotations

import collections
import ctypes
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from roundk.hooks import works
from roundk.tracer import words

if TYPE_CHECKING:
    from collections.abc import Callable

_ANCHOR_S = 10.0
"""Between two ties of device time to wall time: `elapsed_time` is a float32 of ms, 0.25 ms coarse after an hour."""
_MOST_WATCHED = 4_096
"""Calls watched at a time: beyond that the oldest lose their times, not the job its memory."""
_CAPTURE_MODE_THREAD_LOCAL = 1
"""cudaStreamCaptureModeThreadLocal: what this thread asks does not break a capture of another thread."""


class Mark(NamedTuple):
    """The event ahead of a call, its device, and where calls wait for the end of coalescing (None: nowhere)."""

    event: Any
    device: int
    coalescing: list[works.Call] | None


class _Watched:
    """A call whose times on the device are still to come."""

    __slots__ = ("call", "device", "end", "start", "started", "work")

    def __init__(self, call: works.Call, end: Any, work: Any) -> None:
        self.call = call
        self.start, self.device, _ = call[2]
        self.end = end
        self.work = work
        self.started = False


class DeviceTimes:
    """The calls of one process on CUDA devices. Marks come from the training threads, `ask` from the recorder's."""

    def __init__(self, cuda: Any, own_thread: Callable[[], bool]) -> None:
        """`cuda` is torch.cuda; `own_thread` makes the asking thread harmless to captures, or says that it cannot."""
        self._cuda = cuda
        self._own_thread = own_thread
        self._may_ask: bool | None = None
        self._pool: collections.deque[Any] = collections.deque()
        self._watched: collections.deque[_Watched] = collections.deque()
        self._anchors: dict[int, tuple[Any, int, float]] = {}
        self._streams: dict[int, Any] = {}

    def mark(self, device: int, coalescing: list[works.Call] | None) -> Mark | int:
        """An event on the current stream of a device; `UNSEEN` while it is captured."""
        event = self._record()
        return works.UNSEEN if event is None else Mark(event, device, coalescing)

    def _record(self) -> Any:
        if self._may_ask is False or self._cuda.is_current_stream_capturing():
            return None
        event = self._pool.pop() if self._pool else self._cuda.Event(enable_timing=True)
        event.record()
        return event

    def watch(self, call: works.Call, work: Any) -> None:
        """Await start and end of an issued call with a mark: by its Work, else by an event on the current stream."""
        call[0].is_timed[call[1]] = 1
        self._watched.append(_Watched(call, None if work is not None else self._record(), work))
        while len(self._watched) > _MOST_WATCHED:
            self._give_up(self._watched.popleft())
        if self._may_ask is False:
            self.close()

    def close(self) -> None:
        """Let go of all calls, and of those to come: nobody will ask for their times."""
        self._may_ask = False
        while self._watched:
            self._give_up(self._watched.popleft())

    def ask(self) -> None:
        """Store the times of what has started or ended meanwhile."""
        if not self._watched:
            return
        if self._may_ask is None:
            self._may_ask = self._own_thread()
        if not self._may_ask:
            self.close()
            return
        for _ in range(len(self._watched)):
            entry = self._watched.popleft()
            if not self._look_at(entry):
                self._watched.append(entry)

    def _look_at(self, entry: _Watched) -> bool:
        """Whether a call's times are all stored now."""
        columns, row, _ = entry.call
        if not entry.started:
            if not entry.start.query():
                return False
            entry.started = True
            columns.start_ns[row] = self._wall(entry.device, entry.start)
        if entry.work is not None:
            if not entry.work.is_completed():
                return False
            works.finish(entry.call, words.COMPLETED, time.time_ns())
        else:
            if entry.end is None:  # a capture began in between
                self._give_up(entry)
                return True
            if not entry.end.query():
                return False
            works.finish(entry.call, words.COMPLETED, self._wall(entry.device, entry.end))
        self._pool.extend(event for event in (entry.start, entry.end) if event is not None)
        return True

    def _give_up(self, entry: _Watched) -> None:
        entry.call[0].is_timed[entry.call[1]] = 0
        works.finish(entry.call, words.NOT_RECORDED, 0)

    def _wall(self, device: int, event: Any) -> int:
        """Unix time of an event that has happened; the time of asking where device time is not tied to it yet."""
        now = time.time_ns()
        known = self._anchors.get(device)
        if known is None or time.monotonic() - known[2] > _ANCHOR_S:
            self._tie(device)
        if known is None or not known[0].query():
            return now
        return min(now, known[1] + int(known[0].elapsed_time(event) * 1e6))

    def _tie(self, device: int) -> None:
        """Note the wall time of an event on an idle stream of ours, where it happens at once."""
        with self._cuda.device(device):
            stream = self._streams.get(device)
            if stream is None:
                stream = self._streams[device] = self._cuda.Stream()
            event = self._cuda.Event(enable_timing=True)
            event.record(stream)
        self._anchors[device] = (event, time.time_ns(), time.monotonic())


def harmless_to_captures() -> bool:
    """Give this thread a capture mode of its own; False where CUDA's runtime is not to be found in this process."""
    path = _loaded_library("libcudart")
    if path is None:
        return False
    exchange = getattr(ctypes.CDLL(path), "cudaThreadExchangeStreamCaptureMode", None)
    mode = ctypes.c_int(_CAPTURE_MODE_THREAD_LOCAL)
    return exchange is not None and exchange(ctypes.byref(mode)) == 0


def _loaded_library(name: str) -> str | None:
    """Path of a library that this process has mapped."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            paths = {line.split(maxsplit=5)[-1].strip() for line in maps if name in line}
    except OSError:
        return None
    return min(paths, default=None)
