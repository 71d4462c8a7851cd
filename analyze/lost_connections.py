"""Completion errors of NCCL's transport: who printed them, and about whom.

The printer of a completion error is its victim; the peer that it names is the suspect. Status 5 (flushed) follows an
earlier error of the same connection and says nothing.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Final

from roundk.analyze.phrases import NS_PER_S
from roundk.analyze.told import Told, short_host, told
from roundk.analyze.trace import Trace

OF_PEERS: Final = frozenset({9, 10, 11, 12, 13})
"""Statuses that tell of the peer or the way to it: refused there, no answer, never ready. 5 is a flush, those below are
of the printer's own memory and queues. Source: rdma-core, `enum ibv_wc_status`."""

TOGETHER_NS: Final = NS_PER_S
"""Errors this close together are of one event, and their order is chance; more where clocks are known to be worse."""

VOTE_NS: Final = 10 * NS_PER_S
"""Errors within this time of the first may be of one outage: each connection fails when its own retries are used up."""

LEAST_VOTES: Final = 2
"""Hosts that must name a peer before their number counts for more than who came first."""

ERRORS_OF_CLOCK: Final = 3
"""Times of two hosts tell an order beyond so many times the estimated error of their clocks."""


@dataclass(frozen=True)
class Lost:
    """The first connection that was lost, with what was lost at the same time.

    Attributes:
        first: The earliest completion error.
        close: Those of the same event, it included: too close to it for their order to count or, where most hosts
            name one peer, all within `VOTE_NS`.
        suspect: Host that all of these name, or most of the hosts that print them; None: they do not agree.
        named: Every peer that they name, in words.
    """

    first: Told
    close: tuple[Told, ...]
    suspect: str | None
    named: tuple[str, ...]

    @property
    def victims(self) -> tuple[str, ...]:
        """Hosts that print them, the suspect left out."""
        return tuple(sorted({fact.host for fact in self.close if fact.host} - {self.suspect}))


def slack_ns(trace: Trace) -> int:
    """Least distance between times of two hosts that tells an order."""
    return max(TOGETHER_NS, ERRORS_OF_CLOCK * (trace.clock_error_ns or 0))


def completion_errors(trace: Trace) -> list[Told]:
    """Completion errors that tell of a peer, by time."""
    return [fact for fact in told(trace, ("net_completion_error",)) if fact.number_of("status") in OF_PEERS]


def first_lost(errors: list[Told], slack: int) -> Lost | None:
    """The first lost connection.

    Args:
        errors: As `completion_errors` gives them.
        slack: Least distance between times that tells an order.
    """
    if not errors:
        return None
    timed = [fact for fact in errors if fact.time_ns is not None]
    first = min(timed, key=lambda fact: fact.time_ns or 0) if timed else errors[0]
    near = _within(errors, first, max(slack, VOTE_NS))
    if (elected := _elected(near, slack)) is not None:
        first = next((f for f in near if peer_host(f) == elected), first)
        return Lost(first, tuple(near), elected, _named(near))
    close = _within(errors, first, slack)
    votes = _votes(close)
    ordered = sorted(votes, key=lambda host: (-len(votes[host]), host))
    is_clear = len(ordered) == 1 or (len(ordered) > 1 and len(votes[ordered[0]]) > len(votes[ordered[1]]))
    is_told = all(peer_host(fact) is not None for fact in close)
    return Lost(first, tuple(close), ordered[0] if is_clear and is_told else None, _named(close))


def _within(errors: list[Told], first: Told, span: int) -> list[Told]:
    return [first, *(f for f in errors if f is not first and _is_close(f, first, span))]


def _votes(errors: list[Told]) -> dict[str, set[str]]:
    """Who names each peer: hosts, each once, as all ranks of one host lose the same link."""
    votes: dict[str, set[str]] = defaultdict(set)
    for fact in errors:
        if (host := peer_host(fact)) is not None and host != fact.host:
            votes[host].add(fact.host or fact.source)
    return votes


def _elected(errors: list[Told], slack: int) -> str | None:
    """The peer that more than half of the hosts name, its own word left out; None where there is none.

    A host whose link is down loses all its connections and names many peers, each of which names but it.
    """
    votes = _votes(errors)
    if not votes:
        return None
    most = max(votes, key=lambda host: (len(votes[host]), host))
    printers = {fact.host or fact.source for fact in errors} - {most}
    count = len(votes[most])
    is_most = count >= LEAST_VOTES and 2 * count > len(printers)
    return most if is_most and not _was_victim(most, errors, slack) else None


def _was_victim(host: str, errors: list[Told], slack: int) -> bool:
    """It had lost one peer itself before anybody lost it: it ended because of that, and the others because of it."""
    own = [f for f in errors if f.host == host]
    if not own or len({peer_host(f) for f in own}) > 1:
        return False
    lost, began = (
        [f.time_ns for f in facts if f.time_ns is not None]
        for facts in (own, [f for f in errors if peer_host(f) == host])
    )
    return bool(lost and began) and min(began) - min(lost) >= slack


def _named(errors: list[Told]) -> tuple[str, ...]:
    names = (peer_host(fact) or fact.text_of("peer") for fact in errors)
    return tuple(dict.fromkeys(name for name in names if name is not None))


def peer_host(fact: Told) -> str | None:
    """The host that a completion error names."""
    return short_host(fact.text_of("peer_host"))


def _is_close(fact: Told, first: Told, slack: int) -> bool:
    return fact.time_ns is None or first.time_ns is None or abs(fact.time_ns - first.time_ns) < slack
