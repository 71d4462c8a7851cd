"""Calls made ready for comparison: which ends were merely not seen, and what of a call its peers must agree on."""

from __future__ import annotations

from typing import Final

import polars as pl

from roundk.analyze.phrases import NS_PER_MS
from roundk.tracer import words

END_UNSEEN_NS: Final = 100 * NS_PER_MS
"""An end this close to its rank's last sign of life may have happened unseen: five beats of the recorder's thread
(20 ms) and ten rounds of its poller (10 ms), which a busy machine delays."""

SAME_NUMEL: Final = ("all_reduce", "reduce", "broadcast", "all_gather_into_tensor", "reduce_scatter_tensor")
"""Operations whose members must pass as many elements each."""

SIGNATURE: Final = ("op_code", "size_key", "dtype_code", "root", "reduce_code")
"""What the members of a round must agree on; null: nothing to agree on."""


def ready(calls: pl.LazyFrame, members: pl.LazyFrame, ranks: pl.LazyFrame) -> pl.LazyFrame:
    """Add what the analyses compare, and settle which open calls only lack the record of their end.

    Args:
        calls: `schema.CALLS`.
        members: One row per (group, rank).
        ranks: `schema.RANKS`.

    Returns:
        The rows of `calls` in their order, with `outcome` settled.

        Columns:
            p2p (bool): The call is a send or a receive.
            src, dst (int32, nullable): Of a p2p call, who sends and who receives.
            op_code, dtype_code, reduce_code (uint32): Codes of the words, equal where the words are.
            size_key (int64, nullable): Equal on all members where the operation asks for equal sizes; null elsewhere.
    """
    op = pl.col("op").cast(pl.String)
    coded = calls.with_columns(
        p2p=op.is_in(list(words.P2P)),
        src=pl.when(op == "send").then(pl.col("rank")).when(op == "recv").then(pl.col("peer")),
        dst=pl.when(op == "send").then(pl.col("peer")).when(op == "recv").then(pl.col("rank")),
        outcome=pl.col("outcome").cast(pl.String).cast(pl.Enum(words.OUTCOMES)),
        op_code=pl.col("op").to_physical(),
        dtype_code=pl.col("dtype").to_physical(),
        reduce_code=pl.col("reduce_op").to_physical(),
        size_key=_size_key(),
    )
    return _settle(coded, members, ranks)


def _size_key() -> pl.Expr:
    op = pl.col("op").cast(pl.String)
    # Lists of tensors may differ by member (an uneven all_gather is legal on some backends), their total may not.
    return (
        pl.when(op.is_in(list(SAME_NUMEL)))
        .then(pl.col("numel"))
        .when(op == "all_gather")
        .then(pl.col("bytes_out"))
        .when(op == "reduce_scatter")
        .then(pl.col("bytes_in"))
        .when(op.str.ends_with("_coalesced"))
        .then(pl.col("shapes").to_physical().cast(pl.Int64))
    )


