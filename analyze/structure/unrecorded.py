"""Do all who wait for somebody wait for ranks whose recording is lost or cut short?"""

from __future__ import annotations

from roundk.analyze import cause
from roundk.analyze.case import Case
from roundk.analyze.finding import Evidence, Finding
from roundk.analyze.names import Structure
from roundk.analyze.phrases import capital, ranks_text, verb
from roundk.analyze.structure import blame
from roundk.analyze.structure.missing import last_call, missing, waiting_evidence
from roundk.analyze.waitfor import StuckRound, WaitFor, stuck_text, wait_for


def unrecorded(case: Case, graph: WaitFor) -> list[Finding]:
    """The first round that hangs and lacks, as far as can be seen, only ranks of which calls are lost."""
    blind = [r for r in graph.rounds if r.unsure and not r.missing and r.inside]
    # Asked last: whoever is known not to have entered has been named before.
    silent = {rank for r in blind for rank in r.unsure if blame.left_nothing(case, rank)}
    if silent:
        return missing(case, wait_for(case, silent | blame.ended_unseen(case)))
    return [_finding(case, min(blind, key=lambda r: r.order))] if blind else []


def _finding(case: Case, stuck: StuckRound) -> Finding:
    lost = stuck.unsure
    return Finding(
        structure=Structure.INSUFFICIENT_EVIDENCE,
        summary=f"{capital(ranks_text(stuck.inside))} {verb(stuck.inside, 'waits', 'wait')} in "
        f"{stuck_text(case, stuck)}, and the recording of {ranks_text(lost)} is missing or incomplete: whether "
        f"{verb(lost, 'it', 'they')} entered cannot be told.",
        group=stuck.group,
        seq=stuck.seq,
        op=stuck.op,
        onset_ns=stuck.onset_ns,
        waiting=stuck.inside,
        victim_ranks=stuck.inside,
        victim_groups=(stuck.group,),
        reason=cause.UNDETERMINED,
        evidence=(*_said(case, lost, stuck.onset_ns), *waiting_evidence(case, stuck)),
        next_steps=(f"look for the {_files(case)} of {ranks_text(lost)}: full disk, partial copy, lost host",),
    )


def _files(case: Case) -> str:
    """What would tell more of a rank: what there is of the others."""
    if not case.trace.is_post_mortem:
        return "segments (.arrow files)"
    return "dumps" if case.trace.sources.get("flight_recorder") else "files"


def _said(case: Case, lost: tuple[int, ...], onset_ns: int | None) -> list[Evidence]:
    """What there is of the ranks all the same: the last kept call, the end, a stack."""
    found: list[Evidence] = []
    for rank in lost[:4]:
        found.append(last_call(case, rank))
        if rank in case.endings:
            found.extend(cause.end_evidence(case, case.endings[rank])[:1])
        dumps = case.dumps.get(rank, ()) if onset_ns is not None else ()
        stalls = [d for d in dumps if d.time_ns is not None and d.time_ns >= (onset_ns or 0)]
        found.extend(cause.stack_evidence(dump, "while the others waited:") for dump in stalls[-1:])
    return found
