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
    """A stall: since when, in seconds, and the number of the call in flight (None: there is no new one)."""

    seconds: float
    call: int | None


class _Open(NamedTuple):
    """A call in flight: when it entered, and its number."""

    enter_ns: int
    call: int


class StallWatch:
    """Watches the rows of one process.

    Attributes:
        waits_since_ns: When the oldest call that was in flight at the last look entered; 0: none was.
    """

    def __init__(self, stall_s: float) -> None:
        self._limit_s = self._first_s = stall_s
        self._stalled: Stalled | None = None
        self._told = self._quiet = 0
        self._again_s = 0.0
        self._segments: list[tuple[Segment, int]] = []
        self._last_ns = time.time_ns()
        self._calls = 0
        self.waits_since_ns = 0

    def follow(self, segment: Segment) -> None:
        """Watch a segment too."""
        self._segments.append((segment, 0))

    def shorten(self, timeout_s: float) -> None:
        """Take a group's timeout into account."""
        first_s = TIMEOUT_SHARE * timeout_s
        if first_s < self._first_s:  # else what stalls have made of the limit holds
            self._limit_s = self._first_s = first_s

    def look(self) -> Stalled | None:
        """A stall not told before, or one that has lasted twice as long as when it was; or None.

        A stall is told once for all calls that are in flight then. Those that enter later, and the quiet after them,
        are looked at by themselves, so that a receive posted far ahead hides nothing.
        """
        oldest, newest = self._in_flight()
        self.waits_since_ns = oldest.enter_ns if oldest is not None else 0
        now = time.time_ns()
        if self._stalled is not None and self._is_over(self._stalled):
            self._stalled = None
            self._limit_s = min(_PATIENCE * self._limit_s, max(_MOST_S, self._first_s))
        found, limit_s = None, self._limit_s
        if newest is not None:
            found = Stalled((now - newest.enter_ns) / 1e9, newest.call)
        elif self._calls > (self._quiet if oldest is None else self._told):
            found = Stalled((now - self._last_ns) / 1e9, None)
        if (found is None or found.seconds <= limit_s) and oldest is not None and oldest.call <= self._told:
            found, limit_s = Stalled((now - oldest.enter_ns) / 1e9, oldest.call), self._again_s
        if found is None or found.seconds <= limit_s:
            return None
        self._stalled, self._told = found, self._calls
        if found.call is None:
            self._quiet = self._calls
        if oldest is not None:
            self._again_s = _PATIENCE * (now - oldest.enter_ns) / 1e9
        return found

    def _is_over(self, stalled: Stalled) -> bool:
        """Whether the stall has passed: its call has ended, or there was another after the quiet."""
        if stalled.call is None:
            return self._calls > self._told
        for segment, _ in self._segments:
            row = stalled.call - 1 - segment.base
            if 0 <= row < segment.rows:
                return bool(segment.columns.outcome[row])
        return True

    def _in_flight(self) -> tuple[_Open | None, _Open | None]:
        """The oldest call in flight, and the oldest that entered since a stall was told."""
        oldest = newest = None
        kept = []
        for segment, done in self._segments:
            outcomes = bytes(segment.columns.outcome[done:])
            first_open = _open_row(outcomes, done, done)
            written = _written(segment, first_open)
            if written:
                last = segment.columns.end_ns[written - 1] or segment.columns.enter_ns[written - 1]
                self._last_ns = max(self._last_ns, last)
                self._calls = max(self._calls, segment.base + written)
            if first_open < written:
                oldest = oldest or _open(segment, first_open)
                new_open = _open_row(outcomes, done, max(done, self._told - segment.base))
                if new_open < written:
                    newest = newest or _open(segment, new_open)
            if first_open < segment.rows:
                kept.append((segment, first_open))
        self._segments = kept
        return oldest, newest


def _open_row(outcomes: bytes, base: int, start: int) -> int:
    """The first row from `start` on that has not ended, or the number of rows; `base`: row of the first outcome."""
    at = outcomes.find(b"\0", start - base)
    return base + (len(outcomes) if at < 0 else at)


def _written(segment: Segment, start: int) -> int:
    """Rows written so far; `start`: so many are, at least."""
    commits = segment.columns.commit
    return bisect.bisect_left(range(segment.rows), 1, lo=start, key=lambda row: not commits[row])


def _open(segment: Segment, row: int) -> _Open:
    return _Open(segment.columns.enter_ns[row], segment.columns.commit[row])
