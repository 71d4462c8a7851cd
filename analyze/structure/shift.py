"""Does one rank's sequence of calls match its peers' after leaving out or adding a few?

A skipped call re-pairs silently where the next one fits, so the hang shows later than the fault. The calls of a rank
are laid beside the reference of its group, once as they are and once shifted by d from some seq on; the cheaper reading
wins, a shift costing as much as d differing calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

MAX_SHIFT: Final = 32
"""Longest run of skipped or added calls looked for; beyond it a rank has left its peers altogether."""

CONTEXT: Final = 16
"""Calls compared when a repetition is looked for to tell what would have come next."""

LOOK_BACK: Final = 4096
"""How far back a repetition is looked for, in calls."""


@dataclass(frozen=True)
class Shift:
    """A rank's calls match its peers' `by` calls further on (skipped, > 0) or back (added, < 0) from index `at` on.

    Attributes:
        explained: Differing calls that the shift saves, its own cost taken off.
        left: Differing calls that it leaves.
    """

    at: int
    by: int
    explained: int
    left: int


def continued(reference: Sequence[int], count: int) -> list[int]:
    """The calls that would come next if the reference went on as it did the last time it was where it is now.

    Args:
        reference: One number per call, equal for equal calls.
        count: How many are wanted.

    Returns:
        At most `count` calls; none where the last call is the first of its kind.
    """
    last = len(reference) - 1
    best, best_length = -1, 0
    for at in range(last - 1, max(-1, last - 1 - LOOK_BACK), -1):
        length = 0
        while length < CONTEXT and at - length >= 0 and reference[at - length] == reference[last - length]:
            length += 1
        if length > best_length:
            best, best_length = at, length
            if length == CONTEXT:
                break
    if best < 0:
        return []
    period = reference[best + 1 :]
    return [period[i % len(period)] for i in range(count)]


def find_shifts(calls: Sequence[int], reference: Sequence[int], *, reached: int) -> list[Shift]:
    """The shifts that lay a rank's calls onto the reference at no more cost than taking them as they are.

    In a loop, leaving out the first part of an iteration and adding its last part once more look alike from the calls
    alone; so there is one answer for each direction.

    Args:
        calls: The rank's calls, one number each, from the first seq that both have.
        reference: Its peers' calls, continued by what would have come next where they hang.
        reached: How many of `reference` the peers really made.

    Returns:
        At most one shift for each direction, the cheapest and shortest there; the cheaper direction first.
    """
    own = pl.Series("own", calls, dtype=pl.UInt64)
    peers = pl.Series("peers", reference, dtype=pl.UInt64)
    plain = _differences(own, peers, 0)
    if not plain.any():
        return []
    before = pl.concat([pl.Series([0], dtype=pl.Int64), plain.cast(pl.Int64).cum_sum()])
    # A call that its peers make nowhere was rather made instead of theirs: a shift has to save more than that.
    known = set(reference[:reached])
    novel = any(call not in known for call, differs in zip(calls, plain.to_list(), strict=True) if differs)
    budget = int(before[-1]) - (1 if novel else 0)
    found = [_cheapest(own, peers, before, sign, budget) for sign in (1, -1)]
    return sorted((s for s in found if s is not None), key=lambda s: (-s.explained, abs(s.by), s.by < 0))


def realigns(calls: Sequence[int], reference: Sequence[int], shift: Shift) -> bool:
    """Whether a call behind the shift matches one that the peers made, and would not match without it.

    Args:
        calls: The rank's calls.
        reference: Its peers' calls, only those that they made.
        shift: One of `find_shifts`.
    """
    first = shift.at if shift.by > 0 else shift.at - shift.by
    return any(
        calls[at] == reference[at + shift.by] and (at >= len(reference) or calls[at] != reference[at])
        for at in range(first, min(len(calls), len(reference) - shift.by))
    )


def _cheapest(own: pl.Series, peers: pl.Series, before: pl.Series, sign: int, budget: int) -> Shift | None:
    best: Shift | None = None
    plain = int(before[-1])
    for size in range(1, min(MAX_SHIFT, len(own) + 1, budget) + 1):
        for option, most in _options(own, peers, before, sign * size, budget):
            if option is not None and option[0] <= most and (best is None or plain - option[0] > best.explained):
                cost, at = option
                best = Shift(at=at, by=sign * size, explained=plain - cost, left=cost - size)
    return best


_Option = tuple[int, int] | None


def _options(own: pl.Series, peers: pl.Series, before: pl.Series, by: int, budget: int) -> list[tuple[_Option, int]]:
    """Cost and place of shifting by so many calls, and the most that it may cost.

    What its peers have not come to, as they hang where they miss the rank, does not speak against a skip that other
    calls speak for; nor does it make one as likely as none.
    """
    after = _differences(own, peers, by)
    options = [(_cost(before, _from_each_on(after), by), budget)]
    if by > 0 and not after.all():
        index = pl.int_range(0, len(own), eager=True)
        unreached = (index + by >= len(peers)) & (index < len(peers))
        rest = _from_each_on(after & ~unreached).zip_with(_from_each_on(~after) > 0, _from_each_on(after))
        options.append((_cost(before, rest, by), min(budget, int(before[-1]) - 1)))
    return options


def _cost(before: pl.Series, rest: pl.Series, by: int) -> _Option:
    """Least cost of shifting by so many calls, and the last index at which it is had.

    Args:
        before: Plain differences up to each index.
        rest: Differences of the shifted calls from each index on.
        by: The shift.
    """
    count, added = len(rest) - 1, max(-by, 0)
    if added > count:
        return None
    # Cutting at i costs the plain differences before i, the shift itself, and what still differs after it.
    total = before.slice(0, count + 1 - added) + rest.slice(added) + abs(by)
    least = total.min()
    if not isinstance(least, int):
        return None
    at = int((total == least).arg_true()[-1])
    return (least, at) if at < count else None


def _from_each_on(flags: pl.Series) -> pl.Series:
    """How many are set from each index on, one index beyond the last included."""
    return pl.concat([flags.cast(pl.Int64).reverse().cum_sum().reverse(), pl.Series([0], dtype=pl.Int64)])


def _differences(own: pl.Series, peers: pl.Series, by: int) -> pl.Series:
    """Where the rank's calls differ from the peers' calls `by` further on; beyond their end everything differs."""
    index = pl.int_range(by, by + len(own), eager=True)
    inside = (index >= 0) & (index < len(peers))
    aligned = peers.gather(index.clip(0, max(len(peers) - 1, 0))) if len(peers) else own
    return ~((own == aligned) & inside)
