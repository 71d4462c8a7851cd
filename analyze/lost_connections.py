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

ERRORS_OF_CLOCK: Final = 3
"""Times of two hosts tell an order beyond so many times the estimated error of their clocks."""


@dataclass(frozen=True)
class Lost:
    """The first connection that was lost, with what was lost at the same time.

    Attributes:
        first: The earliest completion error.
        close: Those that are too close to it for their order to count, it included.
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
    close = [first, *(f for f in errors if f is not first and _is_close(f, first, slack))]
    votes: dict[str, set[str]] = defaultdict(set)
    for fact in close:
        if (host := peer_host(fact)) is not None and host != fact.host:
            votes[host].add(fact.host or fact.source)
    ordered = sorted(votes, key=lambda host: (-len(votes[host]), host))
    agreed = len(ordered) == 1 or (len(ordered) > 1 and len(votes[ordered[0]]) > len(votes[ordered[1]]))
    unnamed = any(peer_host(fact) is None for fact in close)
    named = dict.fromkeys(name for fact in close if (name := peer_host(fact) or fact.text_of("peer")) is not None)
    return Lost(first, tuple(close), ordered[0] if agreed and not unnamed else None, tuple(named))


def peer_host(fact: Told) -> str | None:
    """The host that a completion error names."""
    return short_host(fact.text_of("peer_host"))


def _is_close(fact: Told, first: Told, slack: int) -> bool:
    return fact.time_ns is None or first.time_ns is None or abs(fact.time_ns - first.time_ns) < slack
