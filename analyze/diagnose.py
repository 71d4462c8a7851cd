"""The flow of the analysis: a trace in, a report out."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from roundk.analyze import aside, cause, judge
from roundk.analyze.case import Case, build
from roundk.analyze.finding import Finding
from roundk.analyze.names import Cause, Detail, Structure
from roundk.analyze.phrases import NS_PER_S, ranks_text
from roundk.analyze.structure import (
    blame,
    deadlock,
    device,
    diverged,
    entered,
    left_early,
    membership,
    methods,
    missing,
    not_started,
    outside,
    pair_signature,
    quiet,
    raised,
    reported,
    settings,
    signature,
    slow,
    straggler,
    unanswered,
    unpaired,
    unrecorded,
)
from roundk.analyze.trace import Trace
from roundk.analyze.troubles import LINK_CAUSES
from roundk.analyze.verdict import Report, status_of
from roundk.analyze.waitfor import WaitFor, wait_for

_WITHOUT_ABSENT: Final = (
    raised.raised,
    deadlock.deadlocks,
    pair_signature.misfits,
    unanswered.unanswered,
    not_started.not_started,
    entered.entered,
    unrecorded.unrecorded,
)
"""What is asked, in this order, where nobody is missing and no calls differ."""

STALL_NS: Final = 30 * NS_PER_S
"""Age from which an open round of a living job counts as stuck, unless the caller says otherwise."""


def diagnose(trace: Trace, *, now_ns: int, stall_ns: int = STALL_NS) -> Report:
    """Say what is wrong with a job, if anything is.

    Args:
        trace: What the sources found.
        now_ns: The time of the analysis, Unix ns: tells a living job from one that ended without a word.
        stall_ns: Age from which an open round of a living job counts as stuck.
    """
    return report(build(trace, now_ns=now_ns, stall_ns=stall_ns))


def report(case: Case) -> Report:
    """The report on a case that is already built."""
    findings = [cause.explained(case, finding) for finding in _findings(case)]
    findings = settings.beside(case, reported.instead(case, methods.compared(case, findings)))
    findings = aside.listed(case, findings)
    verdicts = tuple(judge.verdict(case, finding) for finding in findings)
    # A watchdog that timed out takes its process down, as an exception at the top of the program does, whether or not
    # anybody noted that.
    raised = verdicts[0].structure is Structure.ERROR_REPORTED and verdicts[0].cause is Cause.EXCEPTION
    ended = case.ended or (case.trace.is_post_mortem and (case.timed_out or raised))
    status = status_of(verdicts[0].structure, verdicts[0].cause, ended=ended)
    return Report(status=status, verdicts=verdicts, coverage=judge.coverage(case), notes=case.trace.notes)


def _findings(case: Case) -> list[Finding]:
    if case.calls.is_empty() and not case.is_hung:
        return (reported.reported(case) if case.trace.is_post_mortem else []) or [quiet.no_calls(case)]
    if case.is_hung and quiet.under_way(case):
        return [quiet.in_progress(case)]
    if not case.is_hung or case.in_order:
        return signature.mismatches(case)[:1] or _unstuck(case)
    return _with_slow(case, _stuck(case) or [quiet.unexplained(case)])


def _unstuck(case: Case) -> list[Finding]:
    if not case.in_order and (still := outside.stuck_outside(case)):
        return still
    base = quiet.healthy(case) if case.in_order else quiet.at_rest(case)
    if base.structure in (Structure.HEALTHY, Structure.IN_PROGRESS):
        return _slow(case, set()) or slow.together(case) or [base]
    return _with_slow(case, [base])


def _slow(case: Case, named: set[int]) -> list[Finding]:
    """Who, or which link, made a run slow, the most costly first; of ranks not those that a verdict names."""
    late = [finding for finding in straggler.habitual(case) if not named.intersection(finding.culprits)]
    late = late or straggler.pauses(case, named, is_stuck=bool(named))
    long = slow.transfers(case)
    if long is None or named.intersection(long.finding.culprits):
        return late
    if long.is_much and not late and not long.finding.culprits:
        late = [finding for finding in straggler.busy(case) if not named.intersection(finding.culprits)]
    found = cause.explained(case, long.finding)
    # What cost little counts where something on the path explains it, and what cost very little where an event does.
    why = Cause.UNDETERMINED if found.reason is None else found.reason.cause
    is_told = why in LINK_CAUSES or (why is not Cause.UNDETERMINED and long.is_some)
    if why is Cause.UNDETERMINED:
        found = replace(found, doubts=(*found.doubts, "nothing that is recorded shows why: busy hosts look the same"))
    return [*late, found] if long.is_much or is_told else late


def _with_slow(case: Case, roots: list[Finding]) -> list[Finding]:
    """The roots, and what made the run slow before; that alone where a job was ended from outside, nothing stuck."""
    named = {rank for finding in roots for rank in (*finding.culprits, *finding.sides)}
    found = _slow(case, named)
    if found and quiet.only_ended(case, roots):
        return [quiet.with_end(case, finding) for finding in found]
    return roots + found


def _stuck(case: Case) -> list[Finding]:
    """The roots of a run in which somebody hangs or failed, the first of them first."""
    graph = wait_for(case, blame.ended_unseen(case), blame.ended_by_itself(case))
    if roots := membership.conflicts(case, graph):
        return roots
    differing = _differing(case, graph)
    # Who hangs in a round of different calls hangs because of them, whatever its device tells.
    if all(_went_on(graph, d) for d in differing) and (roots := device.stuck(case, graph)):
        return roots
    absent = [
        left_early.left_early(case, f) if f.detail is Detail.EXITED_EARLY else unpaired.instead(case, graph, f)
        for f in missing.missing(case, graph)
    ]
    others = [f for f in absent if not any(_explains(graph, d, f) for d in differing)]
    independent = [d for d in differing if not _went_on(graph, d) or len(others) < len(absent) or not absent]
    roots = independent + others + [d for d in differing if d not in independent]
    for question in _WITHOUT_ABSENT:
        roots = roots or question(case, graph)
    return [_among_others(finding, roots) for finding in roots]


def _among_others(finding: Finding, roots: list[Finding]) -> Finding:
    """A root that is not the only one is a level less sure: one of them may be what the other led to."""
    others = sorted({rank for other in roots if other is not finding for rank in (*other.culprits, *other.sides)})
    if len(roots) == 1 or not others:
        return finding
    doubt = f"it is not the only root: another verdict here names {ranks_text(others)}"
    return replace(finding, doubts=(*finding.doubts, doubt))


def _differing(case: Case, graph: WaitFor) -> list[Finding]:
    """The first difference of each group: a shifted sequence where there is one, else the calls of one round."""
    shifted = diverged.diverged(case, graph)
    groups = {finding.group for finding in shifted}
    plain = [f for f in signature.mismatches(case) if f.group not in groups]
    found = shifted + plain
    if not case.trace.members_told:
        doubt = "who the members of the group are is not told: more of them may have called as the minority did"
        found = [replace(finding, doubts=(*finding.doubts, doubt)) for finding in found]
    return sorted(found, key=lambda f: (f.onset_ns is None, f.onset_ns or 0))[:4]


def _explains(graph: WaitFor, difference: Finding, absence: Finding) -> bool:
    """A rank that made other calls is also the one that is missing later, or that waits alone."""
    apart = set(difference.culprits or difference.sides)
    if apart & set(absence.culprits):
        return True
    # Who made a call more than its peers waits alone in the next one that they come to.
    if difference.group == absence.group and absence.waiting and apart.issuperset(absence.waiting):
        return True
    return difference.group == absence.group and not _went_on(graph, difference)


def _went_on(graph: WaitFor, difference: Finding) -> bool:
    """Nobody hangs in the round that differs."""
    return not any(r.group == difference.group and r.seq == difference.seq and r.pair is None for r in graph.rounds)
