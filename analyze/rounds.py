"""Rounds: all members' calls of one group and sequence number, side by side."""

from __future__ import annotations

import polars as pl

from roundk.analyze.calls import SIGNATURE


def rounds(calls: pl.LazyFrame, members: pl.LazyFrame) -> pl.LazyFrame:
    """Line the collectives up.

    Args:
        calls: As `calls.ready` makes them.
        members: One row per (group, rank).

    Returns:
        One row per (group, seq) that at least one member entered, sorted by group and seq.

        Columns:
            group (int32), seq (int64): The round.
            size (uint32): Members of the group.
            entered, completed, failed, open (uint32): Members whose call is recorded, and how it ended.
            first_enter_ns (int64, nullable): First enter; null: nobody's is recorded.
            last_enter_ns (int64, nullable): Last enter; null: somebody's is not recorded.
            second_last_enter_ns (int64, nullable): Enter of the last but one.
            last_rank (int32): Who entered last.
            skew_ns (int64, nullable): Spread of the enters.
            others_skew_ns (int64, nullable): Spread without the last member.
            last_inside_ns (int64, nullable): Time inside of the last to enter.
            others_inside_ns (int64, nullable): Least time inside of the others.
            longest_inside_ns (int64): Longest time inside of any member.
            op (str): Operation, of the first to enter.
            bytes (int64, nullable): Size of the largest member's tensor.
            differs (bool): Members disagree on what they must agree on.
            site_differs (bool): Members came from different call sites.
    """
    size = members.group_by("group").agg(size=pl.len())
    inside = pl.col("end_ns") - pl.col("enter_ns")
    last_two = pl.col("enter_ns").get(-2, null_on_oob=True)
    return (
        calls.filter(~pl.col("p2p"))
        # Last, a call without a time leaves the first enter known and says that the last is not.
        .sort("group", "seq", "enter_ns", "rank", nulls_last=True)
        .group_by("group", "seq", maintain_order=True)
        .agg(
            entered=pl.len(),
            completed=(pl.col("outcome") == "completed").sum(),
            failed=(pl.col("outcome") == "failed").sum(),
            open=(pl.col("outcome") == "open").sum(),
            first_enter_ns=pl.col("enter_ns").first(),
            last_enter_ns=pl.col("enter_ns").last(),
            second_last_enter_ns=last_two,
            last_rank=pl.col("rank").last(),
            last_inside_ns=inside.last(),
            others_inside_ns=inside.head(pl.len() - 1).min(),
            longest_inside_ns=inside.max(),
            op=pl.col("op").first(),
            bytes=pl.coalesce("bytes_in", "bytes_out").max(),
            differs=pl.any_horizontal(*(_differs(name) for name in SIGNATURE)),
            site_differs=_differs("site"),
        )
        .join(size, on="group", how="left", maintain_order="left")
        .with_columns(
            skew_ns=pl.col("last_enter_ns") - pl.col("first_enter_ns"),
            others_skew_ns=pl.col("second_last_enter_ns") - pl.col("first_enter_ns"),
        )
    )


def _differs(column: str) -> pl.Expr:
    # Two aggregations over numbers cost a fraction of counting distinct values.
    return (pl.col(column).min() != pl.col(column).max()).fill_null(value=False)
