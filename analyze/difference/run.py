"""One of the two runs: its tables, the verdict on it, and what is asked of it more than once."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import polars as pl

from roundk.analyze import diagnose
from roundk.analyze.case import build
from roundk.analyze.sources.part import Part
from roundk.analyze.told import Told, short_host, told
from roundk.analyze.trace import Trace
from roundk.analyze.verdict import Report
from roundk.tracer import words

_NO_DESCRIPTION: Final = ("", "undefined")
"""Torch's own fillers."""
_NCCL: Final = re.compile(r"\b(?:NCCL|communication library) (\d+\.\d[\d.]*\d)")
"""In the versions that sources tell."""


@dataclass(frozen=True)
class Run:
    """A run to compare.

    Attributes:
        name: What the user named.
        trace: Its tables.
        report: The verdict on it.
        parts: What each source beside a run directory gave.
    """

    name: str
    trace: Trace
    report: Report
    parts: Sequence[Part] = ()

    @cached_property
    def hosts(self) -> dict[int, str]:
        """Host of each rank that is known to be on one."""
        known = self.trace.ranks.filter(pl.col("host").is_not_null()).select("rank", "host")
        return {rank: short_host(host) or host for rank, host in known.iter_rows()}

    @cached_property
    def groups(self) -> pl.DataFrame:
        """The groups without those of pseudo-calls.

        Columns: those of `schema.GROUPS`; label (str): the description, or the name where nobody gave one.
        """
        has_description = ~pl.col("desc").is_in(list(_NO_DESCRIPTION))
        label = pl.when(has_description).then("desc").otherwise(pl.format("group {}", "name"))
        return self.trace.groups.filter(pl.col("desc") != words.CONTROL).with_columns(label=label)

    @cached_property
    def calls(self) -> pl.DataFrame:
        """The calls of these groups in the order in which their ranks entered; `op` and others as text, and `label`."""
        named = self.groups.select("group", "label", group_name="name")
        columns = [pl.col(name).cast(pl.String) for name in ("op", "dtype", "reduce_op", "shapes")]
        return self.trace.calls.with_columns(columns).join(named, on="group", how="inner", maintain_order="left")

    @cached_property
    def world_size(self) -> int | None:
        """Number of ranks; None where no source tells it: as many as were seen may be fewer than there were."""
        return self.trace.world_size if self.trace.is_size_told else None

    @cached_property
    def callers(self) -> frozenset[int]:
        """Ranks of which there are calls."""
        return frozenset(self.calls["rank"].unique().to_list())

    @cached_property
    def is_whole(self) -> bool:
        """There are calls of every rank of it."""
        return self.world_size is not None and self.callers.issuperset(range(self.world_size))

    def may_have(self, ranks: Collection[int]) -> bool:
        """No calls of these ranks are recorded here: what only they do may be done here too."""
        return not self.is_whole and self.callers.isdisjoint(ranks)

    @property
    def uses_nccl(self) -> bool:
        """A group of it has NCCL as a backend."""
        return bool(self.groups["backend"].str.contains("nccl", literal=True).any())

    @property
    def is_recorded(self) -> bool:
        """It has a run directory of our own recorder."""
        return "run_directory" in self.trace.sources

    @cached_property
    def blamed_hosts(self) -> frozenset[str]:
        """Hosts that the verdicts on it name."""
        named = {host for verdict in self.report.verdicts for host in verdict.culprit_hosts}
        named |= {link.host for verdict in self.report.verdicts for link in verdict.culprit_links}
        named |= {self.hosts[r] for v in self.report.verdicts for r in v.culprit_ranks if r in self.hosts}
        return frozenset(short_host(host) or host for host in named)

    def facts(self, *kinds: str) -> list[Told]:
        """Its facts of these kinds."""
        return told(self.trace, kinds)

    @cached_property
    def nccl(self) -> tuple[str, ...]:
        """Versions of NCCL that its dumps and logs tell."""
        listed = "; ".join(version for part in self.parts for version in part.versions)
        return tuple(sorted(set(_NCCL.findall(listed))))

    def has(self, kinds: Collection[str]) -> bool:
        """Whether there is a fact of one of these kinds."""
        return bool(self.trace.facts["kind"].is_in(list(kinds)).any())


def run_of(name: str, trace: Trace, parts: Sequence[Part], *, now_ns: int) -> Run:
    """A run, judged.

    Args:
        name: What the user named.
        trace: Its tables.
        parts: What each source gave.
        now_ns: The time of the analysis.
    """
    report = diagnose.report(build(trace, now_ns=now_ns, stall_ns=diagnose.STALL_NS))
    return Run(name, trace, report, tuple(parts))
