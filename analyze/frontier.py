"""The frontier: how far each member of a group came."""

from __future__ import annotations

from typing import Final

import polars as pl

from roundk.analyze.calls import TOGETHER

_KEPT: Final = ("first_call", "calls_lost", "recorder_off", "data")
"""Columns of `schema.RANKS` that tell how much of a rank's recording there is."""


def frontier(calls: pl.LazyFrame, members: pl.LazyFrame, ranks: pl.LazyFrame, progress: pl.LazyFrame) -> pl.LazyFrame:
    """How far each member came in each group, by its calls and by the counters that it left.

    A dump may hold the calls in flight only, or none; its counters still say how far its rank came.

    Args:
        calls: As `calls.ready` makes them.
        members: One row per (group, rank).
        ranks: `schema.RANKS`.
        progress: `schema.PROGRESS`, of counters that number as the calls do.

    Returns:
        One row per (group, rank), sorted by both.

        Columns:
            last_entered, last_completed (int64): 0: none.
            last_enter_ns (int64, nullable): Enter of the last call in this group.
            lost (bool): Calls that the rank made after those kept may be lost.
            sure (bool): That a later call is absent says that it was not made. It does not where the recorder had gone
                off or lost calls, where its files are cut short, where peers completed rounds and nothing of the rank
                is kept, or where all kept calls are younger than the group's; a counter makes it sure all the same. It
                never does where a peer completed a later round that nobody can leave before all have come: then what
                is there of the rank is older than what is there of its peers.
            told (bool): Counters say how far the rank came.
            ends_known (bool): Nothing beyond `last_completed` completed for certain: by a counter, by a kept call that
                completed, or because all of the rank's calls are kept, some of which completed elsewhere.
    """
    reached = (
        calls.filter(~pl.col("p2p"))
        .group_by("group", "rank")
        .agg(
            last_entered=pl.col("seq").max(),
            last_completed=pl.col("seq").filter(pl.col("outcome") == "completed").max(),
            last_enter_ns=pl.col("enter_ns").max(),
            first_seq=pl.col("seq").min(),
        )
    )
    first = pl.col("first_call").fill_null(1)
    kept_from_start = first <= 1
    # A round that its peers completed had the rank in it.
    completed = (pl.col("last_completed").max().over("group") > 0).fill_null(value=False)
    # Dumps of the calls in flight hold no completed one, but their numbers tell that there were others before.
    took_part = completed | (pl.col("first_seq").min().over("group") > 1).fill_null(value=False)
    unrecorded = (pl.col("data") == "truncated") | (pl.col("data").is_in(["empty", "missing"]) & took_part)
    lost_late = pl.col("calls_lost").fill_null(0) > first - 1
    told = pl.col("told")
    passed = (
        calls.filter(
            ~pl.col("p2p"), pl.col("outcome") == "completed", pl.col("op").cast(pl.String).is_in(list(TOGETHER))
        )
        .group_by("group")
        .agg(passed=pl.col("seq").max())
    )
    return (
        members.join(reached, on=["group", "rank"], how="left")
        .join(_counted(reached, progress), on=["group", "rank"], how="left")
        .join(ranks.select("rank", *_KEPT), on="rank", how="left")
        .with_columns(told=told.fill_null(value=False))
        .with_columns(
            lost=(pl.col("recorder_off").is_not_null() | lost_late | unrecorded.fill_null(value=False)) & ~told,
            old=~kept_from_start & pl.col("last_entered").is_null() & ~told,
            # A dump of the calls in flight begins with the first call, too, and holds none that completed.
            ends_known=told
            | pl.col("last_completed").is_not_null()
            | (kept_from_start & pl.col("last_completed").is_not_null().any().over("rank")),
            last_entered=pl.max_horizontal("last_entered", "enqueued").fill_null(0),
            last_completed=pl.max_horizontal("last_completed", "completed").fill_null(0),
        )
        .join(passed, on="group", how="left")
        .with_columns(lost=pl.col("lost") | (~pl.col("old") & (pl.col("last_entered") < pl.col("passed").fill_null(0))))
        .with_columns(sure=~pl.col("lost") & ~pl.col("old"))
        .select(
            "group", "rank", "last_entered", "last_completed", "last_enter_ns", "lost", "sure", "told", "ends_known"
        )
        .sort("group", "rank")
    )


def _counted(reached: pl.LazyFrame, progress: pl.LazyFrame) -> pl.LazyFrame:
    """What counters of collectives say, of the groups in which they are nowhere behind the calls."""
    told = (
        progress.filter(pl.col("counts") == "collectives", pl.col("op").is_null())
        .group_by("group", "rank")
        .agg(enqueued=pl.col("enqueued").max(), completed=pl.col("completed").max(), told=pl.lit(value=True))
    )
    # Counters that number otherwise than the calls (of another source, or with sends and receives in them) fall behind.
    behind = (
        told.join(reached, on=["group", "rank"])
        .filter(pl.col("enqueued").fill_null(0) < pl.col("last_entered"))
        .select("group")
        .unique()
    )
    return told.join(behind, on="group", how="anti").with_columns(
        enqueued=pl.col("enqueued").fill_null(0), completed=pl.col("completed").fill_null(0)
    )
