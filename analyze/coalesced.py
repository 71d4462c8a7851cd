"""Collectives that were issued as one: several rows of one rank that share a sequence number become one call."""

from __future__ import annotations

import math
from typing import Final

import polars as pl

from roundk.tracer import words

KEY: Final = ["rank", "group", "seq"]
END: Final = "coalescing_end"
MIXED: Final = "coalesced"
"""A group of different operations; also how NCCL's end of a group is recorded."""

_COALESCED: Final = "_coalesced"

_MOST_KEYS: Final = 1 << 62

_WORST: Final = ("failed", "open", "not_recorded", "completed")
"""Outcomes of parts, the one that speaks for the whole first."""


def merged(calls: pl.DataFrame) -> pl.DataFrame:
    """One row per rank, group and sequence number of a collective.

    The whole is entered with its first part and ends with the row of its end, or else with its last part.

    Args:
        calls: `schema.CALLS`.

    Returns:
        The same columns; `op` of a merged row is `<op>_coalesced`, or `coalesced` where the operations differ.
    """
    collective = ~pl.col("op").is_in(list(words.P2P))
    if _all_differ(calls, collective):
        return calls
    keys = calls.lazy().filter(collective).group_by(KEY).len().filter(pl.col("len") > 1).select(KEY).collect()
    if keys.is_empty():
        return calls
    numbered = calls.with_row_index("row")
    several = numbered.filter(collective).join(keys, on=KEY, how="semi", maintain_order="left")
    name = pl.col("op").cast(pl.String)
    outcome = pl.col("outcome").cast(pl.String)
    ends = name == END
    # What a backend records as the end moves nothing, and may name the whole: an uneven all_gather is broadcasts.
    titles = name.str.ends_with(_COALESCED) & (name == name.last()) & (name != name.first())
    closes = ends | (name == MIXED) | titles
    whole = several.group_by(KEY, maintain_order=True).agg(
        pl.exclude(*KEY).first(),
        ops=name.filter(~closes).unique(maintain_order=True),
        parts=(~closes).sum(),
        title=name.filter(titles).last(),
        sums=pl.struct(pl.col("numel", "bytes_in", "bytes_out").filter(~closes).sum()),
        all_shapes=pl.col("shapes").cast(pl.String).filter(~closes).drop_nulls().str.join(", "),
        issued=pl.col("issued_ns").max(),
        last_end=pl.col("end_ns").max(),
        told_end=pl.col("end_ns").filter(ends).last(),
        told=outcome.filter(ends).last(),
        outcomes=outcome,
    )
    one = pl.col("ops").list.len() == 1
    first = pl.col("ops").list.first()
    as_it_is = (pl.col("parts") == 1) | first.str.ends_with(_COALESCED)
    of_parts = pl.when(~one).then(pl.lit(MIXED)).when(as_it_is).then(first).otherwise(first + _COALESCED)
    op = pl.coalesce("title", of_parts)
    worst = pl.coalesce(*(pl.when(pl.col("outcomes").list.contains(w)).then(pl.lit(w)) for w in _WORST))
    outcome = pl.coalesce("told", worst)
    whole = whole.with_columns(
        pl.col("sums").struct.unnest(),
        op=op,
        shapes=pl.col("all_shapes").replace("", None),
        issued_ns="issued",
        outcome=outcome,
        end_ns=pl.when(pl.col("told").is_not_null())
        .then("told_end")
        .when(outcome.is_in(["completed", "failed"]))
        .then("last_end"),
    )
    whole = whole.select(pl.col(name).cast(kind) for name, kind in numbered.schema.items())
    rest = numbered.join(several.select("row"), on="row", how="anti")
    return pl.concat([rest, whole]).sort("row").drop("row")


def uncut(calls: pl.DataFrame, ranks: pl.DataFrame) -> pl.DataFrame:
    """The calls without those of which parts may be lost: at the begin of a ring that has wrapped, at a file's cut end.

    Args:
        calls: As `merged` makes them.
        ranks: `schema.RANKS`.
    """
    wrapped = ranks.filter(pl.col("first_call") > 1)["rank"].to_list()
    torn = ranks.filter(pl.col("data") == "truncated")["rank"].to_list()
    if not wrapped and not torn:
        return calls
    numbered = calls.lazy().with_row_index("row")
    op = pl.col("op").cast(pl.String)
    groups = op.str.ends_with(MIXED)
    first = numbered.filter(pl.col("rank").is_in(wrapped)).group_by("rank").first().filter(groups)
    # Uneven collectives are broadcasts and reductions issued as one.
    pieces = groups | op.is_in(["broadcast", "reduce"])
    last = numbered.filter(pl.col("rank").is_in(torn)).group_by("rank").last().filter(pieces)
    cut = pl.concat([first.select("row"), last.select("row")]).collect()["row"]
    return calls if cut.is_empty() else calls.filter(~pl.int_range(pl.len(), dtype=pl.UInt32).is_in(cut.implode()))


def _all_differ(calls: pl.DataFrame, collective: pl.Expr) -> bool:
    """Whether no two calls have one key, as in most jobs: a count of single numbers costs a third of grouping."""
    groups, seqs, ranks = (calls[name].cast(pl.Int64) for name in ("group", "seq", "rank"))
    sizes = [int(str(column.abs().max() or 0)) + 1 for column in (groups, seqs, ranks)]
    if math.prod(sizes) > _MOST_KEYS:
        return False
    group, seq, rank = (pl.col(name).cast(pl.Int64) for name in ("group", "seq", "rank"))
    key = (group * sizes[1] + seq) * sizes[2] + rank
    keys = calls.lazy().filter(collective).select(key).collect().to_series()
    return keys.n_unique() == len(keys)
