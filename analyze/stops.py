"""When processes were stopped, as the launcher of their host saw it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import polars as pl

from roundk.analyze.endings import STOPPED_STATES
from roundk.analyze.finding import Evidence, Reason
from roundk.analyze.names import Cause, Confidence
from roundk.analyze.phrases import NS_PER_MS
from roundk.analyze.trace import Trace

LOOK_NS: Final = 300 * NS_PER_MS
"""The launcher looks every 250 ms: a state may be that much older than it is told, and a shorter one be missed."""


_SHOWN: Final = 3


@dataclass(frozen=True)
class Stop:
    """A time in which a process was stopped; `end_ns` None: to the end of what is recorded."""

    rank: int
    begin_ns: int
    end_ns: int | None
    evidence: Evidence

    def during(self, begin_ns: int, end_ns: int) -> int:
        """How long it was stopped within a time, in ns, as far as looks at intervals can tell."""
        until = end_ns if self.end_ns is None else min(self.end_ns, end_ns)
        return max(0, until - max(self.begin_ns - LOOK_NS, begin_ns))


def stops(trace: Trace) -> list[Stop]:
    """All stops, by rank and time.

    Args:
        trace: What the sources found; its facts of kind `state` tell `process N is T`.
    """
    told = trace.facts.filter(pl.col("kind") == "state", pl.col("rank").is_not_null(), pl.col("time_ns").is_not_null())
    found: list[Stop] = []
    for (rank,), rows in told.sort("time_ns", maintain_order=True).group_by("rank", maintain_order=True):
        found.extend(_of(int(str(rank)), rows.iter_rows(named=True)))
    return sorted(found, key=lambda stop: (stop.rank, stop.begin_ns))


def filling(found: Iterable[Stop], windows: Iterable[tuple[int, int]], lost_ns: int) -> list[Stop]:
    """The stops of the one rank that fill most of a time that was lost; none where no rank's do.

    Args:
        found: Stops of the ranks that come into question.
        windows: Begin and end of each time in which something was waited for, Unix ns.
        lost_ns: How much was lost in them.
    """
    times = list(windows)
    lengths = [(stop, sum(stop.during(begin, end) for begin, end in times)) for stop in found]
    by_rank: dict[int, int] = {}
    for stop, length in lengths:
        by_rank[stop.rank] = by_rank.get(stop.rank, 0) + length
    rank = max(by_rank, key=lambda one: by_rank[one], default=None)
    if rank is None or 2 * by_rank[rank] < lost_ns:
        return []
    return [stop for stop, length in lengths if stop.rank == rank and length]


def reason(found: list[Stop]) -> Reason:
    """PROCESS_STOPPED, by stops that are over."""
    shown = tuple(stop.evidence for stop in found[:_SHOWN])
    because = "its process was stopped" if len(found) == 1 else f"its process was stopped {len(found)} times"
    return Reason(Cause.PROCESS_STOPPED, Confidence.HIGH, because, shown)


def _of(rank: int, rows: Iterable[dict[str, object]]) -> list[Stop]:
    found: list[Stop] = []
    stopped: tuple[int, Evidence] | None = None
    for row in rows:
        text, at = str(row["text"]), int(str(row["time_ns"]))
        is_stopped = text.rpartition(" ")[2] in STOPPED_STATES
        if is_stopped and stopped is None:
            stopped = at, Evidence(f"rank {rank}: {text} (stopped)", str(row["source"]), rank, at)
        elif not is_stopped and stopped is not None:
            found.append(Stop(rank, stopped[0], at, stopped[1]))
            stopped = None
    return [*found, *([] if stopped is None else [Stop(rank, stopped[0], None, stopped[1])])]
