"""The members of one round by the call that they made."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from roundk.analyze.calls import SIGNATURE
from roundk.analyze.case import Case
from roundk.analyze.finding import Evidence
from roundk.analyze.phrases import ranks_text
from roundk.analyze.sizes import EQUAL

_MOST_SIDES: Final = 6
"""Sides shown as evidence."""


@dataclass(frozen=True)
class Side:
    """Members of a round that made the same call.

    Attributes:
        possible: Nothing says that the call cannot be right whatever the others call.
    """

    ranks: tuple[int, ...]
    call: dict[str, Any]
    possible: bool = True


def sides(calls: pl.DataFrame) -> list[Side]:
    """Members of one round by the call they made, the largest side first."""
    odd = (pl.col("bytes_in") != pl.col("bytes_out")) & pl.col("op").is_in(list(EQUAL))
    known = calls.sort("rank").with_columns(*(_filled(name) for name in SIGNATURE[1:]), odd=odd.fill_null(value=False))
    # What is recorded stands in the text; what is compared has no gaps.
    parts = known.select("rank", "odd", *SIGNATURE).partition_by(*SIGNATURE, "odd", maintain_order=True)
    recorded = {row["rank"]: row for row in calls.iter_rows(named=True)}
    found = [Side(tuple(part["rank"]), recorded[part["rank"][0]], not part["odd"][0]) for part in parts]
    return sorted(found, key=lambda side: (-len(side.ranks), side.ranks))


def _filled(name: str) -> pl.Expr:
    """What is not recorded of a call is what the others' calls of that operation have, where those are alike."""
    value, op = pl.col(name), SIGNATURE[0]
    only = pl.when(value.drop_nulls().n_unique().over(op) == 1).then(value.max().over(op))
    return pl.coalesce(value, only).alias(name)


def majority(parts: Sequence[Side], unseen: int = 0) -> Side | None:
    """The side that more than half of those who entered are on; none where its own call cannot be right.

    Args:
        parts: The sides, the largest first.
        unseen: Members who may have entered with calls that nobody kept: they count against any majority.
    """
    most = 2 * len(parts[0].ranks) > sum(len(part.ranks) for part in parts) + unseen
    return parts[0] if most and parts[0].possible else None


def unseen(case: Case, group: int, entered: Collection[int]) -> int:
    """Members of a group of whom no call of a round is kept, and of whom nothing tells that they made none."""
    blind = set(case.frontier.filter(pl.col("group") == group, ~pl.col("sure"))["rank"].to_list())
    nothing = {e.rank for e in case.endings.values() if e.data in ("missing", "empty")} - case.counted
    return len((blind | nothing.intersection(case.member_ranks(group))) - set(entered))


def describe(case: Case, call: dict[str, Any]) -> str:
    """A call with what its peers must agree on: `broadcast float32 [[4]] root 0 (train.py:33)`."""
    size = call["shapes"] or (None if call["numel"] is None else f"{call['numel']} elements")
    root = None if call["root"] is None else f"root {call['root']}"
    words = [call["op"], call["reduce_op"], call["dtype"], size, root]
    return " ".join(str(word) for word in words if word) + case.at_site(call["site"])


def side_evidence(case: Case, parts: Sequence[Side], seq: int) -> tuple[Evidence, ...]:
    """One line per side, with the file of its first rank."""
    found: list[Evidence] = []
    for side in parts[:_MOST_SIDES]:
        what = f"{ranks_text(side.ranks)} called #{seq} as {describe(case, side.call)}"
        if not side.possible:
            what += ", whose input and output do not fit each other"
        found.append(Evidence(what, case.source(side.ranks[0]), side.ranks[0], side.call["enter_ns"]))
    return tuple(found)
