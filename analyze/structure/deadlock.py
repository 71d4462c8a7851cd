"""Do ranks wait for each other in a circle?"""

from __future__ import annotations

from roundk.analyze.case import Case
from roundk.analyze.finding import Evidence, Finding, Reason
from roundk.analyze.names import Cause, Confidence, Structure
from roundk.analyze.phrases import ranks_text, verb
from roundk.analyze.structure.broken_order import find_skip, with_skip
from roundk.analyze.waitfor import StuckRound, WaitFor, stuck_text


def deadlocks(case: Case, graph: WaitFor) -> list[Finding]:
    """One finding per cycle; no rank is to blame for a circle."""
    found: list[Finding] = []
    for ranks, rounds in graph.cycles:
        finding = _finding(case, graph, ranks, rounds)
        skip = find_skip(case, ranks, rounds)
        found.append(finding if skip is None else with_skip(case, finding, skip))
    return found


def _finding(case: Case, graph: WaitFor, ranks: tuple[int, ...], rounds: tuple[StuckRound, ...]) -> Finding:
    first = min(rounds, key=lambda r: r.order)
    victims, groups = graph.victims(ranks)
    parts = [_part(case, stuck) for stuck in rounds]
    return Finding(
        structure=Structure.ORDER_DEADLOCK,
        summary=f"{ranks_text(ranks).capitalize()} wait for each other in a circle: {'; '.join(parts[:4])}.",
        sides=ranks,
        group=first.group,
        seq=first.seq,
        op=first.op,
        onset_ns=first.onset_ns,
        waiting=ranks,
        victim_ranks=tuple(sorted({*ranks, *victims})),
        victim_groups=tuple(sorted({*groups, *(r.group for r in rounds)})),
        reason=Reason(Cause.CODE_DIVERGENCE, Confidence.MEDIUM),
        doubts=_doubts(case, first),
        evidence=(
            *(_evidence(case, stuck, part) for stuck, part in zip(rounds, parts, strict=True)),
            *_minority(case, ranks, rounds),
        ),
        next_steps=("give all ranks the same order of groups; look at the call sites above for which comes first",),
    )


def _doubts(case: Case, first: StuckRound) -> tuple[str, ...]:
    if case.gave_up_ns is not None or case.ended:
        return ()
    if first.onset_ns is None:
        return ("no times are recorded: how long the circle has been there is not told",)
    young = case.last_alive_ns - first.onset_ns < case.stall_ns
    return ("the circle was seen for a short time only",) if young else ()


def _part(case: Case, stuck: StuckRound) -> str:
    return f"{ranks_text(stuck.inside)} in {stuck_text(case, stuck)} for {ranks_text(stuck.missing)}"


def _minority(case: Case, ranks: tuple[int, ...], rounds: tuple[StuckRound, ...]) -> tuple[Evidence, ...]:
    """The ranks whose order fewer than half share: no proof of guilt, but where to look first."""
    fewest = min((sorted(set(r.inside).intersection(ranks)) for r in rounds), key=len)
    if 2 * len(fewest) >= len(ranks):
        return ()
    what = f"{ranks_text(fewest)} {verb(fewest, 'is', 'are')} in the minority with this order"
    return (Evidence(what, case.source(fewest[0]), fewest[0]),)


def _evidence(case: Case, stuck: StuckRound, part: str) -> Evidence:
    return Evidence(part, case.source(stuck.inside[0]), stuck.inside[0], stuck.onset_ns)
