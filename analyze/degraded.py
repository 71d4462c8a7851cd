"""Links that work badly without going down: packets are lost, are too large for a hop, arrive late or queue up.

Asked where a round was slow or hangs that all members entered, and no fault that a machine told of explains it. What is
bad on edges without a common end is of no host: the fabric between them is congested.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import polars as pl

from roundk.analyze import flows, onpath
from roundk.analyze.case import Case
from roundk.analyze.finding import Evidence, Finding, Reason
from roundk.analyze.flows import Edge, Traffic
from roundk.analyze.names import Cause, Confidence, Structure
from roundk.analyze.onpath import Path
from roundk.analyze.phrases import NS_PER_S, duration
from roundk.analyze.told import short_host

_ASKED: Final = frozenset(
    {
        Structure.SLOW_TRANSFER,
        Structure.ALL_ENTERED_NONE_COMPLETED,
        Structure.PARTIAL_COMPLETION,
        Structure.STUCK_IN_INIT,
    }
)

MARGIN_NS: Final = NS_PER_S
"""Counters are read once a second, and a transfer hangs from a moment in which it had run for a while."""

_MTU_COUNTERS: Final = ("TCPMTUPFail", "FragFails", "InTooBigErrors")
_SHOWN: Final = 3
_US: Final = 1_000


@dataclass(frozen=True)
class _Found:
    """A cause with the hosts and ports that it lies at."""

    cause: Cause
    sure: Confidence
    because: str
    evidence: tuple[Evidence, ...]
    hosts: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()


def explained(case: Case, finding: Finding) -> Finding:
    """A finding with the bad link that explains it; the finding itself where none does.

    Args:
        case: The case.
        finding: Without a known cause.
    """
    if finding.structure not in _ASKED or finding.culprits or finding.onset_ns is None or finding.group is None:
        return finding
    path = onpath.path_of(case, finding)
    if len(path.hosts) < 2:
        return finding
    until = None if finding.until_ns is None else finding.until_ns + MARGIN_NS
    seen = flows.traffic(case.trace, finding.onset_ns - MARGIN_NS, until)
    seen = _of(seen, path.hosts)
    found = _mtu(case, finding, path, seen) or _loss(finding, seen) or _slow(seen)
    return finding if found is None else _with(finding, path, found)


def _of(seen: Traffic, hosts: frozenset[str]) -> Traffic:
    """Only what is between hosts of the path."""

    def own(edges: Iterable[Edge]) -> tuple[Edge, ...]:
        return tuple(edge for edge in edges if edge.sender in hosts and edge.peer in hosts)

    timeouts = {host: count for host, count in seen.timeouts.items() if host in hosts}
    return replace(seen, stalled=own(seen.stalled), lossy=own(seen.lossy), slow=own(seen.slow), timeouts=timeouts)


def _with(finding: Finding, path: Path, found: _Found) -> Finding:
    links = tuple(
        (host, device, None) for host in found.hosts for device in sorted(path.ports.get(host, frozenset()))[:1]
    )
    return replace(
        finding,
        summary=f"{finding.summary.rstrip('.')}; {found.because}.",
        hosts=(*finding.hosts, *found.hosts),
        links=(*finding.links, *links),
        reason=Reason(found.cause, found.sure, found.because, found.evidence, found.against),
        evidence=(*finding.evidence, *found.evidence),
        next_steps=(*found.steps, *finding.next_steps),
    )


def _loss(finding: Finding, seen: Traffic) -> _Found | None:
    """Packets that do not arrive, with both ports up."""
    edges = seen.stalled or (seen.lossy if seen.timeouts else ())
    if not edges and not seen.timeouts:
        return None
    is_slow = finding.structure is Structure.SLOW_TRANSFER
    what = "packets are lost" if is_slow else "packets are not acknowledged"
    shown = (*_shown(edges), *(() if edges else _timeouts(seen)))
    if not edges:
        return _loss_by_hosts(seen, what, shown)
    ends = flows.common_ends(edges)
    if not ends:
        return _Found(
            cause=Cause.CONGESTION if is_slow else Cause.TRANSPORT_ERROR,
            sure=Confidence.LOW,
            because=f"{what} between several hosts that have no end in common",
            evidence=shown,
            steps=("look at the switches between these hosts: queues, drops, an uplink that several flows share",),
        )
    return _at(Cause.LINK_DEGRADED, what, edges, ends, shown)


def _at(cause: Cause, what: str, edges: tuple[Edge, ...], ends: list[str], shown: tuple[Evidence, ...]) -> _Found:
    """Trouble on edges with an end in common."""
    host = ends[0]
    others = sorted({end for edge in edges for end in (edge.sender, edge.peer)} - {host})
    is_one = len(ends) == 1
    where = f"between {host} and {', '.join(others)}"
    against = () if is_one else (f"the other end, {ends[1]}, may be at fault as well: only this edge shows it",)
    port = "port" if is_one else "ports"
    return _Found(
        cause=cause,
        sure=Confidence.MEDIUM if is_one else Confidence.LOW,
        because=f"{what} {where}, and no port went down",
        evidence=shown,
        hosts=(host,),
        against=against,
        steps=(f"look at the cable, the {port} and the switch port of {' and of '.join(ends)}: drops, errors, rate",),
    )


def _loss_by_hosts(seen: Traffic, what: str, shown: tuple[Evidence, ...]) -> _Found:
    """Without the state of connections only who had to send again is known, not on the way to whom."""
    hosts = sorted(seen.timeouts, key=lambda host: (-seen.timeouts[host], host))
    return _Found(
        cause=Cause.LINK_DEGRADED,
        sure=Confidence.LOW,
        because=f"{what}: TCP of {', '.join(hosts[:_SHOWN])} had to send again, and no port went down",
        evidence=shown,
        against=("on the way to whom is not told",),
        steps=(f"look at the links between {', '.join(hosts[:_SHOWN])} and their peers",),
    )


def _slow(seen: Traffic) -> _Found | None:
    """Everything arrives, and late."""
    if not seen.slow:
        return None
    what = "packets arrive late, and none is lost"
    ends = flows.common_ends(seen.slow)
    if ends:
        return _at(Cause.CONGESTION, what, seen.slow, ends, _shown(seen.slow))
    return _Found(
        cause=Cause.CONGESTION,
        sure=Confidence.LOW,
        because=f"{what}, between several hosts that have no end in common",
        evidence=_shown(seen.slow),
        steps=("look at the switches between these hosts: queues, pauses, an uplink that several flows share",),
    )


def _shown(edges: Iterable[Edge]) -> tuple[Evidence, ...]:
    found = []
    for edge in list(edges)[:_SHOWN]:
        says = []
        if edge.lost:
            says.append(f"{edge.lost} segments sent again")
        if edge.stalled:
            says.append(f"{edge.stalled} timeouts in a row")
        if edge.rtt_us is not None and edge.usual_us is not None:
            says.append(f"round trip {duration(edge.rtt_us * _US)} where {duration(edge.usual_us * _US)} was usual")
        found.append(Evidence(f"{edge.sender} to {edge.peer}: {', '.join(says)}", edge.source))
    return tuple(found)


def _timeouts(seen: Traffic) -> tuple[Evidence, ...]:
    ordered = sorted(seen.timeouts.items(), key=lambda pair: (-pair[1], pair[0]))
    return tuple(Evidence(f"{host}: TCPTimeouts went up by {count}", "") for host, count in ordered[:_SHOWN])


def _mtu(case: Case, finding: Finding, path: Path, seen: Traffic) -> _Found | None:
    """A hop that large packets do not pass."""
    if finding.structure is Structure.SLOW_TRANSFER:
        return None
    sizes = _sizes(case, path)
    told = _path_mtu(case, path, finding.onset_ns)
    if not (seen.timeouts or seen.stalled) or (len(set(sizes.values())) < 2 and not told):
        return None
    usual = max(set(sizes.values()), key=list(sizes.values()).count) if sizes else None
    odd = sorted(place for place, size in sizes.items() if size != usual)
    hosts = tuple(dict.fromkeys(host for host, _ in odd))
    shown = tuple(
        Evidence(f"{host}: mtu of {device} is {sizes[host, device]}, of most others {usual}") for host, device in odd
    )
    return _Found(
        cause=Cause.MTU_MISMATCH,
        sure=Confidence.MEDIUM,
        because="large packets do not get through: "
        + (f"the MTU of {', '.join(hosts)} differs from that of the others" if hosts else "the path's MTU is smaller"),
        evidence=(*shown, *told, *_shown(seen.stalled)),
        hosts=hosts[:1],
        steps=("set one MTU on all hosts and switch ports of the job; ping -M do -s SIZE between the hosts shows it",),
    )


def _sizes(case: Case, path: Path) -> dict[tuple[str, str], int]:
    """The last MTU of the ports that the group uses, by host and device."""
    rows = case.trace.counters.filter(
        pl.col("kind") == "netdev", pl.col("counter") == "mtu", pl.col("value").is_not_null()
    )
    found = {}
    for host, device, value in rows.sort("time_ns").select("host", "device", "value").iter_rows():
        name = short_host(host) or ""
        if name in path.hosts and device in path.ports.get(name, frozenset()):
            found[name, device] = int(value)
    return found


def _path_mtu(case: Case, path: Path, onset_ns: int | None) -> tuple[Evidence, ...]:
    """Counters of the path's MTU that moved since the waiting began."""
    rows = case.trace.counters.filter(
        pl.col("kind") == "tcp",
        pl.col("counter").is_in(_MTU_COUNTERS),
        pl.col("value").is_not_null(),
        pl.col("time_ns").is_null() | (pl.col("time_ns") >= (onset_ns or 0) - MARGIN_NS),
    )
    keys = ["host", "counter"]
    moved = (
        rows.sort("time_ns")
        .group_by(keys, maintain_order=True)
        .agg(moved=pl.col("value").last() - pl.col("value").first(), source=pl.col("source").last())
    )
    return tuple(
        Evidence(f"{host}: {counter} went up by {delta}", source)
        for host, counter, delta, source in moved.filter(pl.col("moved") > 0).iter_rows()
        if short_host(host) in path.hosts
    )
