"""Do the sizes in a round fit each other? Equal sizes are not enough, and unequal ones may be right.

Two questions: is a call possible by itself (an all_gather_into_tensor gets what all members pass), and do all members
together get what they pass (an all_to_all may be as uneven as its splits say, but what is sent to a rank is what that
rank receives).

Source: the argument checks of torch/csrc/distributed/c10d/ProcessGroup{NCCL,Gloo}.cpp, torch 2.13; the operations'
semantics as the NCCL user guide has them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

_GATHERS: Final = ("all_gather_into_tensor", "all_gather_into_tensor_coalesced")
_SCATTERS: Final = ("reduce_scatter_tensor", "reduce_scatter_tensor_coalesced")
EQUAL: Final = ("all_reduce", "all_reduce_coalesced", "broadcast")
"""Operations of which a call gets as much as it passes."""
POSSIBLE: Final = (*EQUAL, *_GATHERS, *_SCATTERS)
"""Operations of which one call's input and output must fit each other."""

TOTALS: Final = ("all_to_all", "all_to_all_single", "all_gather", "reduce_scatter", "gather", "scatter")
"""Operations of which only all members' inputs and outputs together must."""

_SIZED: Final = (*_GATHERS, *_SCATTERS, "all_gather", "reduce_scatter")
"""Those whose rule holds the number of members."""

_ASKED: Final = ("group", "seq", "op", "bytes_in", "bytes_out")

_MOST_EDGES: Final = 1 << 20
"""Pairs of ranks compared in one round: a group of 1,024."""

_LISTS: Final = re.compile(r"[\[\]\d, ]+")


@dataclass(frozen=True)
class Edge:
    """What one member sends to another, and what that one expects, in elements; they differ."""

    source: int
    target: int
    sent: int
    expected: int


def surplus(size: pl.Expr) -> pl.Expr:
    """Bytes that a call passes and does not get, by its operation's rule; null where there is no rule, or no size.

    Zero for a possible call of `POSSIBLE`; of `TOTALS`, the sum over all members is zero.

    Args:
        size: Members of the group.
    """
    op = pl.col("op")
    given, got = pl.col("bytes_in"), pl.col("bytes_out")
    return (
        pl.when(op.is_in([*_GATHERS, "all_gather"]))
        .then(given * size - got)
        .when(op.is_in([*_SCATTERS, "reduce_scatter"]))
        .then(given - got * size)
        # Who is not the root passes or gets nothing, and some backends record a tensor without a type for it.
        .when(op.is_in(["gather", "scatter"]))
        .then(given.fill_null(0) - got.fill_null(0))
        .when(op.is_in([*EQUAL, "all_to_all", "all_to_all_single"]))
        .then(given - got)
    )


def unfit(calls: pl.DataFrame, members: pl.DataFrame) -> pl.DataFrame:
    """Rounds whose sizes are wrong, although they may differ nowhere: impossible calls, and totals that do not match.

    Groups in which no rule that holds the number of members ever does are left out: who is in them is not known.

    Args:
        calls: As `calls.ready` makes them.
        members: One row per (group, rank).

    Returns:
        One row per (group, seq), sorted: the keys only. Totals are asked of rounds that all members entered.
    """
    listed = members.group_by("group").agg(size=pl.len().cast(pl.Int64), first=pl.col("rank").min())
    # Where calls must be alike, one member's says what all say.
    first = dict(zip(listed["group"], listed["first"], strict=True))
    speaks = pl.col("rank") == pl.col("group").replace_strict(first, default=None, return_dtype=pl.Int32)
    alike = calls.filter(speaks).filter(pl.col("op").is_in(list(POSSIBLE)))
    apart = calls.filter(pl.col("op").is_in(list(TOTALS)))
    asked = (
        pl.concat([alike.select(_ASKED), apart.select(_ASKED)])
        .join(listed, on="group")
        .with_columns(surplus=surplus(pl.col("size")))
        .group_by("group", "seq")
        .agg(
            pl.col("op", "size").first(),
            told=pl.col("surplus").count(),
            total=pl.col("surplus").sum(),
            given=pl.col("bytes_in").max(),
            got=pl.col("bytes_out").max(),
        )
        .filter(pl.col("told") == pl.when(pl.col("op").is_in(list(TOTALS))).then("size").otherwise(1))
        # A source that has no lists of its roots says nothing here.
        .filter(~pl.col("op").is_in(["gather", "scatter"]) | ((pl.col("given") > 0) & (pl.col("got") > 0)))
        .with_columns(wrong=pl.col("total") != 0)
    )
    unknown = (
        asked.filter(pl.col("op").is_in(list(_SIZED))).group_by("group").agg(pl.col("wrong").all()).filter("wrong")
    )
    return asked.filter("wrong").join(unknown, on="group", how="anti").select("group", "seq").sort("group", "seq")


