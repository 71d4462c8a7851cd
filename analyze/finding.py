"""What a structure module hands on: WHO and WHERE, before the WHY."""

from __future__ import annotations

from dataclasses import dataclass

from roundk.analyze.names import Cause, Confidence, Detail, Structure


@dataclass(frozen=True)
class Evidence:
    """One observation that carries a verdict; `source` is a file relative to what the user named."""

    what: str
    source: str = ""
    rank: int | None = None
    time_ns: int | None = None


@dataclass(frozen=True)
class Reason:
    """A cause with how sure it is, the words for the summary, what shows it and what speaks against it."""

    cause: Cause
    confidence: Confidence
    because: str = ""
    evidence: tuple[Evidence, ...] = ()
    against: tuple[str, ...] = ()


@dataclass(frozen=True)
class Occurrence:
    """One instant of a verdict that has several."""

    rank: int
    seq: int
    time_ns: int


@dataclass(frozen=True)
class Finding:
    """A structure found in the tables.

    Attributes:
        structure: What it is.
        summary: The sentence for the operator, without the cause.
        culprits: Ranks to blame; empty where no side can be picked.
        sides: All ranks of the sides, where sides differ and none can be picked.
        until_ns: When it was over, where it passed.
        waiting: Ranks that wait for the culprits in the round.
        victim_ranks: All ranks that wait for them, through any group.
        victim_groups: Groups in which they wait.
        reason: The cause, where the structure itself tells it; None: to be asked of how the ranks ended.
        doubts: What lowers the confidence, each by one level.
        hosts: Hosts to blame beside those of the culprits.
        victim_hosts: Hosts that suffer beside those of the victims.
        links: Links to blame: host, device, port.
    """

    structure: Structure
    summary: str
    detail: Detail | None = None
    culprits: tuple[int, ...] = ()
    sides: tuple[int, ...] = ()
    group: int | None = None
    seq: int | None = None
    op: str | None = None
    onset_ns: int | None = None
    until_ns: int | None = None
    waiting: tuple[int, ...] = ()
    victim_ranks: tuple[int, ...] = ()
    victim_groups: tuple[int, ...] = ()
    reason: Reason | None = None
    doubts: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    contradictions: tuple[str, ...] = ()
    not_checked: tuple[str, ...] = ()
    next_steps: tuple[str, ...] = ()
    occurrences: tuple[Occurrence, ...] = ()
    hosts: tuple[str, ...] = ()
    victim_hosts: tuple[str, ...] = ()
    links: tuple[tuple[str, str, int | None], ...] = ()
