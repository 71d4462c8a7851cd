"""Links that work badly without going down: packets are lost, are too large for a hop, arrive late or queue up.

Asked where a round was slow or hangs that all members entered, and no fault that a machine told of explains it. What is
bad on edges without a common end is of no host: the fabric between them is congested. The ports of InfiniBand and RoCE
are asked first, since their traffic is not seen by TCP. What their counters say is `fabric.py`'s.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from roundk.analyze import fabric, flows, mtu, onpath
from roundk.analyze.case import Case
from roundk.analyze.fabric import Fabric, Narrow, Rise
from roundk.analyze.finding import Evidence, Finding, Reason
from roundk.analyze.flows import Edge, Traffic
from roundk.analyze.names import Cause, Confidence, Structure
from roundk.analyze.onpath import Path
from roundk.analyze.phrases import NS_PER_S, duration, number_of

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

_USES: Final = ("used", "unknown")
"""Ports whose counters are asked: those that the group uses, and those of which nothing tells whether it does."""
_ON_TCP: Final = "gloo"
_SEVERAL: Final = 2
"""Hosts from which on a trouble is one of what lies between them."""
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
    links: tuple[tuple[str, str, int | None], ...] = ()
    """Empty: the first port that the group uses on each of `hosts`."""


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
    ports = _ports(case, finding, path)
    found = _mtu(case, finding, path, seen) or _by_ports(finding, path, ports) or _loss(finding, seen) or _slow(seen)
    return _with_others(finding, ports) if found is None else _with(finding, path, found)


def _of(seen: Traffic, hosts: frozenset[str]) -> Traffic:
    """Only what is between hosts of the path."""

    def own(edges: Iterable[Edge]) -> tuple[Edge, ...]:
        return tuple(edge for edge in edges if edge.sender in hosts and edge.peer in hosts)

    timeouts = {host: count for host, count in seen.timeouts.items() if host in hosts}
    return replace(
        seen,
        stalled=own(seen.stalled),
        lossy=own(seen.lossy),
        queueing=own(seen.queueing),
        slow=own(seen.slow),
        edges=own(seen.edges),
        timeouts=timeouts,
    )


def _with(finding: Finding, path: Path, found: _Found) -> Finding:
    links = found.links or tuple(
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


def _ports(case: Case, finding: Finding, path: Path) -> Fabric:
    """What the counters of InfiniBand and RoCE ports tell."""
    uses = _USES if _may_be_ib(case, finding) else ("used",)

    def is_of(host: str, device: str, port: int | None) -> bool:
        return host in path.hosts and path.use(host, device, port) in uses

    # A hang may stand for hours; what made it shows itself while the transport tries again.
    until = finding.until_ns or (finding.onset_ns or 0) + onpath.retry_budget_ns(case.trace)
    return fabric.fabric(case.trace, (finding.onset_ns or 0) - MARGIN_NS, until + MARGIN_NS, is_of)


def _by_ports(finding: Finding, path: Path, seen: Fabric) -> _Found | None:
    return _bad_port(finding, path, seen) or _congested(finding, seen) or _lost_by_ports(seen)


def _with_others(finding: Finding, seen: Fabric) -> Finding:
    """A finding that nothing explains, with what the ports counted all the same."""
    why = (
        (seen.alike, "many hosts alike"),
        (seen.disordered, "normal with adaptive routing"),
        (seen.waits, "one host"),
    )
    pieces = [
        replace(piece, what=f"seen, not taken as the cause ({text}): {piece.what}")
        for rises, text in why
        for piece in fabric.shown(rises)
    ]
    new = [piece for piece in pieces if piece not in finding.evidence]
    return replace(finding, evidence=(*finding.evidence, *new)) if new else finding


def _may_be_ib(case: Case, finding: Finding) -> bool:
    """Whether a group may send over HCAs of which nothing tells that it does: gloo does not."""
    return finding.group in case.groups and case.groups[finding.group].backend != _ON_TCP


def _bad_port(finding: Finding, path: Path, seen: Fabric) -> _Found | None:
    """Errors, or a lower rate, on a port while those of most other hosts are quiet."""
    found: tuple[Rise | Narrow, ...] = (*seen.narrow, *seen.bad)
    if not found:
        return None
    places = tuple(dict.fromkeys(one.place for one in found))
    where = ", ".join(f"{fabric.named(place)} of {place[0]}" for place in places[:_SHOWN])
    ends = " and of ".join(f"{place[0]}, {fabric.named(place)}" for place in places[:_SHOWN])
    against = _against(path, seen, places)
    is_slow = finding.structure is Structure.SLOW_TRANSFER
    if not is_slow:
        against += ("that a port counts errors does not say that nothing gets through",)
    counters = sorted({one.counter for one in seen.bad if one.place in places})
    what = f"counts errors ({', '.join(counters)})" if counters else "became slower"
    one_port = len(places) == 1
    return _Found(
        cause=Cause.LINK_DEGRADED,
        sure=onpath.lowered(Confidence.MEDIUM, len(against)),
        because=f"port {where} {what}, and no port went down",
        evidence=fabric.shown(found),
        hosts=tuple(dict.fromkeys(host for host, _, _ in places)) if one_port or is_slow else (),
        against=against,
        steps=(
            f"look at the cable, the transceiver and the switch port of {ends}; compare width and rate with others",
        ),
        links=places if one_port or is_slow else (),
    )


def _against(path: Path, seen: Fabric, places: tuple[tuple[str, str, int | None], ...]) -> tuple[str, ...]:
    """What speaks against ports that stand out."""
    found = []
    if any(path.use(*place) != "used" for place in places):
        found.append("whether the group's traffic goes over that port is not told")
    if any(one.usual_per_s is None for one in seen.bad if one.place in places):
        found.append("what it counted before the trouble is not told")
    if len(seen.hosts) < len(path.hosts):
        missing = ", ".join(sorted(path.hosts - seen.hosts)[:_SHOWN])
        found.append(f"the ports of {missing} were not read in that time")
    return tuple(found)


def _congested(finding: Finding, seen: Fabric) -> _Found | None:
    """Data wait, or are marked, on several hosts; or come in another order and are lost there."""
    signs = seen.waits
    if len(fabric.hosts_of(signs)) < _SEVERAL:
        order, lost = fabric.hosts_of(seen.disordered), fabric.hosts_of(seen.lost)
        signs = (*seen.disordered, *seen.lost) if min(len(order), len(lost)) >= _SEVERAL else ()
    if not signs:
        return None
    hosts = fabric.hosts_of(signs)
    what = "data wait or are marked" if seen.waits else "packets come in another order and are sent again"
    is_slow = finding.structure is Structure.SLOW_TRANSFER
    return _Found(
        cause=Cause.CONGESTION,
        sure=Confidence.MEDIUM if is_slow else Confidence.LOW,
        because=f"{what} on ports of {len(hosts)} of {len(seen.hosts)} hosts, and none stands out by errors",
        evidence=fabric.shown((*seen.waits, *seen.disordered, *seen.lost)),
        steps=("look at the switches between these hosts: queues, ECN and PFC, shared uplinks, another job there",),
    )


def _lost_by_ports(seen: Fabric) -> _Found | None:
    """Packets of some senders are lost; whose link loses them is not told."""
    if not seen.lost:
        return None
    hosts = fabric.hosts_of(seen.lost)
    return _Found(
        cause=Cause.LINK_DEGRADED,
        sure=Confidence.LOW,
        because=f"packets are lost: ports of {', '.join(hosts[:_SHOWN])} had to send again, and no port went down",
        evidence=fabric.shown(seen.lost),
        against=("on the way to whom is not told: who has to send again suffers",),
        steps=(f"look at the links between {', '.join(hosts[:_SHOWN])} and their peers",),
    )


def _loss(finding: Finding, seen: Traffic) -> _Found | None:
    """Packets that do not arrive, or not in order, with both ports up."""
    is_slow = finding.structure is Structure.SLOW_TRANSFER
    edges = next((one for one in ((seen.lossy, seen.stalled) if is_slow else (seen.stalled, seen.lossy)) if one), ())
    if not edges and not seen.timeouts:
        return None
    cause, what = Cause.LINK_DEGRADED, "packets are lost" if is_slow else "packets are not acknowledged"
    if is_slow and edges and not seen.timeouts and all(edge.reordered for edge in edges):
        cause, what = Cause.CONGESTION, "packets arrive out of order and are sent again"
    if not edges:
        return _loss_by_hosts(seen, what, _timeouts(seen))
    ends = flows.common_ends(edges, (lambda edge: edge.lost) if edges is seen.lossy else flows.stalls)
    if not ends:
        return _Found(
            cause=Cause.CONGESTION if is_slow else Cause.TRANSPORT_ERROR,
            sure=Confidence.LOW,
            because=f"{what} between several hosts that have no end in common",
            evidence=_shown(edges),
            steps=("look at the switches between these hosts: queues, drops, an uplink that several flows share",),
        )
    return _at(cause, what, edges, ends, _shown(edges))


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
    if seen.queueing and (narrow := flows.narrow_end(seen.queueing, seen.edges)):
        what = "data wait at their sender, as less gets through than before,"
        return _at(Cause.CONGESTION, what, seen.queueing, narrow, _shown(seen.queueing))
    if not seen.slow:
        return None
    what = "packets arrive late, and none is lost"
    ends = flows.common_ends(seen.slow, lambda edge: edge.growth_us)
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
            says.append(f"{number_of(edge.lost, 'segment')} sent again")
        if edge.stalled:
            says.append(f"{number_of(edge.stalled, 'timeout')} in a row")
        if edge.is_queueing:
            waiting, usual = edge.queued // 1024, edge.usually_queued // 1024
            says.append(f"{waiting:,} KiB wait to be sent where {usual:,} KiB is usual")
        if edge.rtt_us is not None and edge.usual_us is not None and (edge.is_slow or not says):
            says.append(f"round trip {duration(edge.rtt_us * _US)} where {duration(edge.usual_us * _US)} was usual")
        found.append(Evidence(f"{edge.sender} to {edge.peer}: {', '.join(says)}", edge.source))
    return tuple(found)


def _timeouts(seen: Traffic) -> tuple[Evidence, ...]:
    ordered = sorted(seen.timeouts.items(), key=lambda pair: (-pair[1], pair[0]))
    return tuple(Evidence(f"{host}: TCPTimeouts went up by {count}", "") for host, count in ordered[:_SHOWN])


def _mtu(case: Case, finding: Finding, path: Path, seen: Traffic) -> _Found | None:
    """A hop that large packets do not pass."""
    if finding.structure is Structure.SLOW_TRANSFER or not (seen.timeouts or seen.stalled):
        return None
    hop = mtu.hop(case, finding, path)
    if hop is None:
        return None
    return _Found(
        cause=Cause.MTU_MISMATCH,
        sure=Confidence.MEDIUM,
        because=f"large packets do not get through: {hop.because}",
        evidence=(*hop.evidence, *_shown(seen.stalled)),
        hosts=(hop.hosts or tuple(flows.common_ends(seen.stalled, flows.stalls)))[:1],
        steps=("set one MTU on all hosts and switch ports of the job; ping -M do -s SIZE between the hosts shows it",),
    )
