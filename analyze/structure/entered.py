"""Everyone is in and nobody, or not everybody, got out: is anyone inside dead or stopped?"""

from __future__ import annotations

import polars as pl

from roundk.analyze import cause
from roundk.analyze.case import LATE_FLOOR_NS, START_FLOOR_NS, Case
from roundk.analyze.control import INIT
from roundk.analyze.endings import How
from roundk.analyze.finding import Finding
from roundk.analyze.names import Detail, Structure
from roundk.analyze.phrases import capital, ranks_text, verb
from roundk.analyze.structure import blame, localise, seen
from roundk.analyze.structure.last_seen import waiting_evidence
from roundk.analyze.structure.missing import open_doubts, waits
from roundk.analyze.waitfor import StuckRound, WaitFor, stuck_calls, stuck_text


def entered(case: Case, graph: WaitFor) -> list[Finding]:
    """The first round that everyone entered and not everyone left."""
    for stuck in graph.full_rounds:
        if stuck.unsure:
            continue
        finding = _finding(case, graph, stuck)
        if finding is not None:
            return [localise.shared(case, localise.located(case, finding, stuck), graph.full_rounds)]
    return []


def _finding(case: Case, graph: WaitFor, stuck: StuckRound) -> Finding | None:
    calls = stuck_calls(case, stuck)
    culprits, detail = gone_inside(case, stuck)
    open_for = seen_open(case, stuck)
    if not culprits and may_be_chance(case, stuck):
        return None
    completed = calls.filter(pl.col("outcome") == "completed").height
    if stuck.pair is None:
        completed += len(set(stuck.entered) - set(stuck.inside) - set(calls["rank"].to_list()))
    confirmed, against = seen.waiting(case, stuck)
    waiting = tuple(r for r in stuck.inside if r not in culprits)
    reason = cause.reason(case, culprits[0], detail) if culprits and detail is not None else cause.UNDETERMINED
    victims, groups = graph.victims(stuck.inside)
    return Finding(
        structure=structure_of(stuck, completed),
        detail=None,
        summary=_summary(case, stuck, completed, culprits, reason.because),
        culprits=culprits,
        group=stuck.group,
        seq=stuck.seq,
        op=stuck.op,
        onset_ns=stuck.onset_ns,
        waiting=waiting,
        victim_ranks=tuple(sorted({*victims, *waiting})),
        victim_groups=tuple(sorted({stuck.group, *groups})),
        reason=reason,
        doubts=() if culprits else open_doubts(case, open_for),
        evidence=(*reason.evidence, *waiting_evidence(case, stuck), *confirmed),
        contradictions=against,
        next_steps=() if culprits else (_look_at(case, stuck.group),),
    )


def may_be_chance(case: Case, stuck: StuckRound) -> bool:
    """Where a whole job is ended at once, some round is always under way."""
    if case.alive or case.trace.is_post_mortem or (case.gave_up_ns is not None and case.told_to_end is None):
        return False
    open_for = seen_open(case, stuck)
    return bool(open_for) and open_for[0] < (START_FLOOR_NS if stuck.group in case.control_groups else LATE_FLOOR_NS)


def seen_open(case: Case, stuck: StuckRound) -> list[int]:
    """How long everybody was seen inside, as one number; empty: somebody's time is not recorded."""
    spans = waits(case, stuck)
    return [min(spans)] if len(spans) == len(stuck.inside) and spans else []


def structure_of(stuck: StuckRound, completed: int) -> Structure:
    """What to call a round that everybody entered and not everybody left."""
    if stuck.op == INIT:
        return Structure.STUCK_IN_INIT
    return Structure.PARTIAL_COMPLETION if completed else Structure.ALL_ENTERED_NONE_COMPLETED


def gone_inside(case: Case, stuck: StuckRound) -> tuple[tuple[int, ...], Detail | None]:
    """Ranks inside that stopped or ended before anybody gave up, and what became of them."""
    details: dict[int, Detail] = {}
    others = [case.endings[r] for r in stuck.entered if r in case.endings]
    open_here = set(case.blocked.filter(pl.col("outcome") == "open")["rank"].to_list())
    for rank in stuck.inside:
        ending = case.endings.get(rank)
        if ending is None or rank not in open_here:
            continue
        if blame.stopped_first(case, ending):
            details[rank] = Detail.STOPPED
        # An exception inside is what a lost peer looks like from here, so it says nothing about who was first.
        elif (
            ending.how in (How.SIGNAL, How.EXIT_CODE)
            and not ending.from_outside
            and blame.ended_first(case, ending, others)
        ):
            details[rank] = Detail.DEAD
    chosen = min(details.values(), key=lambda d: d is not Detail.STOPPED, default=None)
    return tuple(r for r, detail in sorted(details.items()) if detail is chosen), chosen


def _look_at(case: Case, group: int) -> str:
    """What to do about a round that lacks nobody."""
    if len(members := case.member_ranks(group)) == 1:
        return f"look at the device of rank {members[0]}: nobody else is in this group, so no link is"
    return "look at the links and devices of the members: all of them did come"


def _summary(case: Case, stuck: StuckRound, completed: int, culprits: tuple[int, ...], because: str) -> str:
    where = stuck_text(case, stuck)
    if culprits:
        done = because.removeprefix("it ").replace("its process is", "is")
        return f"{capital(ranks_text(culprits))} entered {where} and {done} inside; {_left(stuck, completed)}."
    return f"All members entered {where}: {_left(stuck, completed)}."


def _left(stuck: StuckRound, completed: int) -> str:
    if not completed:
        return "nobody completed it"
    return f"{ranks_text(stuck.inside)} {verb(stuck.inside, 'has', 'have')} not completed it, {completed} did"
