"""What the TCP connections between hosts say of a time: which edge loses packets, stalls, or has become slow.

A host's own counters (`TCPTimeouts`, retransmissions) tell that something was lost, and not on the way to whom; the
state of its connections (`kind` peer of the counters, `device` the peer's address) does. The end that all bad edges
have in common is the suspect; of a single edge either end may be.

In a run without loss `TCPTimeouts` stays 0, whatever the load; retransmissions alone come and go in healthy runs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

import polars as pl

from roundk.analyze.phrases import NS_PER_MS
from roundk.analyze.told import short_host, told
from roundk.analyze.trace import Trace

SLOWER: Final = 4
"""A round trip that takes so many times what it took outside of the time is a slow one."""

SLOW_NS: Final = 5 * NS_PER_MS
"""Least growth of a round trip that counts: the scheduler of a busy host adds some milliseconds."""

PERSISTENT: Final = 0.5
"""Share of the looks within a time that must show a slow round trip."""

LOSSY: Final = 20
"""Retransmitted segments from which on, with a timeout or a lost retransmission beside them, an edge is a lossy one."""

_TIMEOUTS: Final = "TCPTimeouts"
_NS_PER_US: Final = 1_000


@dataclass(frozen=True)
class Edge:
    """One direction of the traffic between two hosts that shows a trouble.

    Attributes:
        sender: Host whose connections show it.
        peer: The host at the other end, or its address where no host has that.
        lost: Retransmitted segments.
        stalled: Largest number of timeouts in a row on one connection (back-off).
        rtt_us, usual_us: Median round trip in the time and outside of it; None: not slow.
        source: The file that tells it.
    """

    sender: str
    peer: str
    lost: int
    stalled: int
    rtt_us: int | None
    usual_us: int | None
    source: str


@dataclass(frozen=True)
class Traffic:
    """What was wrong with the traffic in a time.

    Attributes:
        stalled, lossy, slow: Edges whose data were not acknowledged, were sent again and again, or took long.
        timeouts: Retransmission timeouts by host, of its own counters.
        is_sampled: TCP was looked at within the time.
    """

    stalled: tuple[Edge, ...]
    lossy: tuple[Edge, ...]
    slow: tuple[Edge, ...]
    timeouts: dict[str, int]
    is_sampled: bool


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
    moved = _moved(rows.filter(pl.col("kind") == "tcp", pl.col("counter") == _TIMEOUTS), ["host"])
    timeouts = {
        short_host(host) or "": int(delta) for host, delta in moved.select("host", "moved").iter_rows() if delta
    }
    edges = _edges(trace, rows.filter(pl.col("kind") == "peer"))
    is_sampled = rows.filter(pl.col("kind") == "tcp", "inside").height > 0
    return Traffic(
        stalled=tuple(edge for edge in edges if edge.stalled),
        lossy=tuple(edge for edge in edges if edge.lost >= LOSSY),
        slow=tuple(edge for edge in edges if edge.rtt_us is not None),
        timeouts=timeouts,
        is_sampled=is_sampled,
    )


def common_ends(edges: tuple[Edge, ...]) -> list[str]:
    """The hosts that are an end of all edges, the one that is an end of the most troubled first.

    Two for a single edge, at most one for edges to several peers, none for edges without a common end.
    """
    if not edges:
        return []
    shared = set.intersection(*({edge.sender, edge.peer} for edge in edges))
    weight: Counter[str] = Counter()
    for edge in edges:
        # Where both directions of one pair are bad, it is one edge of two ends.
        weight[edge.sender] += max(edge.lost, 1)
    return sorted(shared, key=lambda host: (-weight[host], host))


def _moved(rows: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """How far counters went up within the time: against their last value before it."""
    return (
        rows.sort(*keys, "time_ns")
        .with_columns(step=pl.col("value").diff().over(keys))
        .filter("inside", pl.col("step") > 0)
        .group_by(keys, maintain_order=True)
        .agg(moved=pl.col("step").sum())
    )


def _edges(trace: Trace, rows: pl.DataFrame) -> list[Edge]:
    if rows.is_empty():
        return []
    keys = ["host", "device"]
    hosts = addresses(trace)
    lost = _moved(rows.filter(pl.col("counter") == "retrans_total"), keys).rename({"moved": "lost"})
    backoff = rows.filter(pl.col("counter") == "backoff", "inside").group_by(keys).agg(stalled=pl.col("value").max())
    trips = rows.filter(pl.col("counter") == "rtt_us")
    usual = trips.filter(~pl.col("inside")).group_by(keys).agg(usual=pl.col("value").median())
    slow = (
        trips.filter("inside")
        .join(usual, on=keys)
        .group_by(keys)
        .agg(
            rtt=pl.col("value").median(),
            usual=pl.col("usual").first(),
            share=(
                (pl.col("value") >= SLOWER * pl.col("usual"))
                & ((pl.col("value") - pl.col("usual")) * _NS_PER_US >= SLOW_NS)
            ).mean(),
        )
        .filter(pl.col("share") >= PERSISTENT)
    )
    sources = rows.group_by(keys, maintain_order=True).agg(source=pl.col("source").last())
    table = sources.join(lost, on=keys, how="left").join(backoff, on=keys, how="left").join(slow, on=keys, how="left")
    return [
        Edge(
            sender=short_host(row["host"]) or "",
            peer=hosts.get(row["device"], row["device"]),
            lost=int(row["lost"] or 0),
            stalled=int(row["stalled"] or 0),
            rtt_us=None if row["rtt"] is None else int(row["rtt"]),
            usual_us=None if row["usual"] is None else int(row["usual"]),
            source=row["source"],
        )
        for row in table.sort(keys).iter_rows(named=True)
    ]


def addresses(trace: Trace) -> dict[str, str]:
    """Hosts by the addresses that their connections have at their own end."""
    found = {}
    for fact in told(trace, ("host_address",)):
        address = fact.text_of("address")
        if address and fact.host:
            found[address] = fact.host
    return found
