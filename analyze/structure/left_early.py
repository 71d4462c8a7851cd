"""Has a rank that left in order skipped a call, or have those who wait for it made one too many?

Where all calls look alike nothing but their number differs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl

from roundk.analyze.calls import SIGNATURE
from roundk.analyze.case import Case
from roundk.analyze.endings import How
from roundk.analyze.finding import Finding, Reason
from roundk.analyze.names import Cause, Confidence, Structure
from roundk.analyze.phrases import capital, ranks_text, verb
from roundk.analyze.structure.sides import describe


def left_early(case: Case, finding: Finding) -> Finding:
    """A rank that left in order although all calls look alike has skipped some, or its peers made some too many.

    Args:
        case: The case.
        finding: A missing rank with detail EXITED_EARLY.

    Returns:
        The finding as SKIPPED_CALL or EXTRA_CALL, or unchanged.
    """
    if finding.structure is not Structure.RANK_NOT_ENTERED or finding.group is None or finding.seq is None:
        return finding
    size = len(case.member_ranks(finding.group))
    if 2 * len(finding.culprits) > size and 2 * len(finding.waiting) < size:
        return _extra_alone(case, finding, finding.group, finding.seq)
    waiting = case.call(finding.group, finding.seq, finding.waiting[0])
    rows = case.calls.filter(pl.col("group") == finding.group, pl.col("rank") == finding.culprits[0], ~pl.col("p2p"))
    if waiting is None or rows.is_empty() or 2 * len(finding.culprits) >= size:
        return finding
    last = rows.row(-1, named=True)
    if any(last[name] != waiting[name] for name in ("site", *SIGNATURE)):
        return finding
    return _skipped_alike(case, finding, last)


def _skipped_alike(case: Case, finding: Finding, last: dict[str, Any]) -> Finding:
    culprits = finding.culprits
    ended = all(case.endings[rank].how is How.CLEAN for rank in culprits)
    left = "left in order" if ended else "went on to destroy the groups"
    first = case.round_text(last["group"], finding.seq or 0, last["op"], last["site"])
    text = (
        f"{capital(ranks_text(culprits))} made fewer calls than {verb(culprits, 'its', 'their')} peers and {left}: "
        f"{first} is the first without {verb(culprits, 'it', 'them')}; {ranks_text(finding.waiting)} waited. "
        "All calls look alike, so the exact seq cannot be seen; leaving the loop early looks the same."
    )
    return replace(
        finding,
        structure=Structure.SKIPPED_CALL,
        detail=None,
        summary=text,
        reason=Reason(Cause.CODE_DIVERGENCE, Confidence.MEDIUM),
        doubts=(*finding.doubts, "all calls look alike: the skipped one may lie earlier"),
    )


def _extra_alone(case: Case, finding: Finding, group: int, seq: int) -> Finding:
    extra = finding.waiting
    call = case.call(group, seq, extra[0])
    called = finding.op if call is None else describe(case, call)
    text = (
        f"{capital(ranks_text(extra))} made a call that nobody answers: #{seq} of {case.groups[group].text} as "
        f"{called}, when {ranks_text(finding.culprits)} had left in order."
    )
    return replace(
        finding,
        structure=Structure.EXTRA_CALL,
        detail=None,
        summary=text,
        culprits=extra,
        waiting=extra,
        reason=Reason(Cause.CODE_DIVERGENCE, Confidence.MEDIUM),
        doubts=(*finding.doubts, "all calls may look alike: the added one may lie earlier"),
        next_steps=("look for a call that only some ranks reach: under `if rank == 0`, in a save or an evaluation",),
    )
