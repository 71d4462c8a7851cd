"""The same job failing the same way, attempt after attempt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from roundk.analyze.batch.jobs import Port
from roundk.analyze.batch.table import INTERRUPTED, Category
from roundk.analyze.names import Structure

_UNTOLD: Final = (Structure.INSUFFICIENT_EVIDENCE, Structure.METHODS_DISAGREE)
"""That two attempts could not be told does not make them alike."""


@dataclass(frozen=True)
class Repeat:
    """A job that failed the same way more than once.

    Attributes:
        job: Its id.
        structure: Who and where.
        cause: Why.
        runs: The attempts that failed so.
        attempts: Attempts of the job in all.
        culprit: The port, host or operation that most of them name; empty: none is named twice.
        culprit_in: In how many of them.
    """

    job: str
    structure: str
    cause: str
    runs: tuple[str, ...]
    attempts: int
    culprit: str
    culprit_in: int


def find(roots: pl.DataFrame, names: Mapping[str, str]) -> tuple[Repeat, ...]:
    """Jobs that failed the same way more than once, those with most such attempts first.

    Args:
        roots: Rows of `RUNS` with the root verdicts.
        names: One name for every host.
    """
    attempts: Counter[str] = Counter()
    alike: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for row in roots.filter(pl.col("job").is_not_null()).iter_rows(named=True):
        attempts[row["job"]] += 1
        if row["status"] in INTERRUPTED and row["structure"] not in (None, *_UNTOLD):
            alike.setdefault((row["job"], row["structure"], row["cause"] or ""), []).append(row)
    made = []
    for (job, structure, cause), rows in alike.items():
        if len(rows) < 2:
            continue
        culprits = Counter(name for row in rows for name in _culprits(row, names))
        culprit, count = min(culprits.items(), key=lambda one: (-one[1], one[0]), default=("", 0))
        runs = tuple(sorted(row["run"] for row in rows))
        made.append(
            Repeat(job, structure, cause, runs, attempts[job], culprit if count > 1 else "", count if count > 1 else 0)
        )
    return tuple(sorted(made, key=lambda one: (-len(one.runs), one.job, one.structure, one.cause)))


def _culprits(row: Mapping[str, Any], names: Mapping[str, str]) -> set[str]:
    if row["category"] != Category.CODE:
        if row["culprit_links"]:
            return {Port(names[one["host"]], one["device"], one["port"]).text for one in row["culprit_links"]}
        if row["culprit_hosts"]:
            return {names[host] for host in row["culprit_hosts"]}
    return {f"{row['op']} of {row['group']}" if row["group"] else row["op"]} if row["op"] else set()
