"""How far a counter went up from one sample to the next: those of 32 bits wrap, those of a device made anew fall."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

WRAP: Final = 1 << 32
NEAR_WRAP: Final = 3 << 30
"""A counter that goes back has wrapped where it stood in the last quarter of 32 bits; else its device was made anew."""


def step(keys: Sequence[str]) -> pl.Expr:
    """The difference of `value` to the sample before, of rows sorted by `keys` and time; null for the first sample.

    Negative where a counter went back for another reason than its 32 bits.

    Args:
        keys: Columns that tell one counter from another.
    """
    value, before = pl.col("value"), pl.col("value").shift(1).over(keys)
    is_wrapped = (value < before) & (before >= NEAR_WRAP) & (before < WRAP)
    return pl.when(is_wrapped).then(value - before + WRAP).otherwise(value - before)
