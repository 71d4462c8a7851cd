"""Do the members of rounds come together, and the transfer itself takes long? Did everything become slow together?

A transfer is measured without comparing clocks: the time inside of the last to enter, or the longest time inside less
the spread of the enters. It is compared with the same call (group, operation, size) of the same run at its better
times. A rank whose process was stopped inside the call makes the same picture; what the launcher saw tells them apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from roundk.analyze.case import Case
from roundk.analyze.cause import UNDETERMINED
from roundk.analyze.finding import Evidence, Finding, Occurrence
from roundk.analyze.names import Structure
from roundk.analyze.phrases import NS_PER_MS, duration, number_of, ranks_text
from roundk.analyze.stops import Stop, filling
from roundk.analyze.stops import reason as stopped
from roundk.analyze.structure import straggler

USUAL: Final = 0.25
"""Quantile that stands for how long a call usually takes: a fault may last for more than half of a run."""

LEAST_ROUNDS: Final = 8
"""Rounds of one signature from which on one can be called usual."""

TIMES: Final = 4
"""A transfer is long from so many times its usual length on."""

LONG_NS: Final = 50 * NS_PER_MS
"""Least excess of a long transfer: above what an oversubscribed scheduler adds."""

STALL_NS: Final = 500 * NS_PER_MS
"""Least excess of a single transfer that is worth a verdict where an event explains it: TCP's first retransmissions
come after 200 and 400 ms, a port that comes back is noticed a second later."""

LOST_SHARE: Final = 0.25
"""Share of the observed time that must be lost for long transfers to count that nothing explains: on a host with more
to do than cores, transfers take several times their usual length now and then."""

LONG_STALL_NS: Final = 1_000 * NS_PER_MS
LONG_TIMES: Final = 20
"""A transfer with such an excess, of so many times its usual length, is no busy host's; it counts where a tenth of the
observed time is lost."""

DENSE: Final = 9
DENSE_SHARE: Final = 0.4
"""Of so many rounds around a long transfer so many are long as well, where something makes them so all along."""

STRETCH: Final = 12
"""Rounds in a row of which the median tells how long transfers take at a time."""

STRETCH_TIMES: Final = 1.8
STRETCH_NS: Final = 10 * NS_PER_MS
"""From so much of the usual length, and so much above it, on, all transfers of a time take somewhat longer."""

STRETCH_SHARE: Final = 0.2
"""Share of the observed time that must be lost in such a time to count whatever explains it; where a link's counters
show why, less does."""

TOGETHER: Final = 2
"""All ranks work this much longer between two calls than at first: they became slow together."""

LEAST_TREND: Final = 24
"""Rounds of one signature from which on a trend can be told."""


_SHOWN: Final = 3


@dataclass(frozen=True)
class Slow:
    """Transfers that took long.

    Attributes:
        finding: The structure; its cause is to be asked of the links.
        is_some: They took a tenth of the run: they count where the traffic shows why.
        is_much: They took a large share of the run: they count whatever explains them.
    """

    finding: Finding
    is_much: bool
    is_some: bool = True


def transfers(case: Case) -> Slow | None:
    """The transfers that took long for no rank's lateness; None where there are none.

    Args:
        case: The case.
    """
    rounds = _measured(case)
    long, span = _long(rounds), straggler.span_ns(rounds)
    lost = int(long["excess_ns"].sum())
    if (held := _held(case, long)) and lost >= straggler.LOST_SHARE * span:
        return Slow(_by_stops(case, list(long.iter_rows(named=True)), held), is_much=True)
    worst = long.filter(pl.col("excess_ns") >= LONG_STALL_NS, pl.col("transfer_ns") >= LONG_TIMES * pl.col("usual_ns"))
    is_much = long.height > 0 and lost >= LOST_SHARE * span
    is_much = is_much or (worst.height > 0 and lost >= straggler.LOST_SHARE * span)
    stretch = _stretches(rounds)
    if not is_much and int(stretch["excess_ns"].sum()) >= STRETCH_SHARE * span:
        long, is_much = stretch, stretch.height > 0
    elif not is_much:
        stalls = long.filter(pl.col("excess_ns") >= STALL_NS)
        long = stalls if stalls.height else stretch
    if long.is_empty():
        return None
    if not is_much or long is stretch:
        lost, held = int(long["excess_ns"].sum()), _held(case, long)
    rows = list(long.iter_rows(named=True))
    finding = _by_stops(case, rows, held) if held else _finding(case, rows, lost, span)
    return Slow(finding, is_much or bool(held), is_some=lost >= straggler.LOST_SHARE * span)


def _long(rounds: pl.DataFrame) -> pl.DataFrame:
    """The long transfers; where most of their time is lost in a row, without those that stand alone before or after."""
    is_long = (pl.col("excess_ns") >= LONG_NS) & (pl.col("transfer_ns") >= TIMES * pl.col("usual_ns"))
    near = (
        pl.col("is_long").cast(pl.Float64).rolling_mean(DENSE, min_samples=1, center=True).over("group", "op", "bytes")
    )
    long = rounds.sort("first_enter_ns").with_columns(is_long=is_long).with_columns(near=near).filter("is_long")
    dense = long.filter((pl.col("near") >= DENSE_SHARE) | (pl.col("excess_ns") >= STALL_NS))
    return dense if 2 * dense["excess_ns"].sum() >= long["excess_ns"].sum() else long


def _stretches(rounds: pl.DataFrame) -> pl.DataFrame:
    """Rounds of times in which transfers took somewhat longer all along."""
    key = ["group", "op", "bytes"]
    usual = pl.col("transfer_ns").rolling_median(STRETCH, min_samples=STRETCH, center=True).over(key)
    slow = rounds.sort("first_enter_ns").filter(
        usual >= STRETCH_TIMES * pl.col("usual_ns"), usual - pl.col("usual_ns") >= STRETCH_NS
    )
    return slow.filter(pl.len().over(key) >= STRETCH)


def _measured(case: Case) -> pl.DataFrame:
    """Complete rounds with the length of their transfers.

    Columns added to those of `straggler.judged`:
        transfer_ns (int64): How long it took when all were there.
        usual_ns (float64): How long the same call takes in this run.
        excess_ns (float64): Their difference.
    """
    key = ["group", "op", "bytes"]
    return (
        straggler.judged(case)
        .join(_queued(case), on=["group", "seq"], how="anti")
        .with_columns(
            transfer_ns=pl.max_horizontal("last_inside_ns", pl.col("longest_inside_ns") - pl.col("skew_ns")),
        )
        .filter(pl.col("transfer_ns").is_not_null(), pl.len().over(key) >= LEAST_ROUNDS)
        .with_columns(usual_ns=pl.col("transfer_ns").quantile(USUAL).over(key))
        .with_columns(excess_ns=pl.col("transfer_ns") - pl.col("usual_ns"))
    )


def _queued(case: Case) -> pl.DataFrame:
    """Rounds in which a member's call may have waited behind another one, in the queue of its device or a thread."""
    behind = pl.col("end_ns").shift(1) > pl.col("enter_ns")
    return (
        case.calls.lazy()
        .select("rank", "group", "seq", "p2p", "enter_ns", "end_ns")
        .filter((pl.col("rank") == pl.col("rank").shift(1)) & behind.fill_null(value=True))
        .filter(~pl.col("p2p"))
        .select("group", "seq")
        .unique()
        .collect()
    )


