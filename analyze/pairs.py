"""Sends and receives of rings that have lost their oldest calls, numbered so that those of one message agree.

A ring keeps as many calls, not as many steps, so that of one directed pair it may hold ten sends and the peer's ring
thirty receives. Counted from where each begins, the numbers do not match. What is certain is the order of events: a
message is received completely only after its send was entered, and a send that waits for its receiver ends only after
the receive was entered. Each bounds the difference of the numbers from one side, most tightly whenever the one side
has caught up with the other. Where both bounds meet the numbers are certain, else the pair is marked.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import polars as pl

from roundk.tracer import words

_PAIR: Final = ["group", "src", "dst"]
_FAR: Final = 1 << 62
"""Stands for an unknown time behind all others."""

_Times = np.ndarray[Any, Any]


def aligned(calls: pl.DataFrame, ranks: pl.DataFrame) -> pl.DataFrame:
    """Number the sends and receives of each directed pair alike on both sides.

    Args:
        calls: `schema.CALLS`.
        ranks: `schema.RANKS`.

    Returns:
        The rows in their order, `seq` of sends and receives shifted where a ring has lost the first ones.

        Columns:
            is_aligned (bool): False for sends and receives whose numbers are a guess: nothing tells which belong
                together.
    """
    plain = calls.with_columns(is_aligned=pl.lit(value=True))
    cut = ranks.filter(pl.col("first_call").fill_null(1) > 1)["rank"].to_list()
    op = pl.col("op").cast(pl.String)
    p2p = (
        calls.lazy()
        .with_row_index("row")
        .filter(op.is_in(list(words.P2P)), pl.col("peer").is_not_null())
        .select(
            "row",
            "group",
            "seq",
            "rank",
            src=pl.when(op == "send").then("rank").otherwise("peer"),
            dst=pl.when(op == "send").then("peer").otherwise("rank"),
            is_send=op == "send",
            enter_ns=pl.col("enter_ns").fill_null(_FAR),
            end_ns=pl.when(pl.col("outcome").cast(pl.String) == "completed").then("end_ns"),
            is_completed=pl.col("outcome").cast(pl.String) == "completed",
        )
        .collect()
    )
    if not cut or p2p.is_empty():
        return plain
    # A number that does not begin at 1 is a count of the source's own, which a lost beginning does not change.
    begins = p2p.group_by(*_PAIR, "is_send").agg(first=pl.col("seq").min(), is_cut=pl.col("rank").first().is_in(cut))
    counted_here = begins.filter("is_cut", pl.col("first") == 1)
    two_sided = begins.group_by(_PAIR).agg(sides=pl.len()).filter(pl.col("sides") == 2)
    doubtful = two_sided.join(counted_here.select(_PAIR).unique(), on=_PAIR, how="semi")
    rows = p2p.join(doubtful, on=_PAIR, how="semi", maintain_order="left")
    if rows.is_empty():
        return plain
    shifts = _shifts(rows, cut)
    moved = rows.join(shifts, on=[*_PAIR, "is_send"]).select("row", "by", "is_sure")
    return (
        calls.with_row_index("row")
        .join(moved, on="row", how="left", maintain_order="left")
        .with_columns(seq=pl.col("seq") + pl.col("by").fill_null(0), is_aligned=pl.col("is_sure").fill_null(value=True))
        .drop("row", "by", "is_sure")
    )


def _shifts(rows: pl.DataFrame, cut: list[int]) -> pl.DataFrame:
    """By how much the numbers of each side of each pair are to be raised, and whether that is certain."""
    ordered = rows.sort(*_PAIR, "is_send", maintain_order=True)
    enters, ends = ordered["enter_ns"].to_numpy(), ordered["end_ns"].fill_null(_FAR).to_numpy()
    sides = ordered.group_by(*_PAIR, "is_send", maintain_order=True).agg(
        count=pl.len().cast(pl.Int64),
        done=pl.col("is_completed").sum().cast(pl.Int64),
        is_cut=pl.col("rank").first().is_in(cut),
    )
    sides = sides.with_columns(to=pl.col("count").cum_sum()).with_columns(since=pl.col("to") - pl.col("count"))
    both = sides.filter("is_send").join(sides.filter(~pl.col("is_send")), on=_PAIR, suffix="_recv")
    found: list[dict[str, Any]] = []
    for row in both.iter_rows(named=True):
        sends, receives = slice(row["since"], row["to"]), slice(row["since_recv"], row["to_recv"])
        least, most = _bounds(enters[sends], ends[sends], enters[receives], ends[receives])
        by, last = most, row["done"] - row["done_recv"]
        is_sure = least == most
        if not is_sure:
            # A send that was buffered does not wait for its receiver: what it says of the least is no bound then.
            by, is_sure = last, last == most or last == least < most
        is_sure &= (row["is_cut"] or by >= 0) and (row["is_cut_recv"] or by <= 0)
        key = {name: row[name] for name in _PAIR}
        found.append({**key, "is_send": True, "by": max(-by, 0), "is_sure": is_sure})
        found.append({**key, "is_send": False, "by": max(by, 0), "is_sure": is_sure})
    kinds = {**{name: rows.schema[name] for name in _PAIR}, "is_send": pl.Boolean(), "by": pl.Int64()}
    return pl.DataFrame(found, schema={**kinds, "is_sure": pl.Boolean()})


def _bounds(sends: _Times, send_ends: _Times, receives: _Times, receive_ends: _Times) -> tuple[int, int]:
    """How much higher a receive's number is than its place among those kept, less the same of a send: from, to."""
    sent, received = np.flatnonzero(send_ends < _FAR), np.flatnonzero(receive_ends < _FAR)
    least, most = -_FAR, _FAR
    if len(sent) == len(received) == 0:
        return 0, 0  # nothing but calls in flight: the oldest ones belong together
    if len(received) and sends.max() < _FAR:
        made = np.searchsorted(np.sort(sends), receive_ends[received], side="right")
        most = int((made - (received + 1)).min())
    if len(sent) and receives.max() < _FAR:
        asked = np.searchsorted(np.sort(receives), send_ends[sent], side="right")
        least = int(((sent + 1) - asked).max())
    return least, most
