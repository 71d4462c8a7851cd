"""Clocks that are far apart: each rank's times put on one clock, by the rounds that end on all members together.

A collective in which everybody needs everybody ends on all members at about the same time. What their clocks say of
that moment differs by the offset of the clocks, and by how late each noticed. Nobody's slowness enters into it: a rank
that comes late ends together with those that waited.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Final

import polars as pl

from roundk.analyze.calls import TOGETHER
from roundk.analyze.phrases import NS_PER_S, duration, ranks_text
from roundk.analyze.trace import Trace

FLOOR_NS: Final = NS_PER_S
"""Least offset that is put right: a watchdog looks every 100 ms and may notice an end late on a busy host."""

STEADY: Final = 4
"""An offset is one where the single rounds lie within this part of it."""

ROUNDS: Final = 3
"""Rounds that must show an offset."""

RECENT: Final = 32
"""Rounds of each group that are looked at, the last ones."""


def aligned(trace: Trace) -> Trace:
    """The trace with the times of all ranks on one clock.

    Args:
        trace: What the sources found.

    Returns:
        The same where no clock is far off. Else with times, the bound of what is left of the offsets and a note.
    """
    by_group = _by_group(trace)
    far = by_group["ahead"].abs().max() if by_group.height else None
    if not isinstance(far, float) or far < FLOOR_NS:
        return trace
    offsets = {rank: ahead for rank, ahead in _offsets(by_group).items() if abs(ahead) >= FLOOR_NS}
    if not offsets:
        return trace
    left = by_group["spread"].max()
    error = int(left) if isinstance(left, float) else None
    return _moved(trace, offsets, error)


def _by_group(trace: Trace) -> pl.DataFrame:
    """How far each member's clock is ahead of its group's median, where the rounds agree on it.

    Returns:
        One row per (group, rank).

        Columns:
            ahead (float64): Median over the rounds, ns.
            spread (float64): Median distance of the single rounds from that.
    """
    size = trace.groups.lazy().select("group", size=pl.col("ranks").list.len())
    rounds = (
        trace.calls.lazy()
        .filter(
            pl.col("seq") > pl.col("seq").max().over("group") - RECENT,
            pl.col("op").cast(pl.String).is_in(list(TOGETHER)),
            pl.col("end_ns").is_not_null(),
            pl.col("outcome").cast(pl.String) == "completed",
        )
        .select("group", "seq", "rank", "end_ns")
        .with_columns(members=pl.len().over("group", "seq"))
        .join(size, on="group")
        .filter(pl.col("members") == pl.col("size"), pl.col("size") > 1)
        .with_columns(off=pl.col("end_ns") - pl.col("end_ns").median().over("group", "seq"))
    )
    return (
        rounds.with_columns(ahead=pl.col("off").median().over("group", "rank"))
        .group_by("group", "rank")
        .agg(
            pl.col("ahead").first(),
            size=pl.col("size").first(),
            rounds=pl.len(),
            spread=(pl.col("off") - pl.col("ahead")).abs().median(),
        )
        .filter(pl.col("rounds") >= ROUNDS)
        .filter((pl.col("ahead").abs() < FLOOR_NS) | (pl.col("spread") * STEADY <= pl.col("ahead").abs()))
        .sort("size", "group", "rank", descending=[True, False, False])
        .collect()
    )


def _offsets(by_group: pl.DataFrame) -> dict[int, int]:
    """Each rank's offset from the clock that most ranks agree on, in every part of the job that rounds connect."""
    home: dict[int, int] = {}  # of a rank, the part that it is in
    ahead: dict[int, float] = {}  # of a rank, by the clock of its part
    parts: dict[int, list[int]] = {}
    for members in by_group.partition_by("group", maintain_order=True):
        told = dict(members.select("rank", "ahead").iter_rows())
        known = Counter(home[rank] for rank in told if rank in home)
        into = known.most_common(1)[0][0] if known else len(parts)
        anchor = next((rank for rank in told if home.get(rank) == into), None)
        shift = 0.0 if anchor is None else ahead[anchor] - told[anchor]
        parts.setdefault(into, [])
        for rank, off in told.items():
            if home.get(rank) == into:
                continue
            by = off + shift - ahead.get(rank, 0.0)
            for other in parts.pop(home[rank], [rank]) if rank in home else [rank]:
                home[other] = into
                ahead[other] = ahead.get(other, 0.0) + by
                parts[into].append(other)
    found: dict[int, int] = {}
    for ranks in parts.values():
        agreed = sorted(ahead[rank] for rank in ranks)[len(ranks) // 2]
        found |= {rank: round(ahead[rank] - agreed) for rank in ranks}
    return found


def _moved(trace: Trace, offsets: dict[int, int], error_ns: int | None) -> Trace:
    by_rank = pl.DataFrame(
        {"rank": list(offsets), "ahead": list(offsets.values())}, schema={"rank": pl.Int32, "ahead": pl.Int64}
    )

    def moved(table: pl.DataFrame, *columns: str) -> pl.DataFrame:
        if table.is_empty():
            return table
        wide = table.join(by_rank, on="rank", how="left", maintain_order="left")
        return wide.with_columns(pl.col(columns) - pl.col("ahead").fill_null(0)).drop("ahead")

    times = [name for name in trace.ranks.columns if name.endswith("_ns")]
    return replace(
        trace,
        calls=moved(trace.calls, "enter_ns", "issued_ns", "start_ns", "end_ns"),
        ranks=moved(trace.ranks, *times),
        facts=moved(trace.facts, "time_ns").sort("time_ns", nulls_last=True, maintain_order=True),
        stacks=moved(trace.stacks, "time_ns", "not_before_ns"),
        steps=moved(trace.steps, "start_ns", "end_ns"),
        progress=moved(trace.progress, "time_ns"),
        clock_error_ns=trace.clock_error_ns if trace.clock_error_ns is not None else error_ns,
        notes=(*trace.notes, _note(offsets)),
    )


def _note(offsets: dict[int, int]) -> str:
    furthest = max(offsets, key=lambda rank: abs(offsets[rank]))
    way = "ahead of" if offsets[furthest] > 0 else "behind"
    return (
        f"The clocks of {ranks_text(sorted(offsets))} are off (rank {furthest}'s by {duration(abs(offsets[furthest]))} "
        f"{way} the others'), by rounds that ended on all members together: their times are put right by that."
    )