def _held(case: Case, long: pl.DataFrame) -> list[Stop]:
    """Stops of one member's process that fill most of what long transfers lost."""
    rows = list(long.iter_rows(named=True))
    windows = [(row["last_enter_ns"], row["last_enter_ns"] + row["transfer_ns"]) for row in rows]
    members = {rank for row in rows for rank in case.member_ranks(row["group"])}
    lost = sum(row["excess_ns"] for row in rows)
    return filling([stop for stop in case.stops if stop.rank in members], windows, lost) if rows else []


def _finding(case: Case, rows: list[dict[str, Any]], lost: int, span: int) -> Finding:
    first = rows[0]
    longest = sorted(rows, key=lambda row: -row["excess_ns"])
    worst = longest[0]
    where = case.round_text(worst["group"], worst["seq"], worst["op"], None)
    share = f" ({100 * lost / span:.0f} % of {duration(span)})" if span else ""
    many = f"{number_of(len(rows), 'transfer')} took long, the longest" if len(rows) > 1 else "One transfer took long,"
    return Finding(
        structure=Structure.SLOW_TRANSFER,
        summary=f"{many} {where}: {duration(worst['transfer_ns'])} where {duration(worst['usual_ns'])} is usual, and "
        f"all members had come; they lost {duration(lost)}{share}. No rank is late.",
        group=worst["group"],
        seq=worst["seq"],
        op=worst["op"],
        onset_ns=first["last_enter_ns"],
        until_ns=max(row["last_enter_ns"] + row["transfer_ns"] for row in rows),
        victim_ranks=case.member_ranks(worst["group"]),
        victim_groups=tuple(sorted({row["group"] for row in rows})),
        reason=UNDETERMINED,
        evidence=tuple(_length(case, row) for row in longest[:_SHOWN]),
        next_steps=("look at the links between the hosts of the group: retransmits, symbol errors, a port's rate",),
        occurrences=tuple(Occurrence(int(row["last_rank"]), row["seq"], row["last_enter_ns"]) for row in rows[:64]),
    )


