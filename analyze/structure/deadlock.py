"""Do ranks wait for each other in a circle?"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from roundk.analyze.case import Case
from roundk.analyze.finding import Evidence, Finding, Reason
from roundk.analyze.names import Cause, Confidence, Structure
from roundk.analyze.phrases import ranks_text, verb
from roundk.analyze.structure.broken_order import find_skip, with_skip
from roundk.analyze.structure.unpaired import of_circle
from roundk.analyze.waitfor import StuckRound, WaitFor, stuck_text


@dataclass(frozen=True)
class _Link:
    """One link of a circle: who holds up the next round by being in this one."""

    ranks: tuple[int, ...]
    text: str
    round: StuckRound
    is_certain: bool = True
    """False where it is supposed that a device takes calls in the order of entering, and no start is recorded."""


def deadlocks(case: Case, graph: WaitFor) -> list[Finding]:
    """One finding per circle; no rank is to blame for it, unless the steps before tell that one left a call out."""
    found: list[Finding] = []
    for ranks, rounds in graph.cycles:
        circle = graph.circle(rounds)
        unpaired = of_circle(case, graph, circle)
        if unpaired is not None:
            found.append(unpaired)
            continue
        finding = _finding(case, graph, ranks, circle)
        skip = find_skip(case, ranks, rounds)
        found.append(finding if skip is None else with_skip(case, finding, skip))
    return found


def _finding(case: Case, graph: WaitFor, ranks: tuple[int, ...], circle: tuple[StuckRound, ...]) -> Finding:
    links = _links(case, graph, circle)
    first = min(circle, key=lambda r: r.order)
    waiting = tuple(sorted({*ranks, *(rank for link in links for rank in link.ranks)}))
    victims, groups = graph.victims(waiting)
    return Finding(
        structure=Structure.ORDER_DEADLOCK,
        summary=f"{ranks_text(waiting).capitalize()} wait for each other in a circle: "
        f"{'; '.join(link.text for link in links[:4])}.",
        sides=waiting,
        group=first.group,
        seq=first.seq,
        op=first.op,
        onset_ns=first.onset_ns,
        waiting=waiting,
        victim_ranks=tuple(sorted({*waiting, *victims, *(rank for r in circle for rank in r.inside)})),
        victim_groups=tuple(sorted({*groups, *(r.group for r in circle)})),
        reason=Reason(Cause.CODE_DIVERGENCE, Confidence.MEDIUM),
        doubts=_doubts(case, first, circle, links),
        evidence=(
            *(Evidence(x.text, case.source(x.ranks[0]), x.ranks[0], x.round.onset_ns) for x in links if x.ranks),
            *_minority(case, waiting, links),
        ),
        next_steps=("give all ranks the same order of groups; look at the call sites above for which comes first",),
    )


def _links(case: Case, graph: WaitFor, circle: tuple[StuckRound, ...]) -> list[_Link]:
    number = {r.key: n for n, r in enumerate(graph.rounds)}
    at = {number[r.key]: r for r in circle}
    held: dict[tuple[int, int], list[int]] = defaultdict(list)
    supposed: set[tuple[int, int]] = set()
    for one in graph.behind:
        if one.round in at and one.front in at:
            held[one.round, one.front].append(one.rank)
            if not one.is_timed:
                supposed.add((one.round, one.front))
    links: list[_Link] = []
    for stuck, after in zip(circle, (*circle[1:], circle[0]), strict=True):
        key = number[stuck.key], number[after.key]
        if key in held:
            ranks = tuple(sorted(set(held[key])))
            text = f"{ranks_text(ranks)} {verb(ranks, 'has', 'have')} {stuck_text(case, stuck)} behind "
            links.append(_Link(ranks, text + stuck_text(case, after), stuck, key not in supposed))
        else:
            text = f"{ranks_text(stuck.inside)} in {stuck_text(case, stuck)} for {ranks_text(stuck.missing)}"
            links.append(_Link(stuck.inside, text, stuck))
    return links


def _doubts(case: Case, first: StuckRound, circle: tuple[StuckRound, ...], links: list[_Link]) -> tuple[str, ...]:
    doubts: list[str] = []
    if not all(link.is_certain for link in links):
        doubts.append("no starts are recorded: that calls wait for the rank's call before is told by their order alone")
    may_come = any(stuck.missing for stuck in circle)
    if may_come and case.gave_up_ns is None and not case.ended:
        if first.onset_ns is None:
            doubts.append("no times are recorded: how long the circle has been there is not told")
        elif case.last_alive_ns - first.onset_ns < case.stall_ns:
            doubts.append("the circle was seen for a short time only")
    return tuple(doubts)


def _minority(case: Case, ranks: tuple[int, ...], links: list[_Link]) -> tuple[Evidence, ...]:
    """The ranks whose order fewer than half share: no proof of guilt, but where to look first."""
    fewest = min((sorted(set(link.ranks).intersection(ranks)) for link in links), key=len)
    if not fewest or 2 * len(fewest) >= len(ranks):
        return ()
    what = f"{ranks_text(fewest)} {verb(fewest, 'is', 'are')} in the minority with this order"
    return (Evidence(what, case.source(fewest[0]), fewest[0]),)
