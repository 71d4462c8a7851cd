"""Is one rank late for round after round, or now this one and now that, so that the others spend their time waiting?

In a round that completes, the straggler is the last to enter, and it spends the least time inside: the second needs no
common clock, so a host whose clock is ahead is not taken for a slow one. A rank that was held up in another group's
round is not the straggler: only time that it spent outside of calls counts.
"""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from roundk.analyze.case import Case
from roundk.analyze.cause import UNDETERMINED, stack_evidence
from roundk.analyze.finding import Evidence, Finding, Occurrence, Reason
from roundk.analyze.names import Cause, Confidence, Structure
from roundk.analyze.phrases import NS_PER_MS, capital, duration, ranks_text
from roundk.analyze.stops import filling
from roundk.analyze.stops import reason as stopped

ON_CPU: Final = "gloo"
"""The backend whose calls keep the host until they are over."""

LATE_NS: Final = 50 * NS_PER_MS
"""Least lateness that counts: above what an oversubscribed scheduler adds to a wake-up now and then."""

LATE_TIMES: Final = 5
"""Least lateness in multiples of the usual spread of the others."""

START_ROUNDS: Final = 2
"""First rounds of a group, in which members come from different amounts of start-up work."""

SHARE: Final = 0.8
"""Share of all lateness that one rank must cause to be called the straggler."""

LOST_SHARE: Final = 0.1
"""Share of the observed time that must be lost for the run to be called slow."""

MIN_ROUNDS: Final = 3
"""Late rounds that make a habit; in a shorter run, two that are more than half of its rounds."""

ALIKE: Final = 1.25
"""The longest of several pauses by the shortest, up to which they are of one length."""

PAUSE_NS: Final = 200 * NS_PER_MS
"""Least lateness of a single pause worth a verdict beside that on a stuck run."""

LONG_PAUSE_NS: Final = 1_000 * NS_PER_MS
"""Least lateness of single pauses that is told of a run that did not get stuck: of short jobs less is a large part."""

PAUSE_ROUNDS: Final = 8
"""Rounds of a group from which on one of them can stand out."""

PAUSE_TIMES: Final = 10
"""The same in multiples of the usual spread of the others."""


def habitual(case: Case) -> list[Finding]:
    """The rank that makes a run slow by being late again and again."""
    rounds = judged(case)
    late = _late(case, rounds, LATE_NS, LATE_TIMES)
    if late.is_empty():
        return []
    lost = (
        late.group_by("last_rank")
        .agg(lost=pl.col("late_ns").sum(), rounds=pl.len())
        .sort("lost", "last_rank", descending=[True, False])
    )
    rank, rank_lost, count = lost.row(0)
    many = count >= MIN_ROUNDS or (count > 1 and 2 * count > rounds.height)
    span = span_ns(rounds)
    if rank_lost >= SHARE * sum(lost["lost"].to_list()):
        slow = many and rank_lost >= LOST_SHARE * span
        return [_finding(case, late.filter(pl.col("last_rank") == rank), span)] if slow else []
    # The work itself may keep all of them apart; a pause stands out.
    apart = _late(case, rounds, PAUSE_NS, PAUSE_TIMES).filter(4 * pl.col("others_skew_ns") <= pl.col("late_ns"))
    several = apart["last_rank"].n_unique() > 1 and apart.height >= MIN_ROUNDS
    return [_rotating(case, apart, span)] if several and apart["late_ns"].sum() >= LOST_SHARE * span else []


def busy(case: Case) -> list[Finding]:
    """The rank that works longer than all others before round after round, where their transfers are slow as well.

    On a slow link the others come one by one from the round before, so that nobody is much later than the last but one.
    """
    rounds = judged(case)
    own = outside(case, pl.Series(sorted(case.endings), dtype=pl.Int32)).sort(
        "group", "seq", "own_ns", nulls_last=False
    )
    most = own.group_by("group", "seq", maintain_order=True).agg(
        busiest=pl.col("rank").last(),
        own_ns=pl.col("own_ns").last(),
        excess_ns=pl.col("own_ns").last() - pl.col("own_ns").get(-2, null_on_oob=True),
    )
    late = (
        rounds.join(most, on=["group", "seq"])
        .filter(pl.col("busiest") == pl.col("last_rank"), pl.col("excess_ns") >= LATE_NS)
        .with_columns(late_ns=pl.min_horizontal("excess_ns", "skew_ns"))
        .sort("last_enter_ns")
    )
    lost = late.group_by("last_rank").agg(lost=pl.col("late_ns").sum(), rounds=pl.len()).sort("lost", descending=True)
    if lost.is_empty():
        return []
    rank, rank_lost, count = lost.row(0)
    span = span_ns(rounds)
    is_habit = count >= MIN_ROUNDS and rank_lost >= max(SHARE * sum(lost["lost"].to_list()), LOST_SHARE * span)
    return [_finding(case, late.filter(pl.col("last_rank") == rank), span)] if is_habit else []


