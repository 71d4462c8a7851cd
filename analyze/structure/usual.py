"""What does a rank usually call next?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from roundk.analyze.case import Case
from roundk.analyze.streams import Key
from roundk.analyze.structure.shift import continued
from roundk.analyze.waitfor import StuckRound

_AHEAD: Final = 256
"""Calls that are looked for ahead: a few hundred make a step."""
_NEVER: Final = _AHEAD + 1

_Place = tuple[int, str | None, int | None]
"""Where a call is made: a group, and of a send or a receive which of both, and with whom."""


def distances(case: Case, rank: int, rounds: Sequence[StuckRound]) -> dict[Key, int]:
    """After how many of its calls a rank would come to each of several rounds, going on as in the steps before.

    Args:
        case: The case.
        rank: The rank.
        rounds: Rounds that it has not entered.

    Returns:
        By round: the number of calls before, `_AHEAD` + 1 where it never comes to it.
    """
    mine = case.calls.filter(pl.col("rank") == rank).select("group", "op", "peer", "p2p")
    made: list[_Place] = [
        (group, op, peer) if p2p else (group, None, None) for group, op, peer, p2p in mine.iter_rows()
    ]
    codes = {place: number for number, place in enumerate(dict.fromkeys(made))}
    ahead = continued([codes[place] for place in made], _AHEAD)
    first = {number: at for at, number in reversed(list(enumerate(ahead)))}
    return {r.key: first.get(codes.get(_place(rank, r), -1), _NEVER) for r in rounds}


def _place(rank: int, stuck: StuckRound) -> _Place:
    if stuck.pair is None:
        return (stuck.group, None, None)
    source, target = stuck.pair
    return (stuck.group, "send", target) if source == rank else (stuck.group, "recv", source)
