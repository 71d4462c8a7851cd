"""A hop that large packets do not pass: what tells it, where a round hangs and TCP runs into timeouts.

Ports of the group with different MTUs; counters of the path's MTU; packets that a port dropped while it was up; a round
that hangs as the first of large messages, after small ones that passed. Bridges and switches tell nothing themselves.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Final

import polars as pl

from roundk.analyze.case import Case
from roundk.analyze.finding import Evidence, Finding
from roundk.analyze.onpath import Path
from roundk.analyze.phrases import NS_PER_S
from roundk.analyze.told import short_host

MARGIN_NS: Final = NS_PER_S
"""Counters are read once a second."""

SMALL: Final = 1_400
"""Bytes that any path carries in one packet, with its headers: IPv6 demands 1,280, Ethernet carries 1,500."""

LEAST_SMALL: Final = 3
"""Small rounds that completed, from which on it can be said that they pass."""

LEAST_DROPS: Final = 5
"""Packets that a port drops while it is up; of a busy one some may be for unknown protocols."""

STANDS_OUT: Final = 3
"""Of the drops of the other hosts' ports: what all drop alike, as frames of protocols that nobody takes, is no MTU."""

_DOWN_WORDS: Final = ("down", "lowerlayerdown", "notpresent")
"""Source: Linux, Documentation/networking/operstates.rst."""

_PATH_COUNTERS: Final = ("TCPMTUPFail", "FragFails", "InTooBigErrors")
_DROP_COUNTERS: Final = ("tx_dropped", "rx_dropped", "rx_length_errors")


@dataclass(frozen=True)
class Hop:
    """What tells that a hop does not pass large packets.

    Attributes:
        because: A clause for the sentence.
        hosts: At whose port it is, the likeliest first; empty where that is not told.
        evidence: What shows it.
    """

    because: str
    hosts: tuple[str, ...]
    evidence: tuple[Evidence, ...]


def hop(case: Case, finding: Finding, path: Path) -> Hop | None:
    """The hop, where something tells of one; that TCP runs into timeouts is for the caller to know.

    Args:
        case: The case.
        finding: Of a round that hangs.
        path: Its hosts and ports.
    """
    odd, path_told, drops = _odd(case, path), _path_told(case, path, finding), _drops(case, path, finding)
    if odd:
        hosts = tuple(dict.fromkeys(host for host, _ in odd))
        return Hop(f"the MTU of {', '.join(hosts)} differs from that of the others", hosts, tuple(e for _, e in odd))
    if path_told:
        return Hop("the path's MTU is smaller", tuple(host for host, _ in drops), tuple(path_told))
    if not drops and not _is_first_large(case, finding):
        return None
    hosts = tuple(host for host, _ in drops)
    small = "small messages passed before and this is the first large one"
    because = small if not drops else f"the port of {hosts[0]} drops packets while it is up"
    return Hop(because, hosts, tuple(e for _, e in drops))


def _odd(case: Case, path: Path) -> list[tuple[str, Evidence]]:
    """Ports of the group whose last MTU is not that of most."""
    rows = case.trace.counters.filter(
        pl.col("kind") == "netdev", pl.col("counter") == "mtu", pl.col("value").is_not_null()
    )
    sizes: dict[tuple[str, str], tuple[int, str]] = {}
    for host, device, value, source in rows.sort("time_ns").select("host", "device", "value", "source").iter_rows():
        if _is_used(path, host, device):
            sizes[short_host(host) or "", device] = int(value), source
    values = [size for size, _ in sizes.values()]
    usual = max(set(values), key=values.count, default=None)
    return [
        (host, Evidence(f"{host}: the MTU of {device} is {size}, of most others {usual}", source))
        for (host, device), (size, source) in sorted(sizes.items())
        if size != usual
    ]


def _is_used(path: Path, host: str | None, device: str) -> bool:
    name = short_host(host) or ""
    return name in path.hosts and device in path.ports.get(name, frozenset())


def _moved(case: Case, finding: Finding, kind: str, counters: tuple[str, ...]) -> pl.DataFrame:
    """How far counters went up since shortly before the waiting began, the most first."""
    since = (finding.onset_ns or 0) - MARGIN_NS
    keys = ["host", "device", "counter"]
    before = (pl.col("time_ns") < since).fill_null(value=False)
    return (
        case.trace.counters.filter(
            pl.col("kind") == kind, pl.col("counter").is_in(list(counters)), pl.col("value").is_not_null()
        )
        .sort("time_ns")
        .group_by(keys, maintain_order=True)
        .agg(
            moved=pl.col("value").last() - pl.coalesce(pl.col("value").filter(before).last(), pl.col("value").first()),
            source=pl.col("source").last(),
        )
        .filter(pl.col("moved") > 0)
        .sort("moved", descending=True)
    )


def _path_told(case: Case, path: Path, finding: Finding) -> list[Evidence]:
    rows = _moved(case, finding, "tcp", _PATH_COUNTERS)
    return [
        Evidence(f"{host}: {counter} went up by {moved}", source)
        for host, counter, moved, source in rows.select("host", "counter", "moved", "source").iter_rows()
        if short_host(host) in path.hosts
    ]


def _drops(case: Case, path: Path, finding: Finding) -> list[tuple[str, Evidence]]:
    """Used ports that are up and drop packets as those of the other hosts do not."""
    down = _down(case)
    rows = [
        row
        for row in _moved(case, finding, "netdev", _DROP_COUNTERS).iter_rows(named=True)
        if _is_used(path, row["host"], row["device"]) and (row["host"], row["device"]) not in down
    ]
    found = []
    for row in rows:
        others = {short_host(one["host"]): one["moved"] for one in rows if one["counter"] == row["counter"]}
        others.pop(short_host(row["host"]))
        quiet = [0] * (len(path.hosts) - 1 - len(others))
        usual = statistics.median([*others.values(), *quiet]) if len(path.hosts) > 1 else 0
        if row["moved"] >= max(LEAST_DROPS, STANDS_OUT * usual):
            what = f"{row['host']}: {row['counter']} of {row['device']} went up by {row['moved']}"
            found.append((short_host(row["host"]) or "", Evidence(what, row["source"])))
    return found


def _down(case: Case) -> set[tuple[str, str]]:
    """Ports that were without a carrier when last looked at: what they are given to send they drop."""
    is_state = pl.col("counter").is_in(["carrier", "operstate"]) & pl.col("is_read")
    states = case.trace.counters.filter(pl.col("kind") == "netdev", is_state).sort("time_ns")
    last = states.group_by("host", "device", "counter").agg(pl.col("value", "word").last())
    is_down = (
        pl.when(pl.col("counter") == "carrier").then(pl.col("value") == 0).otherwise(pl.col("word").is_in(_DOWN_WORDS))
    )
    return set(last.filter(is_down).select("host", "device").iter_rows())


def _is_first_large(case: Case, finding: Finding) -> bool:
    """Small rounds of the group completed, and none as large as the one that hangs ever did."""
    rounds = case.rounds.filter(pl.col("group") == finding.group, pl.col("bytes").is_not_null())
    here = rounds.filter(pl.col("seq") == finding.seq)["bytes"].max()
    done = rounds.filter(pl.col("completed") == pl.col("size"))["bytes"]
    most = done.max()
    is_small = isinstance(most, int) and most <= SMALL and done.len() >= LEAST_SMALL
    return isinstance(here, int) and here > SMALL and is_small