def pauses(case: Case, known: set[int], *, is_stuck: bool) -> list[Finding]:
    """Ranks that held everybody up once or twice.

    Args:
        case: The case.
        known: Ranks that a verdict already names.
        is_stuck: The run got stuck for another reason; of one that did not, only pauses that cost much of it or of
            which the cause is sure are worth a verdict.
    """
    rounds = judged(case)
    late = _late(case, rounds, PAUSE_NS, PAUSE_TIMES).filter(
        pl.col("rounds") >= PAUSE_ROUNDS,
        ~pl.col("last_rank").is_in(sorted(known)),
        4 * pl.col("others_skew_ns") <= pl.col("late_ns"),
    )
    ranks = (
        late.group_by("last_rank").agg(lost=pl.col("late_ns").sum()).sort("lost", "last_rank", descending=[True, False])
    )
    span = span_ns(rounds)
    found = [
        (lost, _finding(case, late.filter(pl.col("last_rank") == rank), span))
        for rank, lost in ranks.head(1).iter_rows()
    ]
    return [
        finding
        for lost, finding in found
        if is_stuck or (lost >= LONG_PAUSE_NS and (lost >= LOST_SHARE * span or _is_sure(finding)))
    ]


def _is_sure(finding: Finding) -> bool:
    return finding.reason is not None and finding.reason.confidence is Confidence.HIGH


def judged(case: Case) -> pl.DataFrame:
    """Complete rounds after the start-up, with the usual spread of the others.

    Columns added to those of `rounds.rounds`:
        late_ns (int64): How long the last member kept the last but one waiting.
        usual_ns (float64): Median spread of the other members in this group.
        rounds (uint32): Rounds of the group that are judged.
    """
    return case.ordinary_rounds.filter(
        pl.col("completed") == pl.col("size"), pl.col("size") > 1, pl.col("seq") > START_ROUNDS, ~pl.col("differs")
    ).with_columns(
        late_ns=pl.col("last_enter_ns") - pl.col("second_last_enter_ns"),
        usual_ns=pl.col("others_skew_ns").median().over("group"),
        rounds=pl.len().over("group"),
    )


def outside(case: Case, ranks: pl.Series) -> pl.DataFrame:
    """How long ranks had been outside of calls when they entered one."""
    ended = pl.col("end_ns").shift(1)
    entered = pl.col("enter_ns").shift(1)
    # A call that is still under way when the next one is entered was asynchronous and held nobody up.
    free = pl.when(ended <= pl.col("enter_ns")).then(ended).otherwise(entered)
    return (
        case.calls.lazy()
        .select("rank", "group", "seq", "site", "p2p", "enter_ns", "end_ns")
        .filter(pl.col("rank").is_in(ranks.unique().to_list()))
        .with_columns(own_ns=pl.when(pl.col("rank") == pl.col("rank").shift(1)).then(pl.col("enter_ns") - free))
        .filter(~pl.col("p2p"))
        .select("rank", "group", "seq", "site", "own_ns")
        .collect()
    )


def _late(case: Case, judged: pl.DataFrame, least_ns: int, times: int) -> pl.DataFrame:
    """The rounds to which one member came late through its own doing."""
    late = judged.filter(
        pl.col("late_ns") >= least_ns,
        pl.col("late_ns") >= times * pl.col("usual_ns"),
        2 * (pl.col("others_inside_ns") - pl.col("last_inside_ns")) >= pl.col("late_ns"),
    )
    own = outside(case, late["last_rank"])
    return (
        late.join(own, left_on=["group", "seq", "last_rank"], right_on=["group", "seq", "rank"], how="left")
        .filter(pl.col("own_ns").is_null() | (2 * pl.col("own_ns") >= pl.col("late_ns")))
        .sort("last_enter_ns")
    )


def span_ns(rounds: pl.DataFrame) -> int:
    """From the first enter of some rounds to the last."""
    first, last = rounds["first_enter_ns"].min(), rounds["last_enter_ns"].max()
    return last - first if isinstance(first, int) and isinstance(last, int) else 0


