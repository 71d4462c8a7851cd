"""Calls made ready for comparison: which ends were merely not seen, and what of a call its peers must agree on."""

from __future__ import annotations

from typing import Final

import polars as pl

from roundk.analyze.endings import STOPPED_STATES
from roundk.analyze.phrases import NS_PER_MS
from roundk.tracer import words

END_UNSEEN_NS: Final = 100 * NS_PER_MS
"""An end this close to its rank's last sign of life may have happened unseen: five beats of the recorder's thread
(20 ms) and ten rounds of its poller (10 ms), which a busy machine delays."""

ALIKE: Final = ("all_reduce", "broadcast", "all_gather_into_tensor", "reduce_scatter_tensor")
"""Operations whose members must pass as many elements each, and get as many."""

ALIKE_IN: Final = ("reduce", "reduce_scatter", "gather_into_tensor")
"""Operations whose members must pass as many elements each, in all; what they get depends on who they are."""

TOGETHER: Final = (
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "all_to_all",
    "all_to_all_single",
    "barrier",
)
"""Operations that no member can leave before all have come."""

_MIX: Final = 1_000_003
"""Puts two counts into one number: a prime beyond any ratio of group sizes, so that no two likely pairs give one."""

ON_HOSTS: Final = ("gloo", "mpi", "ucc")
"""Backends whose calls run on the hosts: nothing of them stands in line on a device."""

SIGNATURE: Final = ("op_code", "size_key", "dtype_code", "root", "reduce_code")
"""What the members of a round must agree on; null: nothing to agree on."""


def ready(calls: pl.LazyFrame, members: pl.LazyFrame, ranks: pl.LazyFrame) -> pl.LazyFrame:
    """Add what the analyses compare, and settle which open calls only lack the record of their end.

    Args:
        calls: `schema.CALLS`.
        members: One row per (group, rank), with the group's `backend`.
        ranks: `schema.RANKS`.

    Returns:
        The rows of `calls` in their order, with `outcome` settled.

        Columns:
            p2p (bool): The call is a send or a receive.
            src, dst (int32, nullable): Of a p2p call, who sends and who receives.
            op_code, dtype_code, reduce_code (uint32): Codes of the words, equal where the words are.
            size_key (int64, nullable): Equal on all members where the operation asks for equal sizes; null elsewhere.
    """
    op = pl.col("op")
    coded = calls.with_columns(
        p2p=op.is_in(list(words.P2P)),
        src=pl.when(op == "send").then(pl.col("rank")).when(op == "recv").then(pl.col("peer")),
        dst=pl.when(op == "send").then(pl.col("peer")).when(op == "recv").then(pl.col("rank")),
        outcome=pl.col("outcome").cast(pl.Enum(words.OUTCOMES)),
        op_code=pl.col("op").to_physical(),
        dtype_code=pl.col("dtype").to_physical(),
        reduce_code=pl.col("reduce_op").to_physical(),
        size_key=_size_key(),
    )
    return _settle(coded, members, ranks)


