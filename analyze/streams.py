"""Which open calls of a rank stand behind another one on its device?

The host enqueues and goes on, so that a rank may have entered several rounds at once. Their kernels run in the order
of entering: a call on a device that has not been seen to start waits for the rank's open call before it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from roundk.analyze.calls import ON_HOSTS
from roundk.analyze.case import Case

Key = tuple[int, int, int | None, int | None]
"""A round: group and seq, and of a send-receive pair who sends and who receives."""


@dataclass(frozen=True)
class Behind:
    """A rank's call of one round that waits, on its device, for the rank's call of another round.

    Attributes:
        round: Number of the round that is held up.
        front: Number of the round whose call comes first.
        is_timed: That the call has not started is recorded, not supposed.
    """

    rank: int
    round: int
    front: int
    is_timed: bool


@dataclass(frozen=True)
class Unit:
    """Open calls that a rank's device takes as one: a call, or a batch of sends and receives.

    Attributes:
        rounds: Numbers of the rounds that they are in.
        is_waiting: They have not been seen to start.
        is_timed: Their start would have been recorded.
        is_async: Nothing on the device waits for their end until the program asks for it.
    """

    rounds: tuple[int, ...]
    group: int
    is_p2p: bool
    is_waiting: bool
    is_timed: bool
    is_async: bool


def key_of(row: Mapping[str, Any]) -> Key:
    """The round of a call."""
    return (row["group"], row["seq"], row["src"], row["dst"]) if row["p2p"] else (row["group"], row["seq"], None, None)


def behind(case: Case, rounds: Mapping[Key, int]) -> list[Behind]:
    """Who stands behind what, call by call.

    Args:
        case: The case.
        rounds: The stuck rounds by their numbers.
    """
    ordered = units(case, rounds)
    waits = [(rank, unit, front) for rank, mine in ordered.items() for unit, front in _fronts(mine)]
    ways = {(unit.group, front.group) for _, unit, front in waits}
    apart = functools.cache(functools.partial(_were_apart, case))
    return [
        Behind(rank, held, first, unit.is_timed)
        for rank, unit, front in waits
        if unit.is_waiting and not _is_free(unit, front, ways, apart)
        for held in unit.rounds
        for first in front.rounds
    ]


def _fronts(mine: list[Unit]) -> Iterator[tuple[Unit, Unit]]:
    """Each unit with the last one before it that it has to wait for."""
    for at, unit in enumerate(mine):
        front = next((u for u in reversed(mine[:at]) if u.group == unit.group or not u.is_async), None)
        if front is not None:
            yield unit, front


def _is_free(unit: Unit, front: Unit, ways: set[tuple[int, int]], apart: Callable[[tuple[int, int]], bool]) -> bool:
    """Whether the two calls may well be on streams of their own."""
    if unit.is_timed or unit.group == front.group:
        return False
    # Only where ranks have both orders does it matter, and only collectives can be compared with those before.
    both = (front.group, unit.group) in ways
    return (
        both
        and not (unit.is_p2p or front.is_p2p)
        and apart((min(unit.group, front.group), max(unit.group, front.group)))
    )


def units(case: Case, rounds: Mapping[Key, int]) -> dict[int, list[Unit]]:
    """The open calls of each rank on its device, in the order of entering.

    Args:
        case: The case.
        rounds: The stuck rounds by their numbers.
    """
    on_device = [g.key for g in case.groups.values() if g.backend and not g.backend.startswith(ON_HOSTS)]
    if not on_device or case.blocked.is_empty():
        return {}
    of_devices = case.calls.lazy().with_row_index("row").filter(pl.col("group").is_in(on_device))
    is_completed = pl.col("outcome").cast(pl.String) == "completed"
    # What was entered later and has ended did not stand behind it, and nor will what comes after.
    ended = of_devices.filter(is_completed).group_by("rank").agg(ended=pl.col("row").max())
    keys = ["rank", "group", "seq", "op", "peer"]
    open_calls = (
        of_devices.filter(~is_completed)
        .join(case.blocked.lazy().select(keys), on=keys, how="semi", nulls_equal=True)
        .join(ended, on="rank", how="left")
        .filter(pl.col("row") > pl.col("ended").cast(pl.Int64).fill_null(-1))
        .sort("row")
        .collect()
    )
    found: dict[int, list[Unit]] = {}
    batch: tuple[int, int] | None = None
    for row in open_calls.iter_rows(named=True):
        number = rounds.get(key_of(row))
        if number is None:
            continue
        mine = found.setdefault(row["rank"], [])
        of_batch = (row["rank"], row["issued_ns"]) if row["p2p"] and row["issued_ns"] is not None else None
        if mine and batch is not None and of_batch == batch:
            mine[-1] = replace(mine[-1], rounds=(*mine[-1].rounds, number))
        else:
            is_timed = bool(row["is_timed"])
            is_waiting = not is_timed or row["start_ns"] is None
            # Sends and receives are called asynchronous by all sources: their programs wait for them all the same.
            is_async = bool(row["is_async"]) and not row["p2p"]
            mine.append(Unit((number,), row["group"], row["p2p"], is_waiting, is_timed, is_async))
        batch = of_batch
    return found


def _were_apart(case: Case, groups: tuple[int, int]) -> bool:
    """Ranks have entered completed rounds of the two groups in opposite orders before, which did no harm."""
    one, two = groups
    done = case.calls.filter(
        pl.col("group").is_in(groups), ~pl.col("p2p"), pl.col("outcome").cast(pl.String) == "completed"
    ).select("rank", "group", "seq")
    # How many calls of the one each rank had made when it made a call of the other.
    reached = done.with_columns(
        before=pl.when(pl.col("group") == two).then("seq").forward_fill().over("rank"),
    ).filter(pl.col("group") == one, pl.col("before").is_not_null())
    spread = reached.group_by("seq").agg(apart=pl.col("before").max() - pl.col("before").min())
    return bool((spread["apart"] > 0).any())
