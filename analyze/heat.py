"""Where every rank stands and how far it came: one mark per rank, so that 16,384 of them can be seen at once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl

from roundk.analyze.case import Case, Group
from roundk.analyze.chart import group_of
from roundk.analyze.names import Structure
from roundk.analyze.phrases import group_text
from roundk.analyze.picture import Picture
from roundk.analyze.verdict import Verdict

CULPRIT, WAITS, ELSEWHERE, QUIET, NO_DATA = "cwo.n"
STATES: Final = {
    CULPRIT: "to blame",
    WAITS: "waits in the round of the verdict",
    ELSEWHERE: "waits in another round",
    QUIET: "in no open call",
    NO_DATA: "no data",
}
"""Marks of `states`, and what they say."""

LEVEL, ONE, FEW, MANY, FAR, UNTOLD, OUTSIDE = "01234u-"
BEHIND: Final = {
    LEVEL: "as far as the furthest",
    ONE: "1 call behind",
    FEW: "2 to 9 behind",
    MANY: "10 to 99 behind",
    FAR: "100 or more behind",
    UNTOLD: "not told",
    OUTSIDE: "not a member",
}
"""Marks of a frontier, and what they say."""

MAX_FAMILIES: Final = 6
"""Frontiers that are drawn: the verdict's, then those in which most ranks are behind."""

_ENDS_TELL: Final = frozenset({Structure.DEVICE_STUCK, Structure.PARTIAL_COMPLETION})
"""Structures that are about who completed a call: elsewhere a lag of completions is a tick of a watchdog."""

_BOUNDS: Final = ((1, LEVEL), (2, ONE), (10, FEW), (100, MANY))


@dataclass(frozen=True)
class Family:
    """Groups of one kind, such as all tensor-parallel ones, and how far their members came.

    Attributes:
        text: What to call it.
        groups: How many groups.
        size: Members of the largest.
        marks: One character of `BEHIND` per rank.
        behind: Ranks that are behind.
        is_of_ends: It counts calls that were completed, not entered.
    """

    text: str
    groups: int
    size: int
    marks: str
    behind: int
    is_of_ends: bool


def known_ranks(case: Case) -> tuple[int, ...]:
    """All ranks that there is something of."""
    return tuple(sorted({*case.endings, *(rank for group in case.groups.values() for rank in group.ranks)}))


def states(case: Case, verdict: Verdict, picture: Picture, ranks: Iterable[int]) -> str:
    """One character of `STATES` per rank."""
    blamed, direct = set(verdict.culprit_ranks), {*picture.direct, *verdict.waiting_ranks}
    elsewhere = {*picture.through, *case.blocked["rank"].to_list()}
    without = {rank for rank, ending in case.endings.items() if ending.data in ("missing", "empty")}
    sets = ((blamed, CULPRIT), (direct, WAITS), (elsewhere, ELSEWHERE), (without, NO_DATA))
    return "".join(next((mark for members, mark in sets if rank in members), QUIET) for rank in ranks)


def families(case: Case, verdict: Verdict, ranks: tuple[int, ...]) -> tuple[list[Family], int]:
    """The frontiers worth drawing, and how many further ones there are in which nobody is behind."""
    entered = case.frontier.select("group", "rank", reached="last_entered", sure=pl.col("sure"))
    own = group_of(case, verdict)
    found = [(key, _family(key, groups, entered, ranks)) for key, groups in _kinds(case, own).items()]
    moved = [(key, one) for key, one in found if set(one.marks) - {UNTOLD, OUTSIDE}]
    kinds = _kinds(case, own) if verdict.structure in _ENDS_TELL else {}
    ends = [_family(key, groups, completed(case), ranks, ends=True) for key, groups in kinds.items()]
    shown = [one for key, one in moved if one.behind or (own is not None and key == _kind(own))]
    shown += [one for one in ends if one.behind]
    first = None if own is None else _name(_kind(own))
    shown.sort(key=lambda one: (one.text != first, one.is_of_ends, -one.behind))
    return shown[:MAX_FAMILIES], len(moved) - len({one.text for one in shown if not one.is_of_ends})


def completed(case: Case) -> pl.DataFrame:
    """How far members came by the counters of completions that dumps and logs carry, where any do.

    Returns:
        One row per (group, rank).

        Columns:
            group, rank: Who, and where.
            reached (int64): Number of the last collective completed.
            sure (bool): True.
    """
    told = case.trace.progress.filter(
        pl.col("counts") == "collectives", pl.col("op").is_null(), pl.col("completed").is_not_null()
    )
    return told.group_by("group", "rank").agg(reached=pl.col("completed").max()).with_columns(sure=pl.lit(value=True))


def mark(behind: int) -> str:
    """The character of `BEHIND` for so many calls."""
    return next((name for bound, name in _BOUNDS if behind < bound), FAR)


def _kind(group: Group) -> tuple[str, str]:
    """Groups that do the same for different ranks have one description, or names that differ in a number."""
    desc = "" if group.desc in ("", "undefined") else group.desc
    return (re.sub(r"\d+", "#", group.name) if not desc else "", desc)


def _name(kind: tuple[str, str]) -> str:
    name, desc = kind
    return group_text(name, desc).removeprefix("group ")


def _kinds(case: Case, own: Group | None) -> Mapping[tuple[str, str], list[Group]]:
    kinds: dict[tuple[str, str], list[Group]] = {}
    for group in case.groups.values():
        if not group.is_control or group == own:
            kinds.setdefault(_kind(group), []).append(group)
    return kinds


def _family(
    kind: tuple[str, str],
    groups: list[Group],
    reached: pl.DataFrame,
    ranks: tuple[int, ...],
    *,
    ends: bool = False,
) -> Family:
    mine = (
        reached.filter(pl.col("group").is_in([group.key for group in groups]))
        .with_columns(behind=pl.col("reached").max().over("group") - pl.col("reached"))
        # A member of whom the recording cannot tell is as far as the furthest, or it is not told.
        .with_columns(is_told=(pl.col("sure") | (pl.col("behind") == 0)) & (pl.col("reached").max().over("group") > 0))
        .group_by("rank")
        .agg(behind=pl.col("behind").filter("is_told").max())
    )
    behind = dict(mine.iter_rows())
    members = {rank for group in groups for rank in group.ranks}
    marks = "".join(
        OUTSIDE if rank not in members else UNTOLD if behind.get(rank) is None else mark(behind[rank]) for rank in ranks
    )
    return Family(
        text=_name(kind),
        groups=len(groups),
        size=max(len(group.ranks) for group in groups),
        marks=marks,
        behind=sum(marks.count(name) for name in (ONE, FEW, MANY, FAR)),
        is_of_ends=ends,
    )
