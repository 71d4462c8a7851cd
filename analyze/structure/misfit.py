"""Do calls that are alike where they must be fail to fit each other? Impossible sizes, totals that do not match.

Unequal sizes alone convict nobody: only what one member sends and another does not expect does, and where that is told
for one pair alone, either of the two may be wrong.
"""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from roundk.analyze.case import Case
from roundk.analyze.finding import Evidence, Finding, Reason
from roundk.analyze.names import Cause, Confidence, Detail, Structure
from roundk.analyze.phrases import ranks_text
from roundk.analyze.sizes import TOTALS, Edge, edges, unfit
from roundk.analyze.structure.sides import describe, side_evidence, sides

_MOST_SHOWN: Final = 4
_UNTOLD: Final = ("", "gloo")
"""Backends whose dumps may not tell who is in a group."""


def rounds(case: Case) -> pl.DataFrame:
    """The rounds to ask `finding` about: rows of `Case.comparable_rounds`, and whether their sizes in all are `off`."""
    told = [g.key for g in case.groups.values() if not (case.trace.is_post_mortem and g.backend in _UNTOLD)]
    calls = case.calls.filter(pl.col("group").is_in(told)) if len(told) < len(case.groups) else case.calls
    groups = case.trace.groups.filter(pl.col("group").is_in(told))
    members = groups.select("group", rank="ranks").explode("rank").drop_nulls("rank")
    # What is sent and what is expected may differ by pair and still add up: too much to ask of all rounds.
    hang = case.blocked.filter(~pl.col("p2p"), pl.col("op").is_in(list(TOTALS)), pl.col("group").is_in(told))
    off = unfit(calls, members).with_columns(off=pl.lit(value=True))
    by_pair = hang.select("group", "seq", off=pl.lit(value=False)).unique()
    keys = pl.concat([off, by_pair]).unique(["group", "seq"], keep="first", maintain_order=True)
    return case.comparable_rounds.join(keys, on=["group", "seq"])


def finding(case: Case, row: dict[str, Any]) -> Finding | None:
    """What does not fit in a round of `rounds`; None where all that is recorded does."""
    calls = case.round_calls(row["group"], row["seq"]).sort("rank")
    op = str(calls["op"][0])
    if op not in TOTALS:
        return _impossible(case, row, calls) if row["off"] else None
    apart = edges(calls.to_dicts(), case.member_ranks(row["group"]))
    if apart:
        return _between(case, row, calls, apart)
    return _in_total(case, row, calls) if apart is None and row["off"] else None


def _impossible(case: Case, row: dict[str, Any], calls: pl.DataFrame) -> Finding:
    side = sides(calls)[0]
    text = (
        f"{_where(case, row, calls)} {ranks_text(side.ranks)} called {describe(case, side.call)}: the sizes of input "
        "and output do not fit each other, whatever the others call."
    )
    return _mismatch(case, row, calls, text)


def _in_total(case: Case, row: dict[str, Any], calls: pl.DataFrame) -> Finding:
    given, got = calls["bytes_in"].sum(), calls["bytes_out"].sum()
    text = (
        f"{_where(case, row, calls)} the members do not receive what is sent: they pass {given} bytes and take {got}, "
        "in all."
    )
    doubt = "only the sizes in all are recorded, not what goes from whom to whom: no member can be picked"
    return _mismatch(case, row, calls, text, doubts=(doubt,))


def _between(case: Case, row: dict[str, Any], calls: pl.DataFrame, apart: list[Edge]) -> Finding:
    """Who is on every pair that does not fit is the one to ask, if there are several such pairs."""
    common = set.intersection(*({edge.source, edge.target} for edge in apart))
    itself = any(edge.source == edge.target for edge in apart)
    culprits = tuple(sorted(common)) if len(common) == 1 and (len(apart) > 1 or itself) else ()
    involved = tuple(sorted({rank for edge in apart for rank in (edge.source, edge.target)}))
    first = apart[0]
    text = (
        f"{_where(case, row, calls)} rank {first.source} sends {first.sent} elements to rank {first.target}, which "
        f"expects {first.expected}"
    )
    if len(apart) > 1:
        text += f"; {len(apart)} pairs do not fit"
        text += f", all of them with {ranks_text(culprits)}" if culprits else f", between {ranks_text(involved)}"
    shown = [
        Evidence(
            f"rank {e.source} sends {e.sent} elements to rank {e.target}, which expects {e.expected}",
            case.source(e.source),
            e.source,
        )
        for e in apart[:_MOST_SHOWN]
    ]
    doubt = (
        "which side of each pair is right is not told, only who is on all of them"
        if culprits
        else "either side of a pair may be the wrong one"
    )
    return _mismatch(case, row, calls, text + ".", culprits, involved, (doubt,), tuple(shown))


def _where(case: Case, row: dict[str, Any], calls: pl.DataFrame) -> str:
    return f"In {case.round_text(row['group'], row['seq'], str(calls['op'][0]), None)}"


def _mismatch(
    case: Case,
    row: dict[str, Any],
    calls: pl.DataFrame,
    summary: str,
    culprits: tuple[int, ...] = (),
    involved: tuple[int, ...] = (),
    doubts: tuple[str, ...] = (),
    evidence: tuple[Evidence, ...] = (),
) -> Finding:
    blocked = case.blocked.filter(pl.col("group") == row["group"])["rank"].unique().sort().to_list()
    waiting = tuple(rank for rank in blocked if rank not in culprits)
    went_on = ("the round completed all the same: its results may be wrong",) if row["completed"] == row["size"] else ()
    return Finding(
        structure=Structure.SIGNATURE_MISMATCH,
        detail=Detail.SIZE,
        summary=summary,
        culprits=culprits,
        sides=() if culprits else (involved or tuple(calls["rank"])),
        group=row["group"],
        seq=row["seq"],
        op=str(calls["op"][0]),
        onset_ns=row["first_enter_ns"],
        waiting=waiting,
        victim_ranks=waiting,
        victim_groups=(row["group"],) if waiting else (),
        reason=Reason(Cause.CODE_DIVERGENCE, Confidence.MEDIUM),
        doubts=(*doubts, *went_on),
        evidence=(*evidence, *side_evidence(case, sides(calls), row["seq"])),
        next_steps=("compare the sizes that the members pass: splits, lists of tensors, uneven last batches",),
    )
