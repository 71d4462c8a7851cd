"""Do the members of one round make the same call?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from roundk.analyze.calls import SIGNATURE
from roundk.analyze.case import Case
from roundk.analyze.finding import Evidence, Finding, Reason
from roundk.analyze.names import Cause, Confidence, Detail, Structure
from roundk.analyze.phrases import capital, ranks_text, verb

_DETAILS: Final = (
    ("op_code", Detail.OP),
    ("size_key", Detail.SIZE),
    ("dtype_code", Detail.DTYPE),
    ("root", Detail.ROOT),
    ("reduce_code", Detail.REDUCE_OP),
)
"""What to name first where several differ."""


@dataclass(frozen=True)
class Side:
    """Members of a round that made the same call."""

    ranks: tuple[int, ...]
    call: dict[str, Any]


def mismatches(case: Case) -> list[Finding]:
    """The lowest round of each group in which members disagree on the call, by onset."""
    lowest = (
        case.comparable_rounds.filter("differs")
        .sort("group", "seq")
        .group_by("group", maintain_order=True)
        .first()
        .sort("first_enter_ns")
    )
    return [_finding(case, row) for row in lowest.iter_rows(named=True)]


def sides(calls: pl.DataFrame) -> list[Side]:
    """Members of one round by the call they made, the largest side first."""
    parts = calls.sort("rank").partition_by(*SIGNATURE, maintain_order=True)
    found = [Side(tuple(part["rank"]), part.row(0, named=True)) for part in parts]
    return sorted(found, key=lambda side: (-len(side.ranks), side.ranks))


def majority(parts: list[Side]) -> Side | None:
    """The side that more than half of those who entered are on."""
    return parts[0] if 2 * len(parts[0].ranks) > sum(len(part.ranks) for part in parts) else None


def describe(case: Case, call: dict[str, Any]) -> str:
    """A call with what its peers must agree on: `broadcast float32 [[4]] root 0 (train.py:33)`."""
    size = call["shapes"] or (None if call["numel"] is None else f"{call['numel']} elements")
    root = None if call["root"] is None else f"root {call['root']}"
    words = [call["op"], call["reduce_op"], call["dtype"], size, root]
    return " ".join(str(word) for word in words if word) + case.at_site(call["site"])


def side_evidence(case: Case, parts: list[Side], seq: int) -> tuple[Evidence, ...]:
    """One line per side, with the file of its first rank."""
    found: list[Evidence] = []
    for side in parts[:6]:
        what = f"{ranks_text(side.ranks)} called #{seq} as {describe(case, side.call)}"
        found.append(Evidence(what, case.source(side.ranks[0]), side.ranks[0], side.call["enter_ns"]))
    return tuple(found)


def _finding(case: Case, row: dict[str, Any]) -> Finding:
    group, seq = row["group"], row["seq"]
    parts = sides(case.round_calls(group, seq))
    reference = majority(parts)
    others = [side for side in parts if side is not reference]
    culprits = tuple(sorted(r for side in others for r in side.ranks)) if reference is not None else ()
    detail = _detail(parts)
    went_on = row["completed"] == row["size"]
    doubts: list[str] = []
    if reference is None:
        doubts.append("no side has a majority")
    if went_on:
        doubts.append("the round completed all the same: its results may be wrong")
    blocked = case.blocked.filter(pl.col("group") == group)["rank"].unique().sort().to_list()
    waiting = tuple(rank for rank in blocked if rank not in culprits)
    return Finding(
        structure=Structure.SIGNATURE_MISMATCH,
        detail=detail,
        summary=_summary(case, parts, reference, seq, group),
        culprits=culprits,
        sides=tuple(sorted(r for side in parts for r in side.ranks)) if reference is None else (),
        group=group,
        seq=seq,
        op=str((reference or parts[0]).call["op"]),
        onset_ns=row["first_enter_ns"],
        waiting=waiting,
        victim_ranks=waiting,
        victim_groups=(group,) if waiting else (),
        reason=Reason(Cause.CODE_DIVERGENCE, Confidence.HIGH if reference is not None else Confidence.MEDIUM),
        doubts=tuple(doubts),
        evidence=side_evidence(case, parts, seq),
        next_steps=("compare the two call sites and the data that led there; the rank that aborted first is no hint",),
    )


def _detail(parts: list[Side]) -> Detail:
    for column, detail in _DETAILS:
        if len({side.call[column] for side in parts if side.call[column] is not None}) > 1:
            return detail
    return Detail.OP


def _summary(case: Case, parts: list[Side], reference: Side | None, seq: int, group: int) -> str:
    where = f"in round #{seq} of {case.groups[group].text}"
    if reference is None:
        calls = "; ".join(f"{ranks_text(p.ranks)} called {describe(case, p.call)}" for p in parts[:4])
        return f"Different calls {where}, and no side has a majority: {calls}."
    other = next(side for side in parts if side is not reference)
    culprits = [r for side in parts if side is not reference for r in side.ranks]
    return (
        f"{capital(ranks_text(culprits))} {verb(culprits, 'differs', 'differ')} {where}: "
        f"{ranks_text(other.ranks)} called {describe(case, other.call)} where {ranks_text(reference.ranks)} called "
        f"{describe(case, reference.call)}."
    )
