"""Collectives that were issued as one: several rows of one rank that share a sequence number become one call."""

from __future__ import annotations

from typing import Final

import polars as pl

from roundk.tracer import words

KEY: Final = ["rank", "group", "seq"]
END: Final = "coalescing_end"

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
    collective = ~pl.col("op").cast(pl.String).is_in(list(words.P2P))
    keys = calls.lazy().filter(collective).group_by(KEY).len().filter(pl.col("len") > 1).select(KEY).collect()
    if keys.is_empty():
        return calls
    numbered = calls.with_row_index("row")
    several = numbered.filter(collective).join(keys, on=KEY, how="semi", maintain_order="left")
    plain = pl.col("op").cast(pl.String).filter(pl.col("op").cast(pl.String) != END)
    outcome = pl.col("outcome").cast(pl.String)
    ends = pl.col("op").cast(pl.String) == END
    whole = several.group_by(KEY, maintain_order=True).agg(
        pl.exclude(*KEY).first(),
        ops=plain.unique(maintain_order=True),
        parts=plain.len(),
        sums=pl.struct(pl.col("numel", "bytes_in", "bytes_out").sum()),
        all_shapes=pl.col("shapes").cast(pl.String).drop_nulls().str.join(", "),
        issued=pl.col("issued_ns").max(),
        last_end=pl.col("end_ns").max(),
        told_end=pl.col("end_ns").filter(ends).last(),
        told=outcome.filter(ends).last(),
        outcomes=outcome,
    )
    one = pl.col("ops").list.len() == 1
    first = pl.col("ops").list.first()
    as_it_is = (pl.col("parts") == 1) | first.str.ends_with("_coalesced")
    op = pl.when(~one).then(pl.lit("coalesced")).when(as_it_is).then(first).otherwise(first + "_coalesced")
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
