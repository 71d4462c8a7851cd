"""How a scenario is told: what is done to a running job, and what must be said of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import lab

HOSTS = 4
_BASELINE_S = (2.5, 3.5)
"""How long a job runs before the fault: three samples of every counter, and dozens of rounds."""
_AFTERWARDS_S = 2.0
_HANG_S = 4.5
"""No progress for so long is a hang: the longest wait for TCP's next attempt is 3 s by then."""
_END_S = 15.0
"""So long may a rank that failed take to end, and may others take to fail because of it."""
SUSTAINED_S = 6.0
SUSTAINED_ROUNDS = 8
STALL_S = 2.0
"""For the analysis: age from which an open round of these short jobs is stuck."""


@dataclass(frozen=True)
class Expected:
    """What a verdict must say.

    Attributes:
        structures: Any of these.
        causes: Any of these; None: no cause.
        ranks: Exactly these are the culprits.
        links: At least one of these (host, device) is a culprit, and no other.
        details: Any of these, where the structure is RANK_NOT_ENTERED.
    """

    structures: tuple[str, ...]
    causes: tuple[str | None, ...]
    ranks: tuple[int, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class Truth:
    """What is true of a run.

    Attributes:
        expected: The verdicts, the root first; where `any_order`, none of them is the root of another.
        tolerated: Links of which a further verdict may speak.
        event: (host, device) of a link event that the report must list though it harmed nobody.
    """

    expected: tuple[Expected, ...]
    any_order: bool = False
    tolerated: tuple[tuple[str, str], ...] = ()
    event: tuple[str, str] | None = None

    def guilty_hosts(self, per_host):
        """Hosts that may be named: all others are innocent."""
        hosts = {lab.host_name(rank // per_host) for one in self.expected for rank in one.ranks}
        return hosts | {host for one in self.expected for host, _ in one.links} | {host for host, _ in self.tolerated}


@dataclass(frozen=True)
class Plan:
    """One run of a scenario, its parameters drawn.

    Attributes:
        truth: What is true of it.
        act: Does it, given a `Stage`.
        parameters: For the record.
        network, job: Arguments of `lab.Network` and `job.Job`.
    """

    truth: Truth
    act: object
    parameters: dict
    network: dict = field(default_factory=dict)
    job: dict = field(default_factory=dict)


class Stage:
    """A running job in its network, for the acts of a scenario."""

    def __init__(self, network, job, random):
        self.network, self.job = network, job
        self.random = random
        self.events = []
        """(Unix ns before, Unix ns after, what): every injection and its end."""
        self.is_to_fail = False

    def begin(self):
        """Wait until every rank has begun its first round and every host is sampled."""
        self.job.wait_for(lambda: min(self.job.board.rounds) > 0, "the first round of every rank")
        self.job.wait_for_samples()

    def baseline(self):
        """Let the healthy job run for a while."""
        self.begin()
        self.for_rounds(self.random.uniform(*_BASELINE_S), 10)

    def inject(self, what, fault):
        """Inject a fault, and note when; gives the function that ends it."""
        clear = self._noted(what, fault)
        return lambda: self._noted(f"end of: {what}", clear)

    def _noted(self, what, action):
        before = time.time_ns()
        result = action()
        self.events.append((before, time.time_ns(), what))
        return result

    def for_a_while(self, what, fault, seconds):
        """Inject a fault and end it after a time."""
        clear = self.inject(what, fault)
        time.sleep(seconds)
        clear()

    def recover(self):
        """Wait until the job runs as before, and let it end in order.

        Raises:
            LabError: it does not recover.
        """
        self.job.wait_for_rounds(10)
        time.sleep(_AFTERWARDS_S)
        self.job.finish()

    def sustain(self):
        """Let the job run on in spite of the fault, and end in order."""
        self.for_rounds(SUSTAINED_S, SUSTAINED_ROUNDS)
        self.job.finish()

    def for_rounds(self, seconds, least):
        """Let the job run for a time and so many rounds at least."""
        until = time.monotonic() + seconds
        self.job.wait_for_rounds(least)
        time.sleep(max(0.0, until - time.monotonic()))

    def until_over(self):
        """Wait until the job has ended or hangs: it must not end in order."""
        self.is_to_fail = True
        progress, since = self.job.progress, time.monotonic()
        while not self.job.ended and time.monotonic() < since + (_END_S if self.job.failed else _HANG_S):
            if progress != self.job.progress:
                progress, since = self.job.progress, time.monotonic()
            time.sleep(0.1)
