"""Counts and the percentages printed beside them: computed from the counts, and checked against them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from typing import Final

_STEP: Final = Fraction(1, 10)
"""Percentages are printed with one digit after the point."""


@dataclass(frozen=True)
class Misprint:
    """A percentage that does not follow from its count.

    Attributes:
        name: Of what it is the share.
        count: How many.
        total: Of how many.
        printed: The percentage that stands there.
        computed: The one that follows from the count.
    """

    name: str
    count: int
    total: int
    printed: float
    computed: float


def percent(count: int, total: int) -> float | None:
    """The share in percent, rounded to one digit after the point as on paper (half goes up); None: of nothing."""
    if not total:
        return None
    exact = Decimal(100 * count) / Decimal(total)
    return float(exact.quantize(Decimal("0.1"), ROUND_HALF_UP))


def text(count: int, total: int) -> str:
    """The share as it is printed, `42.5 %`; empty where there is nothing to have a share of."""
    share = percent(count, total)
    return "" if share is None else f"{share:.1f} %"


def check(rows: Iterable[tuple[str, int, float]], total: int) -> list[Misprint]:
    """The percentages that do not follow from their counts.

    Args:
        rows: Name, count and printed percentage of each.
        total: What they are shares of.
    """
    # Half a digit either way is rounding, whichever way it is done.
    return [
        Misprint(name, count, total, printed, percent(count, total) or 0.0)
        for name, count, printed in rows
        if not total or abs(Fraction(str(printed)) - Fraction(100 * count, total)) > _STEP / 2
    ]
