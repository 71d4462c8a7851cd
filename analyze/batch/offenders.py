"""What comes back more often than chance allows: the answer to one question, and both questions asked.

Two questions, each with the chance of any false finding held at 5 % over all the units it tests (`exact.LEVEL`, Holm):

- `presence`: was a host in more interrupted jobs than its use explains, whatever was blamed?
- `blame`: was a host, port, rack, rail or plane named as culprit in more jobs than if the blame fell evenly?
"""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from roundk.analyze.batch.jobs import Jobs
from roundk.analyze.batch.topology import Kind


@dataclass(frozen=True)
class Unit:
    """Something that can come back.

    Attributes:
        kind: What it is.
        name: Host name, `host:device:port`, or the name in the topology file.
    """

    kind: Kind
    name: str

    @property
    def text(self) -> str:
        """`host node17`; `rail3` where the name says what it is."""
        return called(self.kind, self.name)


def called(kind: Kind, name: str) -> str:
    """What to call a unit in a sentence: `plane 2`; `rail3` where the name says what it is."""
    return name if name.lower().startswith(kind) and name.lower() != kind else f"{kind} {name}"


@dataclass(frozen=True)
class Finding:
    """A unit that comes back, or one that was tested.

    Attributes:
        unit: Which.
        jobs: How many jobs it was in, or was named in.
        used_in: How many jobs could have had it.
        expected: How many chance would give.
        log_p: Logarithm of the probability of so many or more by chance.
        log_corrected: The same, corrected for the number of units tested.
        runs: The interrupted runs it was in, or was named in.
        causes: What the verdicts of these runs say, most frequent first, with how many.
        first: Time of the first of them, where known.
        last: Time of the last.
    """

    unit: Unit
    jobs: int
    used_in: int
    expected: float
    log_p: float
    log_corrected: float
    runs: tuple[str, ...]
    causes: tuple[tuple[str, int], ...]
    first: dt.datetime | None
    last: dt.datetime | None

    @property
    def p(self) -> float:
        """Probability of so many or more by chance; 0 where no float is as small."""
        return math.exp(self.log_p)

    @property
    def corrected(self) -> float:
        """The same, corrected for the number of units tested."""
        return math.exp(self.log_corrected)


@dataclass(frozen=True)
class Answer:
    """What a question found.

    Attributes:
        test: The test, in a sentence.
        jobs: How many jobs it went by.
        tested: How many units of each kind were tested.
        findings: What comes back, the surest first.
        most: What is most frequent of the others: not more than chance allows.
        remark: Why nothing, or little, can be said; empty where something can.
    """

    test: str
    jobs: int
    tested: tuple[tuple[Kind, int], ...]
    findings: tuple[Finding, ...] = ()
    most: tuple[Finding, ...] = ()
    remark: str = ""

    @property
    def units(self) -> int:
        """How many units were tested."""
        return sum(count for _, count in self.tested)


def finding(
    jobs: Jobs,
    unit: Unit,
    runs: Iterable[str],
    *,
    count: int,
    used_in: int,
    expected: float,
    log_p: float,
    log_corrected: float,
) -> Finding:
    """A finding with what is known of its runs."""
    names = tuple(sorted(set(runs)))
    times = [jobs.times[run] for run in names if run in jobs.times]
    causes = Counter(jobs.causes[run] for run in names if run in jobs.causes)
    return Finding(
        unit,
        count,
        used_in,
        expected,
        log_p,
        log_corrected,
        names,
        tuple(sorted(causes.items(), key=lambda one: (-one[1], one[0]))),
        min(times, default=None),
        max(times, default=None),
    )
