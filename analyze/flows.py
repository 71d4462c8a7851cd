"""What the TCP connections between hosts say of a time: which edge loses packets, stalls, or has become slow.

A host's own counters (`TCPTimeouts`, retransmissions) tell that something was lost, and not on the way to whom; the
state of its connections (`kind` peer of the counters, `device` the peer's address) does. The end that all bad edges
have in common is the suspect; of a single edge either end may be.

In a run without loss `TCPTimeouts` stays 0, whatever the load; retransmissions alone come and go in healthy runs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import polars as pl

from roundk.analyze.phrases import NS_PER_MS
from roundk.analyze.told import short_host, told
from roundk.analyze.trace import Trace

SLOWER: Final = 3
"""A round trip that takes so many times what it took before is a slow one."""

SLOW_NS: Final = 5 * NS_PER_MS
"""Least growth of a round trip that counts: the scheduler of a busy host adds some milliseconds."""

LOSSY: Final = 20
"""Least number of segments sent again on an edge that counts."""

LOSSY_SHARE: Final = 0.005
"""Share of its host's segments that must be sent again on it. Where nothing is lost it stays below a thousandth."""

QUEUED: Final = 32 * 1024
"""Least bytes that wait at a sender, in the mean, for a queue that stands: half a full-sized send of the kernel."""

QUEUE_SHARE: Final = 0.7
"""Share of the longest queue: a host that must wait to send reads less, so that queues grow behind it too."""

IDLE_SHARE: Final = 0.02
"""Share of the bytes of the busiest edge below which an edge carries none of the job's data."""

CLEAR: Final = 2
"""Of two ends, the one whose other edges have become slower by so many times as much is the one at fault."""

DOMINANT: Final = 0.4
"""Share of the worst edge's trouble: edges that have so much of it are of the same trouble, others show its echo."""

COMMON: Final = 0.7
"""Share of the trouble of all bad edges that a host must be an end of to be the one that they have in common."""

_EQUAL: Final = 0.95
_TIMEOUTS: Final = "TCPTimeouts"
_SEGMENTS: Final = "OutSegs"
_NS_PER_US: Final = 1_000


@dataclass(frozen=True)
class Edge:
    """One direction of the traffic between two hosts that shows a trouble.

    Attributes:
        sender: Host whose connections show it.
        peer: The host at the other end, or its address where no host has that.
        lost: Retransmitted segments.
        stalled: Largest number of timeouts in a row on one connection (back-off).
        reordered: How often segments were seen to arrive out of order.
        rtt_us, usual_us: Median round trip in the time and before it; None: not told.
        queued, usually_queued: Bytes that wait at the sender to be sent once, in the mean over the time; the median of
            those before it.
        is_idle: Next to nothing is sent there, beside what goes to other hosts: its round trips are those of
            acknowledgements that nobody hurries.
        source: The file that tells it.
    """

    sender: str
    peer: str
    lost: int
    stalled: int
    reordered: int
    rtt_us: int | None
    usual_us: int | None
    queued: int
    usually_queued: int
    is_idle: bool
    source: str

    @property
    def growth_us(self) -> int:
        """How much longer a round trip takes than before; 0: no longer, or not told."""
        if self.rtt_us is None or self.usual_us is None or self.is_idle:
            return 0
        return max(0, self.rtt_us - self.usual_us)

    @property
    def is_slow(self) -> bool:
        """Its round trips take much longer than before."""
        return self.growth_us * _NS_PER_US >= SLOW_NS and (self.rtt_us or 0) >= SLOWER * (self.usual_us or 0)

    @property
    def is_queueing(self) -> bool:
        """The sender has data that the network does not take, and had not before."""
        return self.queued >= max(QUEUED, SLOWER * self.usually_queued)


@dataclass(frozen=True)
class Traffic:
    """What was wrong with the traffic in a time.

    Attributes:
        stalled, lossy, queueing, slow: Edges whose data were not acknowledged, were sent again and again, waited to be
            sent, or took long; of the last three the worst, and those that are about as bad.
        edges: All edges.
        timeouts: Retransmission timeouts by host, of its own counters.
    """

    stalled: tuple[Edge, ...]
    lossy: tuple[Edge, ...]
    queueing: tuple[Edge, ...]
    slow: tuple[Edge, ...]
    edges: tuple[Edge, ...]
    timeouts: dict[str, int]