def _settle(calls: pl.LazyFrame, members: pl.LazyFrame, ranks: pl.LazyFrame) -> pl.LazyFrame:
    """Turn open calls whose round plainly ended, or whose recorder went off, into `not_recorded`."""
    numbered = calls.with_row_index("row")
    unended = numbered.filter(pl.col("outcome") == "open", ~pl.col("p2p"))
    ends = (
        numbered.filter(~pl.col("p2p"))
        .join(unended.select("group", "seq").unique(), on=["group", "seq"], how="semi")
        .group_by("group", "seq")
        .agg(
            entered=pl.len(),
            completed=(pl.col("outcome") == "completed").sum(),
            first_end_ns=pl.col("end_ns").filter(pl.col("outcome") == "completed").min(),
        )
    )
    later = (
        numbered.filter(pl.col("outcome") == "completed", ~pl.col("p2p"))
        .group_by("group", "rank")
        .agg(last_completed=pl.col("seq").max())
    )
    size = members.group_by("group").agg(size=pl.len())
    unseen_rounds = (
        unended.join(ends, on=["group", "seq"], how="left")
        .join(later, on=["group", "rank"], how="left")
        .join(size, on="group", how="left")
        .join(ranks.select("rank", "last_alive_ns", "goodbye_ns", "exit_code"), on="rank", how="left")
        .filter(pl.col("entered") == pl.col("size"))
        .filter(_round_ended())
        .select("row")
    )
    off = ranks.filter(pl.col("recorder_off").is_not_null()).select("rank")
    blinded = numbered.filter(pl.col("outcome") == "open").join(off, on="rank", how="semi").select("row")
    unseen = (
        pl.concat([unseen_rounds, _unseen_p2p(numbered, ranks), blinded])
        .unique()
        .with_columns(unseen=pl.lit(value=True))
    )
    settled = pl.when(pl.col("unseen")).then(pl.lit("not_recorded")).otherwise(pl.col("outcome").cast(pl.String))
    return (
        numbered.join(unseen, on="row", how="left", maintain_order="left")
        .with_columns(outcome=settled.cast(pl.Enum(words.OUTCOMES)))
        .drop("row", "unseen")
    )


def _unseen_p2p(numbered: pl.LazyFrame, ranks: pl.LazyFrame) -> pl.LazyFrame:
    """Open sends and receives that have their match and whose rank went on: an unawaited `Work` shows no end."""
    p2p = numbered.filter(pl.col("p2p"))
    pair = ["group", "src", "dst", "seq"]
    matched = p2p.group_by(pair).agg(sides=pl.col("op_code").n_unique())
    taken = served(p2p).with_columns(op=pl.lit("send"), taken=pl.lit(value=True))
    newest = numbered.group_by("rank").agg(newest=pl.col("row").max())
    return (
        p2p.filter(pl.col("outcome") == "open")
        .join(matched, on=pair, how="left")
        .join(newest, on="rank", how="left")
        .join(ranks.select("rank", "goodbye_ns", "exit_code"), on="rank", how="left")
        .with_columns(pl.col("op").cast(pl.String))
        .join(taken, on=["group", "dst", "op"], how="left")
        .filter(
            ((pl.col("sides").fill_null(1) == 2) | pl.col("taken").fill_null(value=False))
            & ((pl.col("row") < pl.col("newest")) | (pl.col("goodbye_ns").is_not_null() & _exited_with_zero()))
        )
        .select("row")
    )


def served(p2p: pl.LazyFrame) -> pl.LazyFrame:
    """Ranks that receive from any source and have made a receive for every send to them.

    Which receive took which send is not recorded, so their sends cannot be matched one by one.

    Args:
        p2p: The sends and receives, as `ready` makes them.

    Returns:
        One row per (group, dst).
    """
    sends = p2p.filter(pl.col("op") == "send").group_by("group", "dst").agg(sends=pl.len())
    receives = (
        p2p.filter(pl.col("op") == "recv")
        .group_by("group", "dst")
        .agg(receives=pl.len(), from_any=pl.col("src").is_null().any())
    )
    return (
        receives.join(sends, on=["group", "dst"])
        .filter(pl.col("from_any"), pl.col("receives") >= pl.col("sends"))
        .select("group", "dst")
    )


def _exited_with_zero() -> pl.Expr:
    return pl.col("exit_code").fill_null(0) == 0


def _round_ended() -> pl.Expr:
    """Of an open call whose members all entered: did its round end all the same?"""
    horizon = pl.col("last_alive_ns") - END_UNSEEN_NS
    entered_late = (pl.col("completed") > 0) & (pl.col("enter_ns") >= horizon)
    peers_ended_late = (pl.col("first_end_ns") >= horizon) | entered_late
    # Some calls never show an end (a functional reduce_scatter on gloo): a later one of the group does it for them.
    passed = pl.col("last_completed") > pl.col("seq")
    left_in_order = pl.col("goodbye_ns").is_not_null() & _exited_with_zero()
    return (peers_ended_late | passed | left_in_order).fill_null(value=False)
