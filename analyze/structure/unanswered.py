"""Does a rank wait for a message from any source that nobody sends?"""

from __future__ import annotations

from typing import Final

from roundk.analyze import cause
from roundk.analyze.case import Case
from roundk.analyze.finding import Evidence, Finding, Reason
from roundk.analyze.names import Cause, Confidence, Detail, Structure
from roundk.analyze.phrases import capital, ranks_text, verb
from roundk.analyze.structure import blame
from roundk.analyze.structure.last_seen import last_call, waiting_evidence
from roundk.analyze.waitfor import StuckRound, WaitFor, stuck_text

_GONE: Final = (Detail.DEAD, Detail.STOPPED)


def unanswered(case: Case, graph: WaitFor) -> list[Finding]:
    """The first receive from any source whose possible senders wait for nobody and send nothing."""
    return [_finding(case, graph, stuck) for stuck in graph.unanswered[:1]]


def _finding(case: Case, graph: WaitFor, stuck: StuckRound) -> Finding:
    details = {rank: blame.detail_of(case, rank, stuck.inside) for rank in stuck.missing}
    gone = tuple(rank for rank, detail in details.items() if detail in _GONE)
    reason = _reason(case, details, gone)
    victims, groups = graph.victims(stuck.missing)
    return Finding(
        structure=Structure.P2P_UNPAIRED,
        summary=f"{capital(ranks_text(stuck.inside))} waits in {stuck_text(case, stuck)}, and nobody sends: "
        f"{_states(case, details)}.",
        culprits=gone,
        sides=stuck.missing,
        group=stuck.group,
        seq=stuck.seq,
        op=stuck.op,
        onset_ns=stuck.onset_ns,
        waiting=stuck.inside,
        victim_ranks=victims,
        victim_groups=groups,
        reason=reason,
        doubts=("any member may send what it waits for: who should have is not recorded",),
        evidence=(*reason.evidence, *_last_calls(case, stuck), *waiting_evidence(case, stuck)),
        next_steps=("count the messages that the receiver asks for and those that its peers send",),
    )


def _reason(case: Case, details: dict[int, Detail], gone: tuple[int, ...]) -> Reason:
    if gone:
        return cause.reason(case, gone[0], details[gone[0]])
    if all(detail is Detail.EXITED_EARLY for detail in details.values()):
        return Reason(Cause.CODE_DIVERGENCE, Confidence.MEDIUM)
    return cause.UNDETERMINED


def _states(case: Case, details: dict[int, Detail]) -> str:
    alike: dict[Detail, list[int]] = {}
    for rank, detail in details.items():
        alike.setdefault(detail, []).append(rank)
    return ", ".join(f"{ranks_text(ranks)} {_state(case, detail, ranks)}" for detail, ranks in alike.items())


def _state(case: Case, detail: Detail, ranks: list[int]) -> str:
    if detail is Detail.DEAD:
        return case.endings[ranks[0]].text
    return {
        Detail.IDLE: verb(ranks, "is in no call", "are in no call"),
        Detail.STOPPED: verb(ranks, "is stopped", "are stopped"),
        Detail.EXITED_EARLY: "had left in order",
    }.get(detail, "gave no sign of life")


def _last_calls(case: Case, stuck: StuckRound) -> list[Evidence]:
    return [last_call(case, rank) for rank in stuck.missing[:4]]