def traffic(trace: Trace, begin_ns: int, end_ns: int | None) -> Traffic:
    """The troubles of the traffic between hosts within a time.

    Args:
        trace: What the sources found.
        begin_ns: Begin of the time, Unix ns.
        end_ns: Its end; None: the end of the recording.
    """
    rows = trace.counters.filter(pl.col("kind").is_in(["tcp", "peer"]), pl.col("value").is_not_null())
    rows = rows.filter(pl.col("time_ns").is_not_null()).with_columns(
        inside=(pl.col("time_ns") >= begin_ns) & (pl.lit(end_ns is None) | (pl.col("time_ns") <= (end_ns or 0)))
    )
    timeouts, segments = (_of_hosts(rows, name) for name in (_TIMEOUTS, _SEGMENTS))
    edges = _edges(trace, rows.filter(pl.col("kind") == "peer"), begin_ns)
    lossy = [
        edge
        for edge in edges
        if edge.lost >= LOSSY
        and (timeouts.get(edge.sender) or edge.lost >= LOSSY_SHARE * segments.get(edge.sender, math.inf))
    ]
    return Traffic(
        stalled=tuple(edge for edge in edges if edge.stalled),
        lossy=_worst(lossy, lambda edge: edge.lost),
        queueing=_worst([edge for edge in edges if edge.is_queueing], lambda edge: edge.queued, QUEUE_SHARE),
        slow=_worst([edge for edge in edges if edge.is_slow], lambda edge: edge.growth_us),
        edges=tuple(edges),
        timeouts=timeouts,
    )


def _worst(edges: list[Edge], weight: Callable[[Edge], int], share: float = DOMINANT) -> tuple[Edge, ...]:
    """The edges that are about as bad as the worst."""
    most = max(map(weight, edges), default=0)
    return tuple(edge for edge in edges if weight(edge) >= share * most)


def _of_hosts(rows: pl.DataFrame, counter: str) -> dict[str, int]:
    """How far a counter of the hosts went up within the time."""
    moved = _moved(rows.filter(pl.col("kind") == "tcp", pl.col("counter") == counter), ["host"])
    return {short_host(host) or "": int(delta) for host, delta in moved.select("host", "moved").iter_rows() if delta}


def stalls(edge: Edge) -> int:
    """How long an edge has stalled, as timeouts double."""
    return max(edge.stalled, 1)


def common_ends(edges: tuple[Edge, ...], weight: Callable[[Edge], int]) -> list[str]:
    """The hosts that are an end of nearly all the trouble of some edges, the one that is an end of the most first.

    Two for a single edge, at most one for edges to several peers, none for edges without a common end.

    Args:
        edges: Edges with one kind of trouble.
        weight: How much of it an edge has.
    """
    by_host: Counter[str] = Counter()
    as_sender: Counter[str] = Counter()
    total = 0
    for edge in edges:
        amount = weight(edge)
        total += amount
        as_sender[edge.sender] += amount
        for host in {edge.sender, edge.peer}:
            by_host[host] += amount
    least = max(COMMON * total, _EQUAL * max(by_host.values(), default=0))
    shared = [host for host, amount in by_host.items() if amount >= least]
    return sorted(shared, key=lambda host: (-by_host[host], -as_sender[host], host))


def narrow_end(queueing: tuple[Edge, ...], edges: tuple[Edge, ...]) -> list[str]:
    """Where the network takes less than the senders have: the ends in common of queueing edges, the likelier first.

    A port that sends too slowly delays the acknowledgements of what it receives, one that receives too slowly those of
    what it sends: the other edges of the end at fault become slower too, those of the other end do not.

    Args:
        queueing: Edges with a queue that stands.
        edges: All edges.

    Returns:
        One host; two where it may be either; none where the edges have no end in common.
    """
    ends = common_ends(queueing, lambda edge: edge.queued)
    if len(ends) < 2:
        return ends
    others = {end: [edge for edge in edges if edge not in queueing and end in (edge.sender, edge.peer)] for end in ends}
    slower = {end: sum(edge.growth_us for edge in others[end]) for end in ends}
    ends.sort(key=lambda end: -slower[end])
    least_us = SLOW_NS // SLOWER // _NS_PER_US
    if slower[ends[0]] >= max(least_us, CLEAR * slower[ends[1]]):
        return ends[:1]
    # With acknowledgements that come late, data wait to be sent on those edges as well.
    return sorted(ends, key=lambda end: -sum(edge.queued for edge in others[end]))


