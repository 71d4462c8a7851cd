"""Rows of the table of a batch, written down by hand: what a test does not say is as of a run that failed untold."""

from __future__ import annotations

import pyarrow as pa

from roundk.analyze.batch.table import CATEGORIES, RUNS
from roundk.analyze.names import Cause
from roundk.analyze.trace import frame

LISTS = ("hosts", "culprit_ranks", "culprit_hosts", "culprit_links", "sources")


def row(run, **fields):
    """A row; the category is that of the cause."""
    made = dict.fromkeys(RUNS.names) | {name: [] for name in LISTS}
    made |= {"run": run, "root": "runs", "verdict": 0, "status": "failed", "structure": "ALL_ENTERED_NONE_COMPLETED"}
    made |= {"structure_confidence": "high", "cause": "UNDETERMINED", "cause_confidence": "none"}
    made |= {"fingerprint": run, "roundk_version": "0"} | fields
    if made["cause"] is not None and made["category"] is None:
        made["category"] = CATEGORIES[Cause(made["cause"])].value
    return made


def table(rows):
    """The table of rows, as Arrow has it."""
    return pa.Table.from_pylist(sorted(rows, key=lambda one: (one["run"], one["verdict"])), schema=RUNS)


def runs(rows):
    """The table of rows, as the fleet report takes it."""
    return frame(table(rows))
