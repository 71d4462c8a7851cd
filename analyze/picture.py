"""Who waits for whom, of one verdict: the rounds it is about, then those that hang because of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from roundk.analyze.case import Case
from roundk.analyze.chart import group_of
from roundk.analyze.names import Detail, Structure
from roundk.analyze.phrases import group_text, verb
from roundk.analyze.structure import blame
from roundk.analyze.verdict import Report, Verdict
from roundk.analyze.waitfor import StuckRound, WaitFor, stuck_text, wait_for

_NOBODY_ELSE = "nobody: the others got out"
_ABSENT = frozenset({Structure.RANK_NOT_ENTERED, Structure.STUCK_IN_INIT})
_MADE_OTHER_CALLS = frozenset({Structure.EXTRA_CALL, Structure.SKIPPED_CALL, Structure.SIGNATURE_MISMATCH})
_SLOW = frozenset({Structure.STRAGGLER, Structure.ROTATING_STRAGGLER})
_STATES = {
    Detail.DEAD: "not entered, dead",
    Detail.STOPPED: "not entered, stopped",
    Detail.EXITED_EARLY: "not entered, left",
    Detail.SILENT: "not entered, silent",
    Detail.BUSY: "not entered, busy",
}


@dataclass(frozen=True)
class Wait:
    """Ranks in one round, and the ranks that it waits for.

    Attributes:
        ranks: Who waits.
        where: The round, in words.
        on: For whom; empty: nobody is missing, or it is not known who.
        state: What those are doing, in a few words.
        later: Further rounds in which the same ranks wait for the same.
    """

    ranks: tuple[int, ...]
    where: str
    on: tuple[int, ...]
    state: str
    later: int = 0


@dataclass(frozen=True)
class Picture:
    """Who waits for whom.

    Attributes:
        roots: The rounds that the verdict is about: its own, then those in which most wait.
        behind: The rounds that hang because of those, nearest first.
        is_circle: Each of the roots waits for another one.
        direct: Ranks in the roots.
        through: Ranks held up only by those behind.
        groups: Groups of the rounds behind.
    """

    roots: tuple[Wait, ...] = ()
    behind: tuple[Wait, ...] = ()
    is_circle: bool = False
    direct: tuple[int, ...] = ()
    through: tuple[int, ...] = ()
    groups: int = 0


def pictures(case: Case, report: Report) -> tuple[Picture, ...]:
    """One picture per verdict of a report."""
    graph = wait_for(case, blame.ended_unseen(case)) if not case.blocked.is_empty() else None
    made: list[Picture] = []
    for verdict in report.verdicts:
        made.append(_without(_picture(case, graph, verdict), made))
    return tuple(made)


def _without(picture: Picture, before: list[Picture]) -> Picture:
    """A picture without the rounds that an earlier one has; nothing where it has all that this is about."""
    shown = {(wait.where, wait.ranks) for one in before for wait in (*one.roots, *one.behind)}
    roots = tuple(wait for wait in picture.roots if (wait.where, wait.ranks) not in shown)
    return replace(picture, roots=roots) if roots or not picture.roots else Picture()


def _picture(case: Case, graph: WaitFor | None, verdict: Verdict) -> Picture:
    # Who is slow in rounds that end holds up nobody in those that hang.
    of_hang = graph is not None and verdict.structure not in _SLOW
    circle, roots = _roots(case, graph, verdict) if graph is not None and of_hang else (False, [])
    if graph is None or not roots:
        return _told(verdict)
    behind = _behind(graph, roots)
    group = group_of(case, verdict)
    own = None if group is None else (group.key, verdict.seq)
    roots = roots if circle else sorted(roots, key=lambda r: ((r.group, r.seq) != own, -len(r.inside), r.order))
    direct = {rank for stuck in roots for rank in stuck.inside}.difference(verdict.culprit_ranks)
    through = {rank for stuck in behind for rank in stuck.inside}.difference(verdict.culprit_ranks, direct)
    held = {rank for stuck in roots for rank in stuck.inside}.union(verdict.culprit_ranks)
    further = []
    for stuck in behind:
        further.append((stuck.group, _wait(case, stuck, [r for r in stuck.missing if r in held], "held up")))
        held.update(stuck.inside)
    return Picture(
        roots=_folded((stuck.group, _root(case, stuck, verdict, circle=circle)) for stuck in roots),
        behind=_folded(further),
        is_circle=circle,
        direct=tuple(sorted(direct)),
        through=tuple(sorted(through)),
        groups=len({stuck.group for stuck in behind}),
    )


def _folded(waits: Iterable[tuple[int, Wait]]) -> tuple[Wait, ...]:
    """One of all rounds of a group in which the same ranks wait for the same."""
    alike: dict[tuple[object, ...], list[Wait]] = {}
    for group, wait in waits:
        alike.setdefault((group, wait.ranks, wait.on, wait.state), []).append(wait)
    return tuple(replace(first, later=len(rest)) for first, *rest in alike.values())


def _told(verdict: Verdict) -> Picture:
    """The picture of a verdict without a stuck round: a straggler, or what logs say."""
    if not verdict.waiting_ranks or verdict.group is None or verdict.seq is None:
        return Picture()
    where = f"{verdict.op or 'call'} #{verdict.seq} of {group_text(verdict.group.name, verdict.group.desc)}"
    state = "late" if verdict.structure is Structure.STRAGGLER else _state(verdict)
    wait = Wait(verdict.waiting_ranks, where, verdict.culprit_ranks, state)
    return Picture(roots=(wait,), direct=verdict.waiting_ranks)


def _roots(case: Case, graph: WaitFor, verdict: Verdict) -> tuple[bool, list[StuckRound]]:
    """The rounds that a verdict is about, and whether they are a circle."""
    culprits = set(verdict.culprit_ranks)
    if verdict.structure is Structure.DEVICE_STUCK:
        concerned = [r for r in graph.rounds if culprits.intersection((*r.entered, *r.missing))]
        return False, [r for r in concerned if not culprits.issuperset(r.inside)] or concerned
    lacking = graph.lacking(culprits)
    group = group_of(case, verdict)
    if verdict.structure in _MADE_OTHER_CALLS and group is not None:
        # Who made other calls also waits itself, alone in a round of that group: there it began.
        alone = [r for r in graph.rounds if r.group == group.key and culprits.intersection(r.inside) and r.missing]
        lacking = alone + [r for r in lacking if r not in alone]
    if lacking:
        return False, lacking
    for ranks, rounds in graph.cycles:
        if set(verdict.waiting_ranks or ranks).issubset(ranks) and verdict.structure is Structure.ORDER_DEADLOCK:
            return True, sorted(rounds, key=lambda r: r.order)
    own = [r for r in graph.rounds if group is not None and (r.group, r.seq) == (group.key, verdict.seq)]
    if own:
        return False, own
    held = culprits.union(verdict.waiting_ranks)
    hung = sorted((r for r in graph.rounds if held.intersection(r.inside)), key=lambda r: r.order)
    # Where calls differ, the round that hangs is a later one of the same group.
    same = [r for r in graph.rounds if group is not None and r.group == group.key]
    return False, hung[:1] or (same[:1] if verdict.structure in _MADE_OTHER_CALLS else [])


def _behind(graph: WaitFor, roots: Iterable[StuckRound]) -> list[StuckRound]:
    """The rounds that lack somebody who hangs in one of these, and those that lack somebody who hangs in those."""
    lacking: dict[int, list[StuckRound]] = defaultdict(list)
    for stuck in graph.rounds:
        for rank in stuck.missing:
            lacking[rank].append(stuck)
    seen = {id(stuck) for stuck in roots}
    found: list[StuckRound] = []
    level = list(roots)
    while level:
        following: list[StuckRound] = []
        for stuck in sorted(level, key=lambda r: r.order):
            for rank in stuck.inside:
                for other in lacking.pop(rank, ()):
                    if id(other) not in seen:
                        seen.add(id(other))
                        following.append(other)
        found += sorted(following, key=lambda r: r.order)
        level = following
    return found


def _root(case: Case, stuck: StuckRound, verdict: Verdict, *, circle: bool) -> Wait:
    culprits = tuple(r for r in stuck.missing if r in verdict.culprit_ranks)
    if circle:
        return _wait(case, stuck, stuck.missing, "in another of these")
    if verdict.structure is Structure.DEVICE_STUCK:
        inside = tuple(r for r in verdict.culprit_ranks if r in (*stuck.entered, *stuck.missing))
        return _wait(case, stuck, inside, "inside, completes nothing", without=verdict.culprit_ranks)
    if not stuck.missing:
        return _full(case, stuck, verdict)
    return _wait(case, stuck, culprits or stuck.missing, _state(verdict) if culprits else "not entered")


def _full(case: Case, stuck: StuckRound, verdict: Verdict) -> Wait:
    """A round that lacks nobody."""
    inside = tuple(r for r in verdict.culprit_ranks if r in stuck.entered)
    if inside:
        return _wait(case, stuck, inside, "inside", without=inside)
    out = set(stuck.entered).difference(stuck.inside)
    if stuck.unsure:
        return _wait(case, stuck, stuck.unsure, f"not known whether {verb(stuck.unsure, 'it', 'they')} entered")
    return _wait(case, stuck, (), "nobody is missing, some got out" if out else "nobody is missing, nobody got out")


def _state(verdict: Verdict) -> str:
    if verdict.structure in _ABSENT and verdict.detail is not None:
        return _STATES.get(verdict.detail, "not entered")
    return "made other calls" if verdict.structure in _MADE_OTHER_CALLS else "not entered"


def _wait(case: Case, stuck: StuckRound, on: Iterable[int], state: str, *, without: Iterable[int] = ()) -> Wait:
    apart, whom = set(without), tuple(on)
    ranks = tuple(rank for rank in stuck.inside if rank not in apart)
    if not ranks:
        # Nobody else is inside any more: nobody waits for itself.
        ranks, whom = stuck.inside, tuple(rank for rank in whom if rank not in stuck.inside)
        state = state if whom else _NOBODY_ELSE
    # Without the line of code, which the sentence has: this has to be short.
    where = stuck_text(case, replace(stuck, site=None))
    return Wait(ranks, where, whom, state)
