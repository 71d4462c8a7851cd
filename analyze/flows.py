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
        rtt_us, usual_us: Median round trip in the time and before it; None: not slow.
        source: The file that tells it.
    """

    sender: str
    peer: str
    lost: int
    stalled: int
    reordered: int
    rtt_us: int | None
    usual_us: int | None
    source: str

    @property
    def growth_us(self) -> int:
        """How much longer a round trip takes than before; 0: not slow."""
        return 0 if self.rtt_us is None or self.usual_us is None else self.rtt_us - self.usual_us


@dataclass(frozen=True)
class Traffic:
    """What was wrong with the traffic in a time.

    Attributes:
        stalled, lossy, slow: Edges whose data were not acknowledged, were sent again and again, or took long; of the
            last two the worst, and those that are about as bad.
        timeouts: Retransmission timeouts by host, of its own counters.
    """

    stalled: tuple[Edge, ...]
    lossy: tuple[Edge, ...]
    slow: tuple[Edge, ...]
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
    slow = [edge for edge in edges if edge.growth_us]
    return Traffic(
        stalled=tuple(edge for edge in edges if edge.stalled),
        lossy=_worst(lossy, lambda edge: edge.lost),
        slow=_worst(slow, lambda edge: edge.growth_us),
        timeouts=timeouts,
    )


def _worst(edges: list[Edge], weight: Callable[[Edge], int]) -> tuple[Edge, ...]:
    """The edges that are about as bad as the worst."""
    most = max(map(weight, edges), default=0)
    return tuple(edge for edge in edges if weight(edge) >= DOMINANT * most)


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
    usual = trips.filter(pl.col("time_ns") < begin_ns).group_by(keys).agg(usual=pl.col("value").median())
    now = trips.filter("inside").group_by(keys).agg(rtt=pl.col("value").median())
    for other in (backoff, usual, now):
        table = table.join(other, on=keys, how="left")
    slow = (pl.col("rtt") >= SLOWER * pl.col("usual")) & ((pl.col("rtt") - pl.col("usual")) * _NS_PER_US >= SLOW_NS)
    table = table.with_columns(pl.when(slow).then(name) for name in ("rtt", "usual"))
    return [
        Edge(
            sender=short_host(row["host"]) or "",
            peer=hosts.get(row["device"], row["device"]),
            lost=int(row["lost"] or 0),
            stalled=int(row["stalled"] or 0),
            reordered=int(row["reordered"] or 0),
            rtt_us=None if row["rtt"] is None else int(row["rtt"]),
            usual_us=None if row["usual"] is None else int(row["usual"]),
            source=row["source"],
        )
        for row in table.sort(keys).iter_rows(named=True)
    ]


def addresses(trace: Trace) -> dict[str, str]:
    """Hosts by the addresses that they have; not by one that several have, as a bridge of containers."""
    found: dict[str, set[str]] = {}
    for fact in told(trace, ("host_address",)):
        address = fact.text_of("address")
        if address and fact.host:
            found.setdefault(address, set()).add(fact.host)
    return {address: next(iter(hosts)) for address, hosts in found.items() if len(hosts) == 1}
