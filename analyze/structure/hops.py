"""What the step counters of the network's proxies tell: which edge of a ring or tree lost data, or who takes none.

The rules are those of a pipelined ring and tree with bounded slots per edge; a property test cuts edges and freezes
ranks of such a model and compares.

Source: RCCLX's `computeStatus` (comms/rcclx/develop/meta/lib/ProxyTrace.cc of torchcomms) for what the counters mean;
`checkHangMatch` of NCCLX's ProxyTraceDistTest.cc for the global minimum of operation and step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Hop:
    """One edge of one channel, as both of its ends count its steps.

    Attributes:
        sender, receiver: Ranks.
        transmitted: Steps that the sender's proxy handed to the network.
        delivered: Of those, steps that the network reported as done.
        received: Steps that came to the receiver's proxy.
        consumed: Of those, steps that the receiver's kernel has taken.
        steps: Steps in all.
    """

    channel: int
    sender: int
    receiver: int
    transmitted: int
    delivered: int
    received: int
    consumed: int
    steps: int

    @property
    def edge(self) -> tuple[int, int]:
        """Sender and receiver."""
        return self.sender, self.receiver

    @property
    def is_broken(self) -> bool:
        """Something is under way that does not come, and the receiver has taken all that came."""
        return self.delivered < self.transmitted and self.consumed >= self.received

    @property
    def step(self) -> int:
        """How far it is, as the global-minimum rule counts: the sender's or the receiver's step, whichever is less."""
        return min(self.transmitted, self.received)


def covers(hops: Sequence[Hop], ranks: Iterable[int]) -> bool:
    """Each of these ranks, which are not through, receives by one of the hops: none of theirs is hidden in a host."""
    return set(ranks) <= {hop.receiver for hop in hops}


def may_be_ring(hops: Sequence[Hop]) -> bool:
    """Nobody sends to two or receives from two, and no edge goes both ways: parts of a ring, not of a tree."""
    senders, receivers = Counter(hop.sender for hop in hops), Counter(hop.receiver for hop in hops)
    edges = {hop.edge for hop in hops}
    return max([*senders.values(), *receivers.values()], default=0) < 2 and all((b, a) not in edges for a, b in edges)


def starved(hops: Sequence[Hop]) -> int | None:
    """The one receiver that got least; None where several did."""
    least = min((hop.received for hop in hops), default=0)
    found = [hop.receiver for hop in hops if hop.received == least]
    return found[0] if len(found) == 1 else None


def broken(hops: Sequence[Hop], *, is_ring: bool) -> Hop | None:
    """The one edge of a channel that lost data; of a ring, its receiver must also be the one that got least."""
    found = [hop for hop in hops if hop.is_broken]
    if len(found) != 1 or (is_ring and starved(hops) != found[0].receiver):
        return None
    return found[0]


def frozen(hops: Sequence[Hop], ranks: Iterable[int]) -> int | None:
    """The one of these ranks whose kernel stopped taking what it was sent.

    Args:
        hops: Of one channel of a ring, those that are not through on both sides.
        ranks: Who has not completed. What one of them sends and is not among the hops, is through.
    """
    if any(hop.is_broken or hop.received < hop.transmitted for hop in hops) or not covers(hops, ranks):
        return None  # something is on the way or lost: that a receiver stands still may come of it
    came = {hop.receiver: hop for hop in hops}
    sent = {hop.sender: hop.transmitted for hop in hops}
    moved = {rank: came[rank].consumed + sent.get(rank, came[rank].steps) for rank in ranks}
    least = min(moved.values(), default=0)
    found = [rank for rank, count in moved.items() if count == least]
    return found[0] if len(found) == 1 and came[found[0]].consumed < came[found[0]].received else None


def furthest_behind(hops: Sequence[Hop]) -> frozenset[tuple[int, int]]:
    """The edges with the least step over all channels. Ties are all named: their times are of several clocks."""
    least = min((hop.step for hop in hops), default=0)
    return frozenset(hop.edge for hop in hops if hop.step == least)
