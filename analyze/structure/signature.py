"""Do the members of one round make the same call, and calls that fit each other?"""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from roundk.analyze.case import Case
from roundk.analyze.finding import Finding, Reason
from roundk.analyze.names import Cause, Confidence, Detail, Structure
from roundk.analyze.phrases import capital, ranks_text, verb
from roundk.analyze.structure import misfit
from roundk.analyze.structure.sides import Side, describe, majority, side_evidence, sides, unseen

_DETAILS: Final = (
    ("op_code", Detail.OP),
    ("size_key", Detail.SIZE),
    ("dtype_code", Detail.DTYPE),
    ("root", Detail.ROOT),
    ("reduce_code", Detail.REDUCE_OP),
)
"""What to name first where several differ."""


def mismatches(case: Case) -> list[Finding]:
    """The lowest round of each group in which members disagree on the call, by onset."""
    differing = case.comparable_rounds.filter("differs").with_columns(off=pl.lit(None, pl.Boolean))
    ill_fitting = misfit.rounds(case).join(differing, on=["group", "seq"], how="anti")
    found: dict[int, Finding] = {}
    for row in pl.concat([differing, ill_fitting]).sort("group", "seq").iter_rows(named=True):
        if row["group"] not in found:
            finding = _finding(case, row) if row["off"] is None else misfit.finding(case, row)
            found |= {} if finding is None else {row["group"]: finding}
    return sorted(found.values(), key=lambda f: (f.onset_ns is None, f.onset_ns or 0))


def _finding(case: Case, row: dict[str, Any]) -> Finding:
    group, seq = row["group"], row["seq"]
    parts = sides(case.round_calls(group, seq))
    blind = unseen(case, group, [rank for side in parts for rank in side.ranks])
    reference = majority(parts, blind)
    others = [side for side in parts if side is not reference]
    culprits = tuple(sorted(r for side in others for r in side.ranks)) if reference is not None else ()
    detail = _detail(parts)
    went_on = row["completed"] == row["size"]
    doubts: list[str] = []
    if reference is None:
        doubts.append(_undecided(parts, blind))
    elif 2 * len(reference.ranks) <= row["size"]:
        doubts.append("it is the majority of those whose call is recorded, not of all members")
    if went_on:
        doubts.append("the round completed all the same: its results may be wrong")
    blocked = case.blocked.filter(pl.col("group") == group)["rank"].unique().sort().to_list()
    waiting = tuple(rank for rank in blocked if rank not in culprits)
    return Finding(
        structure=Structure.SIGNATURE_MISMATCH,
        detail=detail,
        summary=_summary(case, parts, reference, seq, group, blind),
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
            if detail is Detail.SIZE and len({side.call["shapes"] for side in parts}) == 1 and parts[0].call["shapes"]:
                return Detail.DTYPE  # equal shapes of unequal bytes
            return detail
    return Detail.OP


def _undecided(parts: list[Side], blind: int) -> str:
    if majority(parts) is not None:
        return f"no side has a majority of all members, as the calls of {blind} are not known"
    if parts[0].possible:
        return "no side has a majority"
    return "the call that most of them made cannot be right: its input and output do not fit each other"


def _summary(case: Case, parts: list[Side], reference: Side | None, seq: int, group: int, blind: int) -> str:
    where = f"in round #{seq} of {case.groups[group].text}"
    if reference is None:
        calls = "; ".join(f"{ranks_text(p.ranks)} called {describe(case, p.call)}" for p in parts[:4])
        return f"Different calls {where}, and {_undecided(parts, blind)}: {calls}."
    other = next(side for side in parts if side is not reference)
    culprits = [r for side in parts if side is not reference for r in side.ranks]
    return (
        f"{capital(ranks_text(culprits))} {verb(culprits, 'differs', 'differ')} {where}: "
        f"{ranks_text(other.ranks)} called {describe(case, other.call)} where {ranks_text(reference.ranks)} called "
        f"{describe(case, reference.call)}."
    )
