"""The times of stuck and slow rounds, from what the report says of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl

from roundk.analyze import onpath
from roundk.analyze.case import Case
from roundk.analyze.names import Structure
from roundk.analyze.verdict import SLOW, UNSAID, Report, Verdict

_FINE: Final = frozenset({Structure.HEALTHY, Structure.IN_PROGRESS, Structure.CONFIG_FINDING})

Times = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Window:
    """A time in which rounds were slow, or stuck, Unix ns."""

    begin_ns: int
    end_ns: int
    is_stuck: bool


class Cover:
    """How much of any time lies within windows that do not overlap."""

    def __init__(self, windows: Sequence[Window]) -> None:
        self._begins = np.array([one.begin_ns for one in windows], dtype=np.int64)
        lengths = np.array([one.end_ns - one.begin_ns for one in windows], dtype=np.int64)
        self._lengths = lengths
        self._before = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])

    def until(self, times: Times) -> Times:
        """The time within windows before each of these times, ns."""
        if not len(self._begins):
            return np.zeros(len(times), dtype=np.int64)
        last = np.searchsorted(self._begins, times, side="right") - 1
        at = np.maximum(last, 0)
        inside = np.clip(times - self._begins[at], 0, self._lengths[at])
        return np.where(last < 0, 0, self._before[at] + inside)


def windows(case: Case, report: Report) -> tuple[Window, ...]:
    """When rounds were slow or stuck, in order of time; what overlaps is one window.

    Args:
        case: The case.
        report: The report on it.
    """
    if case.calls.is_empty():
        return ()
    return _united(window for verdict in report.verdicts for window in _of(case, verdict))


def _of(case: Case, verdict: Verdict) -> list[Window]:
    if verdict.structure in _FINE or verdict.structure in UNSAID or verdict.onset_ns is None:
        return []
    if verdict.structure in SLOW:
        return _rounds(case, verdict)
    end = onpath.gave_up_ns(case) or 0
    return [Window(verdict.onset_ns, end if end > verdict.onset_ns else _end(case), is_stuck=True)]


def _rounds(case: Case, verdict: Verdict) -> list[Window]:
    """The rounds that a verdict lists, from the first enter to the end."""
    listed = {(one.seq, one.time_ns) for one in verdict.occurrences}
    found = case.rounds.filter(pl.col("seq").is_in([seq for seq, _ in listed]))
    return [
        Window(begin, begin + inside, is_stuck=False)
        for seq, begin, last, inside in found.select(
            "seq", "first_enter_ns", "last_enter_ns", "longest_inside_ns"
        ).iter_rows()
        if (seq, last) in listed and None not in (begin, inside)
    ]


def _end(case: Case) -> int:
    """The end of what is recorded."""
    last = case.trace.counters["time_ns"].max()
    return max(case.last_alive_ns, case.trace.ended_ns or 0, last if isinstance(last, int) else 0)


def _united(found: Iterable[Window]) -> tuple[Window, ...]:
    made: list[Window] = []
    for one in sorted(found, key=lambda window: (window.begin_ns, window.end_ns)):
        if one.end_ns <= one.begin_ns:
            continue
        if made and one.begin_ns <= made[-1].end_ns:
            last = made[-1]
            made[-1] = Window(last.begin_ns, max(last.end_ns, one.end_ns), last.is_stuck or one.is_stuck)
        else:
            made.append(one)
    return tuple(made)
