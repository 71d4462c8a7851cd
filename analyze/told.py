"""Facts that are not calls, decoded once: what was said, when, and of which rank and host."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import polars as pl

from roundk.analyze.finding import Evidence
from roundk.analyze.phrases import capital
from roundk.analyze.trace import Trace

_MOST: Final = 20_000
"""Facts of one question that are looked at: one of every rank of 16,384, and some."""


@dataclass(frozen=True)
class Told:
    """One fact.

    Attributes:
        rank: Global rank that it is about; None: not told, and no process id leads to one.
        host: Host that it is about, without its domain.
        fields: What was parsed of it.
    """

    kind: str
    text: str
    source: str
    time_ns: int | None
    host: str | None
    rank: int | None
    fields: dict[str, Any] = field(default_factory=dict, hash=False)

    @property
    def evidence(self) -> Evidence:
        """The fact as it stands in a report."""
        return Evidence(f"{self.host + ': ' if self.host else ''}{self.text}", self.source, self.rank, self.time_ns)

    @property
    def where(self) -> str:
        """`rank 3 (node-a)`, `node-a`, or nothing."""
        if self.rank is None:
            return self.host or ""
        return f"rank {self.rank} ({self.host})" if self.host else f"rank {self.rank}"

    @property
    def subject(self) -> str:
        """The same to begin a sentence with; a host's name stays as it is spelled."""
        return capital(self.where) if self.rank is not None else self.where

    def text_of(self, name: str) -> str | None:
        """A field that is a text."""
        value = self.fields.get(name)
        return value if isinstance(value, str) and value else None

    def number_of(self, name: str) -> int | None:
        """A field that is a number."""
        value = self.fields.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None


def told(trace: Trace, kinds: Iterable[str]) -> list[Told]:
    """The facts of these kinds, those without a time first, then by time.

    Args:
        trace: What the sources found.
        kinds: Kinds as the sources' modules list them.
    """
    if trace.facts.is_empty():
        return []
    of_process, of_rank = _processes(trace)
    rows = (
        trace.facts.filter(pl.col("kind").is_in(list(kinds)))
        .sort("time_ns", nulls_last=False, maintain_order=True)
        .head(_MOST)
    )
    return [_told(row, of_process, of_rank) for row in rows.iter_rows(named=True)]


def short_host(host: str | None) -> str | None:
    """A host without its domain: logs, kernels and schedulers spell one host in several ways. Addresses stay whole."""
    if not host or host.replace(".", "").isdigit() or ":" in host:
        return host or None
    return host.split(".")[0]


def _told(row: dict[str, Any], of_process: dict[tuple[str, int], int], of_rank: dict[int, str]) -> Told:
    fields = json.loads(row["fields"]) if row["fields"] else {}
    host, rank, pid = short_host(row["host"]), row["rank"], fields.get("pid")
    if rank is None and host is not None and isinstance(pid, int):
        rank = of_process.get((host, pid))
    if host is None and rank is not None:
        host = of_rank.get(rank)
    return Told(row["kind"], row["text"], row["source"], row["time_ns"], host, rank, fields)


def _processes(trace: Trace) -> tuple[dict[tuple[str, int], int], dict[int, str]]:
    """Ranks by host and process id, and hosts by rank."""
    known = trace.ranks.filter(pl.col("host").is_not_null()).select("rank", "host", "pid")
    hosts = {rank: short_host(host) or host for rank, host, _ in known.iter_rows()}
    return {(hosts[rank], pid): rank for rank, _, pid in known.iter_rows() if pid is not None}, hosts