def _rotating(case: Case, late: pl.DataFrame, span_ns: int) -> Finding:
    """Now one rank is late and now another."""
    rows = list(late.iter_rows(named=True))
    first = rows[0]
    ranks = tuple(sorted({int(row["last_rank"]) for row in rows}))
    lost = sum(row["late_ns"] for row in rows)
    shortest, longest = min(row["late_ns"] for row in rows), max(row["late_ns"] for row in rows)
    call = case.call(first["group"], first["seq"], int(first["last_rank"]))
    op = None if call is None else str(call["op"])
    alike = longest <= ALIKE * shortest
    length = f"{duration(shortest)} to {duration(longest)} each" if shortest < longest else f"{duration(longest)} each"
    hint = (
        "pauses of one length that go round are like garbage collection: gc.freeze(), or gc.collect() on all ranks in "
        "the same step"
        if alike
        else f"look at what {ranks_text(ranks)} do before they enter: data loading, checkpoints, garbage collection"
    )
    return Finding(
        structure=Structure.ROTATING_STRAGGLER,
        summary=f"Nothing hangs; {ranks_text(ranks)} are late in turn, {len(rows)} times in all ({length}), first rank "
        f"{first['last_rank']} for {case.round_text(first['group'], first['seq'], op or 'call', _site(call))}: the "
        f"others lost {duration(lost)}{_share(lost, span_ns)} waiting. No single rank is slow.",
        culprits=ranks,
        group=first["group"],
        seq=first["seq"],
        op=op,
        onset_ns=first["first_enter_ns"],
        victim_groups=tuple(sorted({row["group"] for row in rows})),
        reason=UNDETERMINED,
        evidence=tuple(_lateness(case, row) for row in rows[:5]),
        next_steps=(hint,),
        occurrences=tuple(Occurrence(int(row["last_rank"]), row["seq"], row["last_enter_ns"]) for row in rows[:64]),
    )


def _site(call: dict[str, Any] | None) -> int | None:
    return None if call is None else call["site"]


def _share(lost_ns: int, span_ns: int) -> str:
    return f" ({100 * lost_ns / span_ns:.0f} % of {duration(span_ns)})" if span_ns else ""


def _reason(case: Case, rows: list[dict[str, Any]], rank: int) -> Reason:
    """Why a rank is late: it was stopped, or it spent the time in its own code."""
    windows = [(row["second_last_enter_ns"], row["last_enter_ns"]) for row in rows]
    held = filling([stop for stop in case.stops if stop.rank == rank], windows, sum(row["late_ns"] for row in rows))
    if held:
        return stopped(held)
    seen = [
        dump
        for dump in case.dumps.get(rank, ())
        if dump.time_ns is not None and any(begin <= dump.time_ns <= end for begin, end in windows)
    ]
    if seen:
        shown = tuple(stack_evidence(dump, "while the others waited for it,") for dump in seen[:2])
        return Reason(Cause.HOST_STALL, Confidence.HIGH, f"it was in {seen[0].place}", shown)
    # A GPU that is slow keeps its host from coming too; without one it can only be the rank's own code.
    if case.groups[rows[0]["group"]].backend != ON_CPU or any(row["own_ns"] is None for row in rows):
        return UNDETERMINED
    own = sum(row["own_ns"] for row in rows)
    because = f"it spent {duration(own)} between its calls"
    return Reason(Cause.HOST_STALL, Confidence.MEDIUM, because, ())


def _lateness(case: Case, row: dict[str, Any]) -> Evidence:
    rank = int(row["last_rank"])
    what = (
        f"#{row['seq']}: rank {rank} came last, after {duration(row['own_ns'])} between its calls, "
        f"{duration(row['excess_ns'])} more than any other"
        if "excess_ns" in row
        else f"#{row['seq']}: rank {rank} came {duration(row['late_ns'])} after the last of the others, who lay within "
        f"{duration(row['others_skew_ns'])}"
    )
    return Evidence(what, case.source(rank), rank, row["last_enter_ns"])


def _finding(case: Case, late: pl.DataFrame, span_ns: int) -> Finding:
    rows = list(late.iter_rows(named=True))
    first, rank = rows[0], int(rows[0]["last_rank"])
    lost = sum(row["late_ns"] for row in rows)
    others = tuple(r for r in case.member_ranks(first["group"]) if r != rank)
    call = case.call(first["group"], first["seq"], rank)
    op = None if call is None else str(call["op"])
    times = f"in {len(rows)} rounds" if len(rows) > 1 else "once"
    where = case.round_text(first["group"], first["seq"], op or "call", _site(call))
    share = _share(lost, span_ns)
    return Finding(
        structure=Structure.STRAGGLER,
        summary=f"{capital(ranks_text([rank]))} is late {times}, first for {where}: {ranks_text(others)} lost "
        f"{duration(lost)}{share} waiting for it.",
        culprits=(rank,),
        group=first["group"],
        seq=first["seq"],
        op=op,
        onset_ns=first["first_enter_ns"],
        waiting=others,
        victim_ranks=others,
        victim_groups=tuple(sorted({row["group"] for row in rows})),
        reason=_reason(case, rows, rank),
        doubts=() if len(rows) >= MIN_ROUNDS else ("seen in so few rounds that it may be chance",),
        evidence=tuple(_lateness(case, row) for row in rows[:5]),
        next_steps=(
            f"look at what rank {rank} does before it enters: data loading, garbage collection, a slower core",
        ),
        occurrences=tuple(Occurrence(rank, row["seq"], row["last_enter_ns"]) for row in rows[:64]),
    )
