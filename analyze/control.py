"""Calls that torch does not dispatch: groups made and destroyed, and the end of coalescing.

They come in control groups, whose members are the ranks that must make the call.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from roundk.tracer import words

INIT: Final = "init_process_group"
DESTROY: Final = "destroy_process_group"


def twin(group: pl.Expr) -> pl.Expr:
    """Key of the rounds in which the ranks of a control group destroy what they made."""
    return (-1 - group).cast(pl.Int32)


def is_destruction(group: int) -> bool:
    """Whether a key is that of such rounds."""
    return group < 0


def apart(calls: pl.DataFrame, groups: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Give the destroying of groups rounds of its own, apart from their making.

    A rank that leaves early or for an exception destroys its groups while its peers still make new ones: it has not
    entered the round in which they wait.

    Args:
        calls: `schema.CALLS`.
        groups: `schema.GROUPS`.

    Returns:
        Both tables, the destroying calls under the key `twin(group)` and numbered anew from 1.
    """
    control = groups.filter(pl.col("desc") == words.CONTROL)
    op = pl.col("op").cast(pl.String)
    destroys = (op == DESTROY) & pl.col("group").is_in(control["group"].to_list())
    if control.is_empty() or calls.filter(destroys).is_empty():
        return calls, groups
    numbered = calls.with_row_index("row")
    moved = numbered.filter(destroys).select(
        "row",
        to_group=twin(pl.col("group")),
        to_seq=pl.int_range(1, pl.len() + 1, dtype=pl.Int64).over("rank", "group"),
    )
    renamed = (
        numbered.join(moved, on="row", how="left", maintain_order="left")
        .with_columns(group=pl.coalesce("to_group", "group"), seq=pl.coalesce("to_seq", "seq"))
        .select(calls.columns)
    )
    return renamed, pl.concat([groups, control.with_columns(group=twin(pl.col("group")))])
