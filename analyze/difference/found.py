"""What a comparison of two runs gives: what differs, what is the same, what one of them does not tell."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from roundk.analyze.difference.values import Values


class Topic(StrEnum):
    """What is compared, that which most often explains a failure first."""

    TRANSPORTS = "transports"
    VERSIONS = "versions"
    SETTINGS = "settings"
    LINKS = "links"
    GROUPS = "groups"
    CALLS = "calls"
    STEP_TIME = "step time"
    HOSTS = "hosts"
    COMMAND = "command"
    COURSE = "course"


NOTHING: Final = "-"
"""Stands where a run has nothing to set against what the other one has."""


@dataclass(frozen=True)
class Row:
    """One thing, as it is in either run.

    Attributes:
        topic: What it is about.
        name: Its name.
        a, b: What it is in run A and in run B, in words.
        hosts: Hosts that it tells of: those that only one of the runs has, or that differ from the others of their run.
        touches: It tells of a host that the verdict on one of the runs names.
    """

    topic: Topic
    name: str
    a: str
    b: str
    hosts: frozenset[str] = frozenset()
    touches: tuple[str, ...] = ()


@dataclass(frozen=True)
class Untold:
    """What could not be compared.

    Attributes:
        topic: What it is about.
        name: Its name.
        where: The run that does not tell it: `A`, `B` or `both`.
        why: More about it; '' where it is simply not recorded.
        is_unread: A file of that run that may hold it could not be read.
    """

    topic: Topic
    name: str
    where: str
    why: str = ""
    is_unread: bool = False


@dataclass
class Found:
    """Filled topic by topic.

    Attributes:
        rows: What differs.
        same: Names of what does not, by topic.
        untold: What could not be compared.
        inside: What is the same in both runs, but not on all hosts or ranks of one.
        told: What is told of both and not compared: how far they came, how they ended.
        lost: Topics of which a file that could not be read may have told, of A and of B.
    """

    rows: list[Row] = field(default_factory=list)
    same: dict[Topic, list[str]] = field(default_factory=dict)
    untold: list[Untold] = field(default_factory=list)
    inside: list[Row] = field(default_factory=list)
    told: list[Row] = field(default_factory=list)
    lost: tuple[frozenset[Topic], frozenset[Topic]] = (frozenset(), frozenset())

    def texts(self, topic: Topic, name: str, a: str, b: str, hosts: Iterable[str] = ()) -> None:
        """Compare two texts."""
        if a == b:
            self.is_same(topic, name)
        else:
            self.rows.append(Row(topic, name, a, b, frozenset(hosts)))

    def is_same(self, topic: Topic, name: str) -> None:
        """Note that something is the same."""
        self.same.setdefault(topic, []).append(name)

    def is_untold(self, topic: Topic, name: str, *, a: bool, b: bool, why: str = "") -> None:
        """Note that something is not told by A (`a`), by B (`b`), or by both."""
        unread = [topic in lost for lost in self.lost]
        if a and b:
            # What not even the one that is whole has, the other one hardly had.
            self.untold.append(Untold(topic, name, "both", why, all(unread)))
            return
        for is_here, side, is_unread in zip((a, b), ("A", "B"), unread, strict=True):
            if is_here:
                self.untold.append(Untold(topic, name, side, why, is_unread))

    def values(self, topic: Topic, name: str, a: Values | None, b: Values | None) -> None:
        """Compare who has which value; None: the run does not tell."""
        if not a or not b:
            self.is_untold(topic, name, a=not a, b=not b)
            return
        row = Row(topic, name, a.text, b.text, a.odd_hosts | b.odd_hosts)
        if not a.is_as(b):
            in_a, in_b = (topic in lost for lost in self.lost)
            if (in_a or in_b) and (a.among(b) if in_b else a).is_as(b.among(a) if in_a else b):
                self.is_untold(topic, f"{name} of all", a=in_a, b=in_b)
            else:
                self.rows.append(row)
            return
        self.is_same(topic, name)
        if a.is_mixed or b.is_mixed:
            self.inside.append(row)