def _moved(rows: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """How far counters went up within the time: against their last value before it."""
    return (
        rows.sort(*keys, "time_ns")
        .with_columns(step=pl.col("value").diff().over(keys))
        .filter("inside", pl.col("step") > 0)
        .group_by(keys, maintain_order=True)
        .agg(moved=pl.col("step").sum())
    )


def _edges(trace: Trace, rows: pl.DataFrame, begin_ns: int) -> list[Edge]:
    rows = rows.filter(~pl.col("device").is_in(_elsewhere(trace, set(rows["device"]))))
    if rows.is_empty():
        return []
    keys = ["host", "device"]
    hosts = addresses(trace)
    table = rows.group_by(keys, maintain_order=True).agg(source=pl.col("source").last())
    for name, counter in (("lost", "retrans_total"), ("reordered", "reord_seen")):
        moved = _moved(rows.filter(pl.col("counter") == counter), keys).rename({"moved": name})
        table = table.join(moved, on=keys, how="left")
    backoff = rows.filter(pl.col("counter") == "backoff", "inside").group_by(keys).agg(stalled=pl.col("value").max())
    trips = rows.filter(pl.col("counter") == "rtt_us")
    waiting = rows.filter(pl.col("counter") == "notsent_bytes").sort(*keys, "time_ns")
    # A queue is told of when it changes, so each value counts for as long as it stood.
    stood = (pl.col("time_ns").shift(-1).over(keys) - pl.col("time_ns")).fill_null(0)
    waiting = waiting.with_columns(stood=stood, weighted=stood.cast(pl.Float64) * pl.col("value"))
    mean = (pl.col("weighted").sum() / pl.col("stood").sum()).fill_nan(0)
    table = table.join(waiting.filter("inside").group_by(keys).agg(queued=mean), on=keys, how="left")
    # Before the trouble a look a second may meet a single transfer, which a mean would take for a queue.
    before = pl.col("time_ns") < begin_ns
    for name, part in (
        ("rtt", trips.filter("inside")),
        ("usual_rtt", trips.filter(before)),
        ("usual_queued", waiting.filter(before)),
    ):
        median = part.group_by(keys).agg(pl.col("value").median().alias(name))
        table = table.join(median, on=keys, how="left")
    sent = rows.filter(pl.col("counter") == "bytes_acked").group_by(keys).agg(sent=pl.col("value").max())
    for other in (backoff, sent):
        table = table.join(other, on=keys, how="left")
    table = table.with_columns(is_idle=(pl.col("sent") < IDLE_SHARE * pl.col("sent").max()).fill_null(value=False))
    return [
        Edge(
            sender=short_host(row["host"]) or "",
            peer=hosts.get(row["device"], row["device"]),
            lost=int(row["lost"] or 0),
            stalled=int(row["stalled"] or 0),
            reordered=int(row["reordered"] or 0),
            rtt_us=None if row["rtt"] is None else int(row["rtt"]),
            usual_us=None if row["usual_rtt"] is None else int(row["usual_rtt"]),
            queued=int(row["queued"] or 0),
            usually_queued=int(row["usual_queued"] or 0),
            is_idle=row["is_idle"],
            source=row["source"],
        )
        for row in table.sort(keys).iter_rows(named=True)
    ]


def _elsewhere(trace: Trace, seen: set[str]) -> list[str]:
    """Addresses of ports that the job does not use, of hosts to which there are connections by the used ones."""
    used: dict[str, set[str]] = {}
    every: dict[str, set[str]] = {}
    for fact in told(trace, ("host_address",)):
        address, host = fact.text_of("address"), fact.host
        if address and host:
            every.setdefault(host, set()).add(address)
            if fact.fields.get("is_used"):
                used.setdefault(host, set()).add(address)
    return sorted({address for host, own in used.items() if own & seen for address in every[host] - own})


def addresses(trace: Trace) -> dict[str, str]:
    """Hosts by the addresses that they have; not by one that several have, as a bridge of containers."""
    found: dict[str, set[str]] = {}
    for fact in told(trace, ("host_address",)):
        address = fact.text_of("address")
        if address and fact.host:
            found.setdefault(address, set()).add(fact.host)
    return {address: next(iter(hosts)) for address, hosts in found.items() if len(hosts) == 1}
