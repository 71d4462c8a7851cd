"""Did a rank's own call fail at once, in its own process, while its peers went on to wait for it?

Such a call raised before the backend had it: a wrong shape, a wrong device. What its peers see later are echoes.
"""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from roundk.analyze import cause
from roundk.analyze.case import Case
from roundk.analyze.endings import Ending, How
from roundk.analyze.finding import Finding, Reason
from roundk.analyze.names import Cause, Confidence, Detail, Structure
from roundk.analyze.phrases import NS_PER_S, capital, ranks_text, verb
from roundk.analyze.structure import blame
from roundk.analyze.structure.entered import gone_inside, structure_of
from roundk.analyze.structure.last_seen import waiting_evidence
from roundk.analyze.waitfor import StuckRound, WaitFor, stuck_calls, stuck_text

AT_ONCE_NS: Final = NS_PER_S
"""A call that raises later than this has waited for somebody."""


def raised(case: Case, graph: WaitFor) -> list[Finding]:
    """The first round in which a call failed by itself, before any call that had been handed to the backend failed."""
    candidates = _at_once(case)
    if candidates.is_empty():
        return []
    for stuck in sorted(graph.rounds, key=lambda r: r.order):
        culprits = _failed_alone(case, stuck, candidates)
        if culprits and not gone_inside(case, stuck)[0]:
            return [_finding(case, graph, stuck, culprits)]
    return []


def _at_once(case: Case) -> pl.DataFrame:
    """Calls that raised at once and before any call that the backend had failed, in that order."""
    # A source may not tell at all when the backend had a call; control calls never tell it of one that raised.
    told = case.calls["issued_ns"].null_count() < case.calls.height
    told_here = pl.lit(told) | pl.col("group").is_in(sorted(case.control_groups))
    echoes = case.blocked.filter(pl.col("outcome") == "failed", pl.col("issued_ns").is_not_null())["end_ns"].min()
    return case.calls.filter(
        pl.col("outcome") == "failed",
        pl.col("issued_ns").is_null() & told_here,
        pl.col("end_ns") - pl.col("enter_ns") <= AT_ONCE_NS,
        pl.col("end_ns") <= (echoes if isinstance(echoes, int) else pl.col("end_ns")),
    ).sort("end_ns", "rank")


def _failed_alone(case: Case, stuck: StuckRound, candidates: pl.DataFrame) -> tuple[int, ...]:
    """Which of those that entered raised at once."""
    own = candidates.filter(
        pl.col("group") == stuck.group,
        pl.col("seq") == stuck.seq,
        pl.col("p2p") == (stuck.pair is not None),
        pl.col("rank").is_in(list(stuck.entered)),
    )["rank"].to_list()
    if stuck.group in case.control_groups:
        # These do not tell an error of their own from that of a peer, so only those that failed like the first count.
        own = [rank for rank in own if _message(case, rank) == _message(case, own[0])]
    return tuple(sorted(own))


def _message(case: Case, rank: int) -> tuple[str | None, str | None]:
    ending = case.endings.get(rank)
    return (None, None) if ending is None else (ending.exception_type, ending.exception_message)


def _finding(case: Case, graph: WaitFor, stuck: StuckRound, culprits: tuple[int, ...]) -> Finding:
    waiting = tuple(rank for rank in stuck.inside if rank not in culprits)
    calls = stuck_calls(case, stuck)
    reason = _reason(case, calls.filter(pl.col("rank").is_in(culprits)))
    victims, groups = graph.victims(culprits)
    held_up = f"{ranks_text(waiting)} {verb(waiting, 'waits', 'wait')} in it" if waiting else "nobody waits in it"
    full = structure_of(stuck, calls.filter(pl.col("outcome") == "completed").height)
    return Finding(
        structure=Structure.ERROR_REPORTED if stuck.missing else full,
        detail=Detail.RAISED,
        summary=f"{capital(ranks_text(culprits))} entered {stuck_text(case, stuck)} and failed at once: "
        f"{reason.because}; {held_up}.",
        culprits=culprits,
        group=stuck.group,
        seq=stuck.seq,
        op=stuck.op,
        onset_ns=stuck.onset_ns,
        waiting=waiting,
        victim_ranks=tuple(sorted({*victims, *waiting} - set(culprits))),
        victim_groups=tuple(sorted({*groups, stuck.group})),
        reason=reason,
        evidence=(*reason.evidence, *waiting_evidence(case, stuck)),
        next_steps=(f"look at what rank {culprits[0]} passes to the call: its error is the first, others are echoes",),
    )


def _is_of_call(case: Case, ending: Ending, call: dict[str, Any]) -> bool:
    """The exception that ended the rank is the one that its call raised, and not a later one after that was caught."""
    if ending.how is not How.EXCEPTION or ending.at_ns is None or call["end_ns"] is None:
        return False
    went_on = case.calls.filter(pl.col("rank") == call["rank"], pl.col("enter_ns") > call["end_ns"])
    return went_on.is_empty() and abs(ending.at_ns - call["end_ns"]) <= blame.TEARDOWN_NS


def _reason(case: Case, own: pl.DataFrame) -> Reason:
    first = own.sort("end_ns", "rank").row(0, named=True)
    ending = case.endings.get(first["rank"])
    if ending is None or not _is_of_call(case, ending, first):
        return Reason(Cause.EXCEPTION, Confidence.MEDIUM, f"the call raised on rank {first['rank']}")
    return cause.ended(case, ending)
