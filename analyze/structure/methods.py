"""Do other methods name other ranks than the rounds do? torch's desync report, monitored barriers, NCCL RAS.

The desync report compares only the latest work of each rank and throws the groups together, and RAS counts launches of
five operations: a rank that they name and that the wait-for graph shows to be a victim is no disagreement.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from roundk.analyze import cause
from roundk.analyze.case import Case
from roundk.analyze.finding import Evidence, Finding
from roundk.analyze.names import Structure
from roundk.analyze.phrases import ranks_text
from roundk.analyze.told import Told, told

_NAMES: Final = {
    "desync_lagging": "torch's desync report",
    "monitored_barrier": "a monitored barrier",
    "ras_dead": "NCCL RAS",
    "ras_unresponsive": "NCCL RAS",
    "ras_not_member": "NCCL RAS",
}
_LAGGING: Final = frozenset({"never_joined", "not_joined"})
"""What a rank did that the desync report holds to have caused it; who "joined but didn't finish" is inside."""

_QUIET: Final = frozenset({Structure.HEALTHY, Structure.IN_PROGRESS, Structure.INSUFFICIENT_EVIDENCE})
_SHOWN: Final = 3


@dataclass(frozen=True)
class Naming:
    """The ranks that one method holds to be the cause.

    Attributes:
        method: What names them, in words.
        facts: The lines that do.
    """

    method: str
    ranks: frozenset[int]
    facts: tuple[Told, ...]


def compared(case: Case, findings: list[Finding]) -> list[Finding]:
    """The findings, with a line of evidence where another method names the same; METHODS_DISAGREE where none agrees.

    Args:
        case: The case.
        findings: As the rounds gave them.
    """
    other = disagreement(case, findings)
    if other is not None:
        return [other]
    return [_agreed(finding, namings(case)) for finding in findings]


def disagreement(case: Case, findings: list[Finding]) -> Finding | None:
    """Another method names ranks, and none of them is among those that the rounds name or show to wait.

    Args:
        case: The case.
        findings: As the rounds gave them.
    """
    named = {rank for finding in findings for rank in (*finding.culprits, *finding.sides)}
    if not named or findings[0].structure in _QUIET:
        return None
    held_up = {rank for finding in findings for rank in (*finding.waiting, *finding.victim_ranks)}
    others = [one for one in namings(case) if one.ranks]
    if any(one.ranks & named for one in others):
        return None
    strange = [one for one in others if not one.ranks <= held_up]
    return _finding(case, findings, frozenset(named), strange[0]) if strange else None


def namings(case: Case) -> list[Naming]:
    """What each method names, in the order of `_NAMES`."""
    by_method: dict[str, list[Told]] = {}
    for fact in told(case.trace, _NAMES):
        if fact.kind != "desync_lagging" or fact.fields.get("did") in _LAGGING:
            by_method.setdefault(_NAMES[fact.kind], []).append(fact)
    known = {rank for members in case.groups.values() for rank in members.ranks}
    return [
        Naming(method, frozenset(rank for fact in facts for rank in _ranks(fact) if rank in known), tuple(facts))
        for method, facts in sorted(by_method.items(), key=lambda pair: list(_NAMES.values()).index(pair[0]))
    ]


def _ranks(fact: Told) -> list[int]:
    listed = fact.fields.get("ranks")
    if isinstance(listed, list):
        return [rank for rank in listed if isinstance(rank, int)]
    return [] if fact.rank is None else [fact.rank]


def _agreed(finding: Finding, others: list[Naming]) -> Finding:
    """A finding with the lines of other methods that name one of its ranks."""
    named = {*finding.culprits, *finding.sides}
    said = [
        Evidence(f"{one.method} names {ranks_text(sorted(one.ranks))} too: {one.facts[0].text}", one.facts[0].source)
        for one in others
        if one.ranks & named
    ]
    return replace(finding, evidence=(*finding.evidence, *said)) if said else finding


def _finding(case: Case, findings: list[Finding], named: frozenset[int], other: Naming) -> Finding:
    root = findings[0]
    mine, theirs = ranks_text(sorted(named)), ranks_text(sorted(other.ranks))
    said = tuple(
        Evidence(f"{other.method} names {theirs}: {fact.text}", fact.source, fact.rank, fact.time_ns)
        for fact in other.facts[:_SHOWN]
    )
    rounds = Evidence(f"the rounds name {mine}: {root.summary}", case.source(min(named)))
    return Finding(
        structure=Structure.METHODS_DISAGREE,
        summary=f"The rounds name {mine}, {other.method} names {theirs}: which is right is not told. By the rounds: "
        f"{root.summary}",
        sides=tuple(sorted(named | other.ranks)),
        group=root.group,
        seq=root.seq,
        op=root.op,
        onset_ns=root.onset_ns,
        waiting=root.waiting,
        victim_ranks=root.victim_ranks,
        victim_groups=root.victim_groups,
        reason=cause.UNDETERMINED,
        evidence=(rounds, *root.evidence, *said),
        contradictions=root.contradictions,
        not_checked=root.not_checked,
        next_steps=(
            f"look at {mine} and at {theirs}: py-spy dump while it hangs, else the end of their logs",
            "make sure that the files are of one run: a report of an earlier one names other ranks",
        ),
    )
