"""Interruptions by week, against the GPU-hours of the week."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from roundk.analyze.batch.jobs import when
from roundk.analyze.batch.table import INTERRUPTED, Category

_WEEK: Final = dt.timedelta(days=7)

MAX_WEEKS: Final = 520
"""Ten years: a clock that stood at 1970 does not make a thousand empty weeks."""


@dataclass(frozen=True)
class Week:
    """A week, Monday to Sunday, UTC.

    Attributes:
        name: ISO year and week, `2026-W31`.
        begins: Its Monday.
        interruptions: How many by category.
        gpu_hours: What all runs whose times and size are known used in it.
        gpu_hours_of: How many of the interruptions are of such runs.
    """

    name: str
    begins: dt.date
    interruptions: Mapping[Category, int]
    gpu_hours: float
    gpu_hours_of: int

    @property
    def count(self) -> int:
        """Interruptions."""
        return sum(self.interruptions.values())

    @property
    def per_1000_gpu_hours(self) -> float | None:
        """Interruptions per 1,000 GPU-hours, of the runs whose GPU-hours are known."""
        return 1000 * self.gpu_hours_of / self.gpu_hours if self.gpu_hours else None


@dataclass(frozen=True)
class Trend:
    """The weeks of a table.

    Attributes:
        weeks: From the first interruption's to the last's, those without any too.
        untimed: Interruptions without a time.
        earlier: Interruptions more than ten years before the last.
    """

    weeks: tuple[Week, ...]
    untimed: int
    earlier: int


def find(roots: pl.DataFrame) -> Trend:
    """Interruptions by week.

    A run counts in the week of its onset (else its end, else its start); its GPU-hours are spread evenly from its start
    to its end.

    Args:
        roots: Rows of `RUNS` with the root verdicts.
    """
    rows = list(roots.iter_rows(named=True))
    timed = [(_monday(at), row) for row in rows if row["status"] in INTERRUPTED and (at := when(row)) is not None]
    untimed = sum(row["status"] in INTERRUPTED and when(row) is None for row in rows)
    if not timed:
        return Trend((), untimed, 0)
    last = max(monday for monday, _ in timed)
    begin = last - (MAX_WEEKS - 1) * _WEEK
    shown = [(monday, row) for monday, row in timed if monday >= begin]
    counts: dict[dt.date, Counter[Category]] = {}
    known: Counter[dt.date] = Counter()
    for monday, row in shown:
        counts.setdefault(monday, Counter())[Category(row["category"] or Category.UNDETERMINED)] += 1
        known[monday] += _has_hours(row)
    first = min(counts)
    hours: dict[dt.date, float] = {}
    for row in rows:
        _spread(row, first, last, hours)
    weeks = []
    for number in range((last - first).days // 7 + 1):
        monday = first + number * _WEEK
        count = counts.get(monday, Counter())
        year, week, _ = monday.isocalendar()
        weeks.append(
            Week(
                f"{year}-W{week:02d}",
                monday,
                {category: count[category] for category in Category},
                hours.get(monday, 0.0),
                known[monday],
            )
        )
    return Trend(tuple(weeks), untimed, len(timed) - len(shown))


def _monday(at: dt.datetime) -> dt.date:
    day = at.astimezone(dt.UTC).date()
    return day - dt.timedelta(days=day.weekday())


def _has_hours(row: Mapping[str, Any]) -> bool:
    begin, end = row["started_at"], row["ended_at"]
    return row["gpu_hours"] is not None and begin is not None and end is not None and end > begin


def _spread(row: Mapping[str, Any], first: dt.date, last: dt.date, hours: dict[dt.date, float]) -> None:
    """Add the GPU-hours of a run to the weeks it ran in."""
    if not _has_hours(row):
        return
    begin, end = row["started_at"], row["ended_at"]
    monday, until = max(_monday(begin), first), min(_monday(end), last)
    while monday <= until:
        opens = dt.datetime.combine(monday, dt.time(), dt.UTC)
        inside = min(end, opens + _WEEK) - max(begin, opens)
        hours[monday] = hours.get(monday, 0.0) + row["gpu_hours"] * (inside / (end - begin))
        monday += _WEEK
