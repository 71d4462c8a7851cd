"""Notices a stall from inside: a call in flight for long, or no call for long where there had been calls.

Looks at the rows themselves, so that it costs the calls nothing. A process that never enters a round is quiet rather
than in a call, and its stack is the one that matters.
"""

from __future__ import annotations

import bisect
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from roundk.tracer.ring import Segment

_PATIENCE = 2.0
"""A stall that passed by itself lengthens the limit by this factor: slow jobs are not dumped every step."""
_MOST_S = 3_600.0
"""The limit grows no further."""
TIMEOUT_SHARE = 0.7
"""Share of a group's own timeout after which its calls count as stalled: before torch marks them as failed."""


class Stalled(NamedTuple):
    """A stall: since when, in seconds, and the number of the call in flight (None: there is none)."""

    seconds: float
    call: int | None


class StallWatch:
    """Watches the rows of one process."""

    def __init__(self, stall_s: float) -> None:
        self._limit_s = self._first_s = stall_s
        self._told: tuple[int | None, int] | None = None
        self._segments: list[tuple[Segment, int]] = []
        self._last_ns = time.time_ns()
        self._calls = 0

    def follow(self, segment: Segment) -> None:
        """Watch a segment too."""
        self._segments.append((segment, 0))

    def shorten(self, timeout_s: float) -> None:
        """Take a group's timeout into account."""
        self._limit_s = self._first_s = min(self._first_s, TIMEOUT_SHARE * timeout_s)

    def look(self) -> Stalled | None:
        """A stall not told before, or None."""
        now = time.time_ns()
        open_call = self._oldest_open()
        since, call = open_call or (self._last_ns, None)
        if not self._calls:
            return None
        if self._told is not None and self._told != (call, self._calls):
            self._told = None
            self._limit_s = min(_PATIENCE * self._limit_s, max(_MOST_S, self._first_s))
        seconds = (now - since) / 1e9
        if self._told is None and seconds > self._limit_s:
            self._told = (call, self._calls)
            return Stalled(seconds, call)
        return None

    def _oldest_open(self) -> tuple[int, int] | None:
        """When the oldest call in flight entered, and its number."""
        oldest = None
        kept = []
        for segment, done in self._segments:
            written, first_open = _scan(segment, done)
            if written:
                last = segment.columns.end_ns[written - 1] or segment.columns.enter_ns[written - 1]
                self._last_ns = max(self._last_ns, last)
                self._calls = max(self._calls, segment.base + written)
            if first_open < written and oldest is None:
                oldest = (segment.columns.enter_ns[first_open], segment.columns.commit[first_open])
            if first_open < segment.rows:
                kept.append((segment, first_open))
        self._segments = kept
        return oldest


def _scan(segment: Segment, done: int) -> tuple[int, int]:
    """Rows written so far, and the first one from `done` on that has not ended."""
    outcomes = bytes(segment.columns.outcome[done:])
    at = outcomes.find(b"\0")
    first_open = segment.rows if at < 0 else done + at
    commits = segment.columns.commit
    return bisect.bisect_left(range(segment.rows), 1, lo=first_open, key=lambda row: not commits[row]), first_open
