"""Whose device stopped? By the counters that dumps and logs carry: two frontiers, one of entering, one of completing.

A member that entered as its peers did and completed less of the same group than one of them has a device, stream or
driver that no longer tells of completions. One that entered less is another matter: it never came.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from roundk.analyze import cause
from roundk.analyze.case import Case
from roundk.analyze.endings import How
from roundk.analyze.finding import Evidence, Finding
from roundk.analyze.names import Structure
from roundk.analyze.phrases import NS_PER_S, capital, ranks_text, verb
from roundk.analyze.waitfor import WaitFor
from roundk.tracer import words

ON_HOSTS: Final = ("gloo", "mpi", "ucc")
"""Backends without a device of their own: there a lag is a rank that has not got out yet."""

LEAST_NS: Final = NS_PER_S
"""Time after a peer's completion from which on a lag is no tick of a watchdog."""

_GROUPS: Final = 2
"""Groups that must show the lag: in one alone it may be a tick of a watchdog."""


def stuck(case: Case, graph: WaitFor) -> list[Finding]:
    """Ranks whose completions stop short of what peers completed in the same groups, as one finding."""
    gone = [e.rank for e in case.endings.values() if e.stopped_ns is not None or e.how is not How.UNKNOWN]
    # Of a process that is stopped or gone nobody saw the ends any more.
    behind = lags(case).filter(~pl.col("rank").is_in(gone) | pl.lit(case.trace.is_post_mortem))
    several = behind.group_by("rank").len().filter(pl.col("len") >= _GROUPS)["rank"].to_list()
    # One group is enough where time shows that it is no tick of a watchdog, and all others got through: of a link that
    # broke, several suffer.
    # Where the way of the data is known, that is asked instead.
    has_way = "proxy_op" in case.trace.facts["kind"] or not case.trace.channels.is_empty()
    few = behind.filter(pl.col("members") == 1, pl.col("size") > 2, pl.lit(not has_way))
    lasting = [
        row["rank"] for row in few.iter_rows(named=True) if _is_lasting(case, row["group"], row["completed"] + 1)
    ]
    culprits = tuple(sorted({*several} or {*lasting}))
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
            f"short of theirs in {_groups(behind)}, so a device, stream or driver is stuck there.",
            culprits=culprits,
            group=lead["group"],
            seq=seq,
            op=op,
            onset_ns=_onset_ns(calls, graph),
            waiting=waiting,
            victim_ranks=waiting,
            victim_groups=tuple(sorted({*groups, *behind["group"].to_list()})),
            reason=cause.UNDETERMINED,
            doubts=_doubts(case, behind, lead["group"], seq),
            evidence=_evidence(case, behind, culprits),
            next_steps=(
                f"look at the GPUs of {ranks_text(culprits)}: Xid lines in the kernel log, nvidia-smi -q",
                f"run again without {_whereabouts(case, culprits)} before looking at the code: the others only wait",
            ),
        )
    ]


def _onset_ns(calls: pl.DataFrame, graph: WaitFor) -> int | None:
    """When the first member entered the call that is not completed; where no time of it is kept, of any open round."""
    first = calls["enter_ns"].min()
    return first if isinstance(first, int) else min((r.onset_ns for r in graph.rounds if r.onset_ns), default=None)


def _whereabouts(case: Case, culprits: tuple[int, ...]) -> str:
    """What to leave out of the next run: hosts where they are known."""
    hosts = {case.endings[rank].host for rank in culprits if rank in case.endings}
    if not hosts or None in hosts or "" in hosts:
        return f"the {verb(culprits, 'GPU of this rank', 'GPUs of these ranks')}"
    return "this host" if len(hosts) == 1 else "these hosts"


def _groups(behind: pl.DataFrame) -> str:
    count = behind["group"].n_unique()
    return f"{count} groups" if count > 1 else "that group"


def _is_lasting(case: Case, group: int, seq: int) -> bool:
    """A peer completed a call long before it was last heard of, or somebody waited in it for long; by its own clock."""
    if "collective_timeout" in case.trace.facts["kind"]:
        return True
    for row in case.round_calls(group, seq).filter(pl.col("end_ns").is_not_null()).iter_rows(named=True):
        if row["outcome"] == "failed" and row["enter_ns"] is not None and row["end_ns"] - row["enter_ns"] >= LEAST_NS:
            return True
        alive = case.endings[row["rank"]].last_alive_ns if row["rank"] in case.endings else None
        if row["outcome"] == "completed" and alive is not None and alive - row["end_ns"] >= LEAST_NS:
            return True
    return False


def _doubts(case: Case, behind: pl.DataFrame, group: int, seq: int) -> tuple[str, ...]:
    doubts: list[str] = []
    if behind["group"].n_unique() < _GROUPS:
        doubts.append("it shows in one group only: a broken link of a ring can leave the same picture")
    # In a job that goes on, a rank whose dump was written a moment before its peers' is behind them too.
    if not case.timed_out and not _is_lasting(case, group, seq):
        doubts.append(
            "nobody had given up, and nothing tells for how long it was behind: a job that goes on may look so"
        )
        if case.is_many(behind["rank"].unique().to_list()):
            doubts.append("that many are rather behind by a moment than stuck all at once")
    return tuple(doubts)


def lags(case: Case) -> pl.DataFrame:
    """Where a member entered what a peer of its group completed, and completed less.

    Returns:
        One row per (group, rank) that is behind.

        Columns:
            group, rank: Who, and where.
            completed, furthest (int64): Numbers of the last collective completed by it, and by any member.
            size (uint32): Members that tell.
            members (uint32): Members that are behind.
    """
    on_device = [g.key for g in case.groups.values() if g.backend and not g.backend.startswith(ON_HOSTS)]
    # The root of a broadcast, or who only gives to a reduce, is through before its peers.
    ahead = (
        case.calls.lazy()
        .filter(~pl.col("p2p"), pl.col("op").cast(pl.String).is_in(sorted(words.ROOTED)))
        .select("group", last_completed="seq", is_rooted=pl.lit(value=True))
        .unique()
    )
    told = (
        case.frontier.lazy()
        .filter(pl.col("group").is_in(on_device), pl.col("told") | (pl.col("last_entered") > 0), "ends_known")
        .join(ahead, on=["group", "last_completed"], how="left")
        .with_columns(reached=pl.col("last_completed") - pl.col("is_rooted").fill_null(value=False).cast(pl.Int64))
        .collect()
    )
    return (
        told.with_columns(furthest=pl.col("reached").max().over("group"), size=pl.len().over("group"))
        .filter(pl.col("last_completed") < pl.col("furthest"), pl.col("last_entered") >= pl.col("furthest"))
        .with_columns(members=pl.len().over("group"))
        # Where most are behind, the few are ahead.
        .filter(2 * pl.col("members") <= pl.col("size"))
        .select("group", "rank", "furthest", "size", "members", completed="last_completed")
        .sort("group", "rank")
    )


def _evidence(case: Case, behind: pl.DataFrame, culprits: tuple[int, ...]) -> tuple[Evidence, ...]:
    found = []
    for rank in culprits[:4]:
        for row in behind.filter(pl.col("rank") == rank).head(2).iter_rows(named=True):
            group = case.groups[row["group"]].text
            what = f"rank {rank} completed #{row['completed']} of {group}, a peer #{row['furthest']}"
            found.append(Evidence(what, case.source(rank), rank))
    return tuple(found)
