"""No call is open anywhere, and nothing moves: what does everybody do outside of torch.distributed?"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

import polars as pl

from roundk.analyze.case import Case
from roundk.analyze.cause import UNDETERMINED, stack_evidence
from roundk.analyze.endings import How
from roundk.analyze.finding import Evidence, Finding, Reason
from roundk.analyze.names import Cause, Confidence, Structure
from roundk.analyze.phrases import duration, ranks_text, verb
from roundk.analyze.stacks import Dump
from roundk.analyze.structure.last_seen import last_call

GAPS: Final = 3
"""Stillness counts from so many times the longest that the job showed before: evaluations and saves take their time."""


def stuck_outside(case: Case) -> list[Finding]:
    """The stillness of a job that lives and makes no call and no step, unless it is a short one or a usual one."""
    moved = _moves(case)
    living = [e.rank for e in case.endings.values() if e.how is How.UNKNOWN or e.from_outside]
    if case.trace.is_post_mortem or case.is_hung or not living or moved.is_empty():
        return []
    last = int(moved[-1])
    still_ns = case.last_alive_ns - last
    usual = moved.diff().max()
    if still_ns < max(case.stall_ns, GAPS * (usual if isinstance(usual, int) else 0)):
        return []
    places = _places(case, living, last)
    return [_finding(case, living, last, still_ns, places)]


def _moves(case: Case) -> pl.Series:
    """Times at which anything of the job moved, in order."""
    calls = case.calls
    return (
        pl.concat([calls["enter_ns"], calls["end_ns"], case.trace.steps["end_ns"]]).drop_nulls().cast(pl.Int64).sort()
    )


def _places(case: Case, ranks: list[int], since_ns: int) -> dict[str, list[Dump]]:
    """The newest stack of each rank from the stillness, by where it is."""
    found: dict[str, list[Dump]] = defaultdict(list)
    for rank in ranks:
        dumps = [d for d in case.dumps.get(rank, ()) if d.not_before_ns >= since_ns]
        if dumps:
            found[dumps[-1].place].append(dumps[-1])
    return found


def _finding(case: Case, living: list[int], last: int, still_ns: int, places: dict[str, list[Dump]]) -> Finding:
    at = [f"{ranks_text([d.rank for d in dumps])} in {place}" for place, dumps in places.items()]
    where = f": {'; '.join(at[:4])}" if at else ""
    shown = [stack_evidence(dumps[0], "while nothing moved:") for dumps in list(places.values())[:4]]
    reason = Reason(Cause.HOST_STALL, Confidence.MEDIUM, "", tuple(shown)) if shown else UNDETERMINED
    evidence: tuple[Evidence, ...] = (*shown, *(last_call(case, rank) for rank in living[:3]))
    return Finding(
        structure=Structure.STUCK_OUTSIDE,
        summary=f"No call is open and nothing has moved for {duration(still_ns)}: {ranks_text(living)} "
        f"{verb(living, 'is', 'are')} alive outside of torch.distributed{where}.",
        onset_ns=last,
        sides=tuple(living),
        reason=reason,
        doubts=() if shown else ("no stack tells what the ranks do",),
        evidence=evidence,
        next_steps=("py-spy dump --pid on one process of each kind; look at storage, data loading and locks",),
    )