def _length(case: Case, row: dict[str, Any]) -> Evidence:
    rank = int(row["last_rank"])
    what = (
        f"#{row['seq']}: all had come within {duration(row['skew_ns'])}, and it took {duration(row['transfer_ns'])} "
        f"from there; usual is {duration(row['usual_ns'])}"
    )
    return Evidence(what, case.source(rank), rank, row["last_enter_ns"])


def _by_stops(case: Case, rows: list[dict[str, Any]], found: list[Stop]) -> Finding:
    """A rank whose process was stopped inside calls, and went on."""
    first, rank = rows[0], found[0].rank
    lost = sum(row["excess_ns"] for row in rows)
    others = tuple(r for r in case.member_ranks(first["group"]) if r != rank)
    where = case.round_text(first["group"], first["seq"], first["op"], None)
    return Finding(
        structure=Structure.STRAGGLER,
        summary=f"Rank {rank} held the others up inside {where}: its process was stopped there and went on; "
        f"{ranks_text(others)} lost {duration(lost)}.",
        culprits=(rank,),
        group=first["group"],
        seq=first["seq"],
        op=first["op"],
        onset_ns=first["last_enter_ns"],
        waiting=others,
        victim_ranks=others,
        victim_groups=tuple(sorted({row["group"] for row in rows})),
        reason=stopped(found),
        evidence=(*(_length(case, row) for row in rows[:2]), *(stop.evidence for stop in found[:2])),
        next_steps=(f"find who stopped the process of rank {rank} (SIGSTOP, a debugger, a frozen container)",),
        occurrences=tuple(Occurrence(rank, row["seq"], row["last_enter_ns"]) for row in rows[:64]),
    )


def together(case: Case) -> list[Finding]:
    """All ranks became slower between their calls, and nobody waits for anybody: SHARED_SLOWDOWN.

    Args:
        case: The case.
    """
    worked = _worked(case)
    third = pl.int_range(pl.len()).over("key") * 3 // pl.len().over("key")
    trend = (
        worked.sort("key", "first_enter_ns")
        .with_columns(third=third)
        .group_by("key", maintain_order=True)
        .agg(
            rounds=pl.len(),
            early_ns=pl.col("own_ns").filter(pl.col("third") == 0).median(),
            late_ns=pl.col("own_ns").filter(pl.col("third") == 2).median(),
            group=pl.col("group").first(),
            op=pl.col("op").first(),
            # The first round from which on it is slow.
            seq=pl.col("seq").filter(pl.col("own_ns") >= TOGETHER * pl.col("own_ns").quantile(USUAL)).first(),
            at_ns=pl.col("first_enter_ns")
            .filter(pl.col("own_ns") >= TOGETHER * pl.col("own_ns").quantile(USUAL))
            .first(),
        )
        .filter(
            pl.col("rounds") >= LEAST_TREND,
            pl.col("late_ns") >= TOGETHER * pl.col("early_ns"),
            pl.col("late_ns") - pl.col("early_ns") >= LONG_NS,
        )
        .sort("rounds", descending=True)
    )
    return [_shared(case, next(trend.iter_rows(named=True)))] if trend.height else []


def _worked(case: Case) -> pl.DataFrame:
    """How long the least busy member was outside of calls before each round, by call and place: `own_ns`, `key`."""
    rounds = straggler.judged(case)
    outside = straggler.outside(case, pl.Series(sorted(case.endings), dtype=pl.Int32))
    least = outside.group_by("group", "seq").agg(own_ns=pl.col("own_ns").min(), site=pl.col("site").min())
    return (
        rounds.join(least, on=["group", "seq"])
        .filter(pl.col("own_ns").is_not_null())
        .with_columns(key=pl.struct("group", "op", "bytes", "site").rank("dense"))
    )


def _shared(case: Case, row: dict[str, Any]) -> Finding:
    ranks = case.member_ranks(row["group"])
    where = case.round_text(row["group"], row["seq"], row["op"], None)
    return Finding(
        structure=Structure.SHARED_SLOWDOWN,
        summary=f"All ranks became slow together, from about {where} on: at first they worked "
        f"{duration(row['early_ns'])} before such a call, and at the end {duration(row['late_ns'])}; nobody waits for "
        "anybody.",
        group=row["group"],
        seq=row["seq"],
        op=row["op"],
        onset_ns=row["at_ns"],
        victim_ranks=ranks,
        victim_groups=(row["group"],),
        reason=UNDETERMINED,
        next_steps=("look at what all share: storage, power cap, clocks, the data, a change of phase in the script",),
    )