def edges(calls: Sequence[dict[str, Any]], ranks: Sequence[int]) -> list[Edge] | None:
    """The pairs of members of which one sends another what that one does not expect.

    Args:
        calls: All members' calls of a round of `TOTALS`.
        ranks: The members in group order.

    Returns:
        None where it is not recorded what each sends to each.
    """
    by_rank = {call["rank"]: call for call in calls}
    if set(by_rank) != set(ranks) or len(ranks) ** 2 > _MOST_EDGES:
        return None
    parts = [_parts(by_rank[rank], len(ranks)) for rank in ranks]
    sent, expected = [one for one, _ in parts], [other for _, other in parts]
    if all(one is None for one in sent) or all(other is None for other in expected):
        return None
    if not _rooted(by_rank[ranks[0]]) and any(one is None or other is None for one, other in parts):
        return None
    found: list[Edge] = []
    for at, source in enumerate(ranks):
        for to, target in enumerate(ranks):
            given, wanted = sent[at], expected[to]
            if given is not None and wanted is not None and given[to] != wanted[at]:
                found.append(Edge(source, target, given[to], wanted[at]))
    return found


def _rooted(call: dict[str, Any]) -> bool:
    return call["op"] in ("gather", "scatter")


def _parts(call: dict[str, Any], size: int) -> tuple[list[int] | None, list[int] | None]:
    """Elements that a call sends to each member and expects of each; None where it has none, or nothing tells."""
    text, split, splits = str(call["shapes"] or "").partition(" splits ")
    given, arrow, got = text.partition(" -> ")
    inputs, outputs = _counts(given), _counts(got) if arrow else None
    if call["op"] in ("all_to_all", "all_to_all_single") and None not in (inputs, outputs) and split:
        sends, takes = _splits(splits)
        return _split(given, sends, size), _split(got, takes, size)
    if call["op"] in ("all_gather", "gather"):
        return _each(inputs, size), _listed(outputs, size) or _stacked(outputs, size)
    if call["op"] in ("reduce_scatter", "scatter"):
        return _listed(inputs, size) or _stacked(inputs, size), _each(outputs, size)
    return _listed(inputs, size), _listed(outputs, size)


def _each(counts: list[int] | None, size: int) -> list[int] | None:
    """The same for or from every member."""
    return None if counts is None or len(counts) != 1 else counts * size


def _listed(counts: list[int] | None, size: int) -> list[int] | None:
    """One tensor for each member."""
    return counts if counts is not None and len(counts) == size else None


def _stacked(counts: list[int] | None, size: int) -> list[int] | None:
    """One tensor of equal parts."""
    whole = counts is not None and len(counts) == 1 and counts[0] > 0 and counts[0] % size == 0
    return [counts[0] // size] * size if whole and counts is not None else None


def _split(shapes: str, splits: list[int], size: int) -> list[int] | None:
    """One tensor in parts along its first dimension, equal if none are told; sources count rows, or elements."""
    counts = _counts(shapes)
    if counts is None or len(counts) != 1:
        return None
    if not splits:
        return [counts[0] // size] * size
    shape = _parsed(shapes)[0]
    rows = shape[0] if shape else 1
    if len(splits) != size or sum(splits) not in (rows, counts[0]):
        return None
    width = counts[0] // rows if sum(splits) == rows and rows else 1
    return [part * width for part in splits]


def _splits(text: str) -> tuple[list[int], list[int]]:
    """Parts of the input and of the output: `[1, 2] -> [2, 1]`; our recorder has the output's first, `[[2, 1], []]`."""
    sends, arrow, takes = text.partition(" -> ")
    if arrow:
        return _numbers(sends), _numbers(takes)
    both = _parsed(text) or []
    takes_first = [part for part in both if isinstance(part, list)]
    return (takes_first[1], takes_first[0]) if len(takes_first) == 2 else ([], [])


def _numbers(text: str) -> list[int]:
    value = _parsed(text)
    return [one for one in value if isinstance(one, int)] if isinstance(value, list) else []


def _counts(text: str) -> list[int] | None:
    """Elements of each tensor of a text of shapes; None where it is none, or cut."""
    value = _parsed(text)
    if not isinstance(value, list) or not all(isinstance(shape, list) for shape in value):
        return None
    return [math.prod(shape) for shape in value]


def _parsed(text: str) -> Any:
    if not _LISTS.fullmatch(text):
        return None
    try:
        return json.loads(text)
    except ValueError:  # a list that is cut
        return None
