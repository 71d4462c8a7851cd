"""Whose device stopped? By the counters that dumps and logs carry: two frontiers, one of entering, one of completing.

A member that entered as its peers did and completed less of the same group than one of them has a device, stream or
driver that no longer tells of completions. One that entered less is another matter: it never came.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from roundk.analyze import cause
from roundk.analyze.case import Case
from roundk.analyze.finding import Evidence, Finding
from roundk.analyze.names import Structure
from roundk.analyze.phrases import capital, ranks_text, verb
from roundk.analyze.waitfor import WaitFor

ON_HOSTS: Final = ("gloo", "mpi", "ucc")
"""Backends without a device of their own: there a lag is a rank that has not got out yet."""

_GROUPS: Final = 2
"""Groups that must show the lag: in one alone it may be a tick of a watchdog."""


def stuck(case: Case, graph: WaitFor) -> list[Finding]:
    """Ranks whose completions stop short of what peers completed in the same groups, as one finding."""
    behind = lags(case)
    sure = behind.group_by("rank").len().filter(pl.col("len") >= _GROUPS)
    culprits = tuple(sorted(sure["rank"].to_list()))
    if not culprits:
        return []
    behind = behind.filter(pl.col("rank").is_in(culprits))
    # The group that most of them lag in, and there the first call that one of them did not complete.
    lead = behind.sort("members", "size", "group", descending=[True, True, False]).row(0, named=True)
    seq = int(behind.filter(pl.col("group") == lead["group"])["completed"].min() or 0) + 1  # type: ignore[arg-type]
    waiting = tuple(sorted(set(case.blocked["rank"].to_list()) - set(culprits)))
    _, groups = graph.victims(culprits)
    calls = case.round_calls(lead["group"], seq)
    op = str(calls["op"][0]) if calls.height else None
    where = f"{op or 'call'} #{seq} of {case.groups[lead['group']].text}"
    short = verb(culprits, "its completions stop", "their completions stop")
    return [
        Finding(
            structure=Structure.DEVICE_STUCK,
            summary=f"{capital(ranks_text(culprits))} entered {where} and did not complete it, and peers did: {short} "
            f"short of theirs in {behind['group'].n_unique()} groups, so a device, stream or driver is stuck there.",
            culprits=culprits,
            group=lead["group"],
            seq=seq,
            op=op,
            onset_ns=min((r.onset_ns for r in graph.rounds if r.onset_ns is not None), default=None),
            waiting=waiting,
            victim_ranks=waiting,
            victim_groups=tuple(sorted({*groups, *behind["group"].to_list()})),
            reason=cause.UNDETERMINED,
            evidence=_evidence(case, behind, culprits),
            next_steps=(
                f"look at the GPUs of {ranks_text(culprits)}: Xid lines in the kernel log, nvidia-smi -q",
                "run again without these hosts before looking at the code: the others only wait",
            ),
        )
    ]


def lags(case: Case) -> pl.DataFrame:
    """Where a member completed less than a peer of its group.

    Returns:
        One row per (group, rank) that is behind.

        Columns:
            group, rank: Who, and where.
            completed, furthest (int64): Numbers of the last collective completed by it, and by any member.
            size (uint32): Members that tell.
            members (uint32): Members that are behind.
            source (str): Input that says so.
    """
    on_device = [g.key for g in case.groups.values() if g.backend and not g.backend.startswith(ON_HOSTS)]
    told = case.trace.progress.filter(
        pl.col("counts") == "collectives", pl.col("op").is_null(), pl.col("group").is_in(on_device)
    )
    latest = (
        told.sort("completed", nulls_last=False, maintain_order=True)
        .group_by("group", "rank", maintain_order=True)
        .last()
        .with_columns(completed=pl.col("completed").fill_null(0))
    )
    return (
        latest.with_columns(furthest=pl.col("completed").max().over("group"), size=pl.len().over("group"))
        .filter(pl.col("completed") < pl.col("furthest"))
        .with_columns(members=pl.len().over("group"))
        .select("group", "rank", "completed", "furthest", "size", "members", "source")
        .sort("group", "rank")
    )


def _evidence(case: Case, behind: pl.DataFrame, culprits: tuple[int, ...]) -> tuple[Evidence, ...]:
    found = []
    for rank in culprits[:4]:
        for row in behind.filter(pl.col("rank") == rank).head(2).iter_rows(named=True):
            group = case.groups[row["group"]].text
            what = f"rank {rank} completed #{row['completed']} of {group}, a peer #{row['furthest']}"
            found.append(Evidence(what, row["source"], rank))
    return tuple(found)
