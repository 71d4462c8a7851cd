"""What the lines of a job's logs say, kept within bounds: equal facts are one with a count."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from roundk.analyze.phrases import NS_PER_S
from roundk.analyze.sources.joblog.coll_lines import Calls
from roundk.analyze.sources.joblog.comms import Comms
from roundk.analyze.sources.joblog.events import Event
from roundk.analyze.sources.joblog.prefixes import Head

MOST_OF_KIND: Final = 40_000
"""Different facts of one kind that are kept: one of every rank of 16,384, and as many again."""
MOST_FACTS: Final = 100_000
MOST_PAIRS: Final = 100_000

HOST_WIDE: Final = frozenset(
    {
        "nccl_network",
        "nccl_no_device",
        "nccl_devices",
        "nccl_address",
        "nccl_gdr",
        "nccl_version",
        "nccl_setting",
        "net_speed_changed",
    }
)
"""Facts that every process of a host repeats: one per host is kept."""
_OF_ATTEMPT: Final = frozenset({"collective_timeout", "watchdog_status", "dump_signal"})
"""Facts that a process says once before it ends: the same again, later, is of the process that came after it."""
_APART_NS: Final = 60 * NS_PER_S
"""A watchdog repeats itself within this time; to start a job again and wait for a timeout takes longer."""
_JOB_WIDE: Final = frozenset({"nccl_version"})


class Origin(NamedTuple):
    """Who printed a line, as far as the line and its file say.

    Attributes:
        file: Number of the input.
        rank, launcher, local, host, pid: As in `prefixes.Head`.
    """

    file: int
    rank: int | None
    launcher: int | None
    local: int | None
    host: str | None
    pid: int | None


@dataclass(slots=True)
class Fact:
    """An event, who printed it, where and when.

    Attributes:
        event: What it says.
        origin: Who printed it.
        time_ns: Time of the first such line.
        after_ns: Latest time that stands before the line in its file, where the line has none.
        line: Number of the first such line.
        count: How many such lines there are.
        last_ns: Time of the last such line.
        last_line: Number of the last such line.
    """

    event: Event
    origin: Origin
    time_ns: int | None
    after_ns: int | None
    line: int
    count: int = 1
    last_ns: int | None = None
    last_line: int | None = None


class Book:
    """Everything that was found in a job's logs.

    Attributes:
        calls: Calls in NCCL's COLL lines.
        comms: Communicators and channels of NCCL.
        lost: Facts that were not kept, by kind.
        launched: Pairs of a launcher's number and the rank that the same line names.
        located: The same of local rank and rank.
        agents: A launcher's numbers in front of lines of torchrun's agent, which is no rank.
        alive: Time of the last line of each process that names its rank.
    """

    def __init__(self) -> None:
        self.calls = Calls()
        self.comms = Comms()
        self.lost: Counter[str] = Counter()
        self.launched: set[tuple[int, int]] = set()
        self.located: set[tuple[int, int]] = set()
        self.agents = False
        self.alive: dict[int, int] = {}
        self.found: Counter[int] = Counter()
        self._facts: dict[tuple[object, ...], Fact] = {}
        self._kinds: Counter[str] = Counter()

    def facts(self, *kinds: str) -> Iterator[Fact]:
        """The facts of these kinds, or all, in the order in which they were met."""
        return (fact for fact in self._facts.values() if not kinds or fact.event.kind in kinds)

    def add(self, event: Event, origin: Origin, time_ns: int | None, after_ns: int | None, line: int) -> None:
        """Take a fact in."""
        self.found[origin.file] += 1
        self._see(event, origin, time_ns)
        key = self._key(event, origin)
        known = self._facts.get(key)
        if known is not None and event.kind in _OF_ATTEMPT and _is_apart(known, time_ns):
            key = (*key, time_ns)
            known = None
        if known is not None:
            known.count += 1
            known.last_ns = time_ns if time_ns is not None else known.last_ns
            known.last_line = line
        elif self._kinds[event.kind] >= MOST_OF_KIND or len(self._facts) >= MOST_FACTS:
            self.lost[event.kind] += 1
        else:
            self._kinds[event.kind] += 1
            self._facts[key] = Fact(event, origin, time_ns, after_ns, line)

    def meet(self, head: Head) -> None:
        """Take note of what a line's prefixes say together."""
        if head.rank is not None and head.launcher is not None and len(self.launched) < MOST_PAIRS:
            self.launched.add((head.launcher, head.rank))
        if head.rank is not None and head.local is not None and len(self.located) < MOST_PAIRS:
            self.located.add((head.local, head.rank))

    def _see(self, event: Event, origin: Origin, time_ns: int | None) -> None:
        if event.kind.startswith("elastic_") and origin.launcher is not None:
            self.agents = True
        if (
            origin.rank is not None
            and (time_ns is not None or origin.rank not in self.alive)
            and len(self.alive) < MOST_PAIRS
        ):
            self.alive[origin.rank] = max(self.alive.get(origin.rank, 0), time_ns or 0)

    @staticmethod
    def _key(event: Event, origin: Origin) -> tuple[object, ...]:
        fields = json.dumps(event.fields, sort_keys=True, ensure_ascii=False)
        who: tuple[object, ...] = origin
        if event.kind in HOST_WIDE:
            who = ("host", None if event.kind in _JOB_WIDE else origin.host or origin.file)
        return (event.kind, who, event.group, event.group_rank, event.rank, event.host, event.at, fields)


def _is_apart(known: Fact, time_ns: int | None) -> bool:
    latest = known.last_ns if known.last_ns is not None else known.time_ns
    return latest is not None and time_ns is not None and time_ns - latest > _APART_NS
