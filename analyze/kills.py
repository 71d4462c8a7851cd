"""Ends that only the kernel tells of: a process that the OOM killer took, where nobody saw it end otherwise."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import Any, Final

import polars as pl

from roundk.analyze.told import told
from roundk.analyze.trace import Trace

SOURCE: Final = "kernel"
"""`exit_source` of such a rank."""

_SAID: Final = ("exit_code", "exit_signal", "goodbye_ns", "exception_type")


def with_kills(trace: Trace) -> Trace:
    """The trace in which ranks whose process the OOM killer ended have that as their end.

    Args:
        trace: What the sources found.
    """
    kills = {fact.rank: fact.time_ns for fact in told(trace, ("oom_kill",)) if fact.rank is not None}
    if not kills:
        return trace
    rows = [_ended(row, kills) for row in trace.ranks.iter_rows(named=True)]
    return replace(trace, ranks=pl.DataFrame(rows, schema=trace.ranks.schema))


def _ended(row: dict[str, Any], kills: dict[int, int | None]) -> dict[str, Any]:
    if row["rank"] not in kills or any(row[name] is not None for name in _SAID):
        return row
    return {**row, "exit_signal": int(signal.SIGKILL), "exit_ns": kills[row["rank"]], "exit_source": SOURCE}
