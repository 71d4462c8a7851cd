"""Do all who wait for somebody wait for ranks whose recording is lost or cut short?

Where a few ranks left nothing, they are the first to look at. Where most of a group, or of the job, left nothing, their
files were rather not collected, and what those ranks did is not known.
"""

from __future__ import annotations

from typing import Final

from roundk.analyze import cause
from roundk.analyze.case import MANY, Case
from roundk.analyze.finding import Evidence, Finding
from roundk.analyze.names import Structure
from roundk.analyze.phrases import capital, ranks_text, verb
from roundk.analyze.structure import blame
from roundk.analyze.structure.last_seen import last_evidence, waiting_evidence
from roundk.analyze.structure.missing import missing
from roundk.analyze.waitfor import StuckRound, WaitFor, stuck_text, wait_for

SHOWN_ENDS: Final = 8
"""Ranks of which the end and a stack are told one by one."""


def unrecorded(case: Case, graph: WaitFor) -> list[Finding]:
    """The first round that hangs and lacks, as far as can be seen, only ranks of which calls are lost."""
    blind = [r for r in graph.rounds if r.unsure and not r.missing and r.inside]
    # Asked last: whoever is known not to have entered has been named before.
    nothing = {rank for r in blind for rank in r.unsure if blame.left_nothing(case, rank)}
    silent = {rank for r in blind if not _is_sparse(case, r, nothing) for rank in r.unsure if rank in nothing}
    is_job = len(nothing) > MANY and 2 * len(nothing) >= case.trace.ranks.height
    if silent and not is_job:
        return missing(case, wait_for(case, silent | blame.ended_unseen(case)))
    if not blind:
        return []
    first = min(blind, key=lambda r: r.order)
    return [_uncollected(case, first, nothing) if nothing else _finding(case, first)]


def _is_sparse(case: Case, stuck: StuckRound, nothing: set[int]) -> bool:
    """Most of a group left nothing."""
    return 2 * len(nothing.intersection(stuck.unsure)) > max(len(case.member_ranks(stuck.group)), 2)


def _uncollected(case: Case, stuck: StuckRound, nothing: set[int]) -> Finding:
    """Of most members nothing is there: who did not come cannot be told from the few that left something."""
    absent = tuple(sorted(nothing.intersection(stuck.unsure)))
    size, ranks = len(case.member_ranks(stuck.group)), case.trace.ranks.height
    share = f"{len(absent)} of its {size} members" + (
        f", and of {len(nothing)} of {ranks} ranks" if ranks > size else ""
    )
    return _untold(
        case,
        stuck,
        f"but nothing is here of {ranks_text(absent)} ({share}): which of them did not enter cannot be told",
        last_evidence(case, absent),
        f"collect the {_files(case)} of {ranks_text(sorted(nothing))} too, and analyze all of them together",
    )


def _finding(case: Case, stuck: StuckRound) -> Finding:
    lost = stuck.unsure
    return _untold(
        case,
        stuck,
        f"and the recording of {ranks_text(lost)} is missing or incomplete: whether {verb(lost, 'it', 'they')} entered "
        "cannot be told",
        _said(case, lost, stuck.onset_ns),
        f"look for the {_files(case)} of {ranks_text(lost)}: full disk, partial copy, lost host",
    )


def _untold(case: Case, stuck: StuckRound, why: str, evidence: list[Evidence], step: str) -> Finding:
    """A round in which ranks wait, and of whose other members too little is there."""
    return Finding(
        structure=Structure.INSUFFICIENT_EVIDENCE,
        summary=f"{capital(ranks_text(stuck.inside))} {verb(stuck.inside, 'waits', 'wait')} in "
        f"{stuck_text(case, stuck)}, {why}.",
        group=stuck.group,
        seq=stuck.seq,
        op=stuck.op,
        onset_ns=stuck.onset_ns,
        waiting=stuck.inside,
        victim_ranks=stuck.inside,
        victim_groups=(stuck.group,),
        reason=cause.UNDETERMINED,
        evidence=(*evidence, *waiting_evidence(case, stuck)),
        next_steps=(step,),
    )


def _files(case: Case) -> str:
    """What would tell more of a rank: what there is of the others."""
    if not case.trace.is_post_mortem:
        return "segments (.arrow files)"
    return "dumps" if case.trace.sources.get("flight_recorder") else "files"


def _said(case: Case, lost: tuple[int, ...], onset_ns: int | None) -> list[Evidence]:
    """What there is of the ranks all the same: the last kept call, the end, a stack."""
    found: list[Evidence] = [*last_evidence(case, lost)]
    for rank in lost[:SHOWN_ENDS]:
        if rank in case.endings:
            found.extend(cause.end_evidence(case, case.endings[rank])[:1])
        dumps = case.dumps.get(rank, ()) if onset_ns is not None else ()
        stalls = [d for d in dumps if d.time_ns is not None and d.time_ns >= (onset_ns or 0)]
        found.extend(cause.stack_evidence(dump, "while the others waited:") for dump in stalls[-1:])
    return found