def _size_key() -> pl.Expr:
    """What the sizes of a round's calls must have in common, counted in elements: types are compared apart."""
    op = pl.col("op")
    given = pl.coalesce("numel", "bytes_in")
    # Null for a call that passes nothing, whose type does not tell how wide what it gets is.
    got = pl.col("bytes_out") // (pl.col("bytes_in") // pl.col("numel"))
    return (
        pl.when(op.is_in(list(ALIKE)))
        .then(given * _MIX + got.fill_null(0))
        .when(op.is_in(list(ALIKE_IN)))
        .then(given)
        # Lists of tensors may differ by member (an uneven all_gather is legal), their total may not.
        .when(op == "all_gather")
        .then(pl.when(pl.col("numel").is_null()).then("bytes_out").otherwise(got))
        # The root alone has the list; some backends record nothing at all of the other members.
        .when(op == "gather")
        .then(pl.when(given > 0).then(given))
        .when(op == "scatter")
        .then(pl.when(pl.col("bytes_out") > 0).then("bytes_out"))
        .when(op.cat.ends_with("_coalesced"))
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
    size = members.group_by("group").agg(size=pl.len(), backend=pl.col("backend").first())
    unseen_rounds = (
        unended.join(ends, on=["group", "seq"], how="left")
        .join(later, on=["group", "rank"], how="left")
        .join(size, on="group", how="left")
        .join(ranks.select("rank", "last_alive_ns", "goodbye_ns", "exit_code", "process_state"), on="rank", how="left")
        .filter(pl.col("entered") == pl.col("size"))
        .filter(_round_ended())
        .select("row")
    )
    off = ranks.filter(pl.col("recorder_off").is_not_null()).select("rank")
    blinded = numbered.filter(pl.col("outcome") == "open").join(off, on="rank", how="semi").select("row")
    unseen = pl.concat([unseen_rounds, _unseen_p2p(numbered, members, ranks), blinded]).unique().collect()["row"]
    if unseen.is_empty():  # as of most jobs: millions of rows are not copied for nothing
        return calls
    settled = pl.when(pl.col("row").is_in(unseen.implode())).then(pl.lit("not_recorded")).otherwise(pl.col("outcome"))
    return numbered.with_columns(outcome=settled.cast(pl.Enum(words.OUTCOMES))).drop("row")


def _unseen_p2p(numbered: pl.LazyFrame, members: pl.LazyFrame, ranks: pl.LazyFrame) -> pl.LazyFrame:
    """Open sends and receives that have their match and whose rank went on: an unawaited `Work` shows no end.

    Sources that do not tell whether a call was awaited have its end from the backend, and there open is open. Where
    calls run on a device the host goes on at once: that its rank has is told by a later call that ended.
    """
    p2p = numbered.filter(pl.col("p2p"))
    pair = ["group", "src", "dst", "seq"]
    matched = p2p.group_by(pair).agg(sides=pl.col("op_code").n_unique(), done=(pl.col("outcome") == "completed").sum())
    taken = served(p2p).with_columns(op=pl.lit("send"), taken=pl.lit(value=True))
    newest = numbered.group_by("rank").agg(
        newest=pl.col("row").max(), ended=pl.col("row").filter(pl.col("outcome") == "completed").max()
    )
    backends = members.select("group", "backend").unique("group")
    return (
        p2p.filter(pl.col("outcome") == "open", pl.col("is_async").is_not_null())
        .join(matched, on=pair, how="left")
        .join(newest, on="rank", how="left")
        .join(backends, on="group", how="left")
        .with_columns(newest=pl.when(on_device()).then("ended").otherwise("newest"))
        .join(ranks.select("rank", "goodbye_ns", "exit_code", "process_state"), on="rank", how="left")
        .with_columns(pl.col("op").cast(pl.String))
        .join(taken, on=["group", "dst", "op"], how="left")
        .filter(
            ((pl.col("sides").fill_null(1) == 2) | pl.col("taken").fill_null(value=False))
            & (
                (pl.col("row") < pl.col("newest"))
                | (pl.col("goodbye_ns").is_not_null() & _exited_with_zero())
                | ((pl.col("done") > 0) & _went_on_unseen())
            )
        )
        .select("row")
    )


def on_device() -> pl.Expr:
    """Whether `backend` is one whose calls run on a device, in the order in which the host enqueues them."""
    backend = pl.col("backend")
    on_hosts = pl.any_horizontal(backend.str.starts_with(name) for name in ON_HOSTS)
    return ((backend != "") & ~on_hosts).fill_null(value=False)


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
    stopped = (pl.col("completed") > 0) & _went_on_unseen()
    return (peers_ended_late | passed | left_in_order | stopped).fill_null(value=False)


def _went_on_unseen() -> pl.Expr:
    """The process is stopped, and its device goes on while nobody sees the ends of what it had been given."""
    return pl.col("process_state").is_in(sorted(STOPPED_STATES)).fill_null(value=False) & on_device()
