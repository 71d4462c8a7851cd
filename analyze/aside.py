"""Faults that the files tell of and that no verdict took as its cause: listed, so that nobody has to find them again.

They prove nothing against a verdict. Each comes with the reason why it is not on the path, as far as one is known.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from roundk.analyze import onpath
from roundk.analyze.case import Case
from roundk.analyze.finding import Evidence, Finding
from roundk.analyze.lost_connections import OF_PEERS, peer_host, slack_ns
from roundk.analyze.names import Detail, Structure
from roundk.analyze.phrases import duration, number_of, ranks_text
from roundk.analyze.told import Told, short_host, told
from roundk.analyze.troubles import APPLICATION_XIDS

_MACHINES: Final = (
    "xid",
    "sxid",
    "pcie_error",
    "oom_kill",
    "slurm_oom",
    "slurm_node_failure",
    "segfault",
    "net_async_event",
    "link_down",
    "link_up",
    "port_module",
    "nic_error",
    "net_device_failed",
    "netdev_event",
    "ib_port_event",
)
"""Facts that a machine tells of itself."""

_STATES: Final = frozenset({"netdev_event", "ib_port_event"})
_LINKS: Final = _STATES | {"net_async_event", "link_down", "link_up", "port_module", "nic_error", "net_device_failed"}
_OOM: Final = frozenset({"oom_kill", "slurm_oom"})
_NAMELESS_ENDS: Final = ("elastic_failed", "elastic_failure", "mpirun_exit", "slurm_task_exit")
_QUIET: Final = frozenset({Structure.HEALTHY, Structure.IN_PROGRESS})
_MOST: Final = 64
"""Faults that one report lists: a job of 16,384 ranks may have thousands."""

_Key = tuple[object, ...]


def listed(case: Case, findings: list[Finding]) -> list[Finding]:
    """The findings, the first with what was told and is not shown by any of them.

    Args:
        case: The case.
        findings: With their causes.
    """
    if not findings:
        return findings
    root, shown = findings[0], _shown(findings)
    ends = _ends(case, root, shown)
    found = [*_faults(case, root, shown), *_connections(case, root, shown), *_counted(case, shown), *ends]
    if len(found) > _MOST:
        found = [*found[:_MOST], Evidence(f"{len(found) - _MOST:,} more faults that were told are not listed here")]
    if not found:
        return findings
    steps = _steps(root, ends)
    return [replace(root, evidence=(*root.evidence, *found), next_steps=steps), *findings[1:]]


def _shown(findings: Iterable[Finding]) -> set[tuple[str, str]]:
    every = (e for f in findings for e in (*f.evidence, *(() if f.reason is None else f.reason.evidence)))
    return {(piece.what, piece.source) for piece in every}


def _is_shown(fact: Told, shown: set[tuple[str, str]]) -> bool:
    return (fact.evidence.what, fact.evidence.source) in shown


def _faults(case: Case, root: Finding, shown: set[tuple[str, str]]) -> list[Evidence]:
    """What machines tell of themselves; a burst of one fault is told once."""
    alike: dict[_Key, list[Told]] = {}
    for fact in told(case.trace, _MACHINES):
        if fact.kind in _STATES and fact.fields.get("is_up"):
            continue  # that a port is there is no fault
        alike.setdefault(_key(fact), []).append(fact)
    found = []
    for facts in alike.values():
        if any(_is_shown(fact, shown) for fact in facts):
            continue  # one of the burst stands there as the cause
        first = facts[0]
        is_quiet = root.structure in _QUIET
        why = "" if is_quiet else _why(case, root, first)
        more = f" (and {number_of(len(facts) - 1, 'more line')} like it)" if len(facts) > 1 else ""
        said = "seen" if is_quiet else "seen, not taken as the cause"
        device = first.text_of("device")
        on = f" ({device})" if device and device not in first.text else ""
        what = f"{said}{f' ({why})' if why else ''}: {first.evidence.what}{on}{more}"
        found.append(Evidence(what, first.source, first.rank, first.time_ns))
    return found


def _key(fact: Told) -> _Key:
    """Of one burst are the lines of one fault on one device, or of one event of a port."""
    what = fact.number_of("xid") or fact.text_of("event") or fact.number_of("pid")
    place = fact.text_of("device") or fact.text_of("bus_id"), fact.number_of("port")
    return fact.kind, fact.host, fact.rank, place, what


def _why(case: Case, root: Finding, fact: Told) -> str:
    """Why a fault is not on the path; empty where no reason is known."""
    if away := _where(case, fact) or _when(case, root, fact):
        return away
    if fact.number_of("xid") in APPLICATION_XIDS:
        return "a program's own fault or the end of another process raises it"
    if fact.kind in _LINKS and (unused := _why_no_link(case, root, fact)):
        return unused
    if fact.rank in root.waiting or (fact.rank is None and _only_waits(case, root, fact.host)):
        return "the ranks there wait like the others"
    if fact.kind in _LINKS and root.structure is Structure.RANK_NOT_ENTERED:
        return "a port that goes down does not keep a rank from coming"
    return "whose process that was is not told" if fact.kind in _OOM and fact.rank is None else ""


def _why_no_link(case: Case, root: Finding, fact: Told) -> str:
    """Why an event of a port says nothing of the group; empty where it may."""
    if fact.kind == "link_up":
        return "the port came up"
    unused = onpath.unused_ports(case, onpath.path_of(case, root))
    place = fact.host, fact.text_of("device"), fact.number_of("port")
    is_unused = any((one.host, one.device, one.port) == place for one in unused)
    return "the group does not use that port" if is_unused else ""


def _where(case: Case, fact: Told) -> str:
    """A place that leads to no rank, in words."""
    known = {host for e in case.endings.values() if (host := short_host(e.host)) is not None}
    if fact.rank is not None or fact.host is None or fact.host in known:
        return ""
    return "no rank is known to be on that host" if known else "which ranks are on that host is not told"


def _when(case: Case, root: Finding, fact: Told) -> str:
    """A time at which it cannot be the cause, in words."""
    if fact.time_ns is None or root.onset_ns is None:
        return ""
    if fact.time_ns < root.onset_ns - onpath.BEFORE_NS:
        return "long before the waiting began"
    gave_up = onpath.gave_up_ns(case)
    if gave_up is not None and fact.time_ns > gave_up + slack_ns(case.trace):
        return "after the first to wait had given up"
    after = fact.time_ns - root.onset_ns
    return f"{duration(after)} after the onset" if after > onpath.DEVICE_NS else ""


def _only_waits(case: Case, root: Finding, host: str | None) -> bool:
    there = {rank for rank, ending in case.endings.items() if short_host(ending.host) == host}
    return bool(there) and there <= {*root.waiting, *root.victim_ranks} - set(root.culprits)


def _connections(case: Case, root: Finding, shown: set[tuple[str, str]]) -> list[Evidence]:
    """Completion errors by the peer that they name; who prints them is their victim."""
    by_peer: dict[tuple[str, bool], list[Told]] = {}
    for fact in told(case.trace, ("net_completion_error",)):
        is_of_peer = fact.number_of("status") in OF_PEERS
        by_peer.setdefault((peer_host(fact) or fact.text_of("peer") or "a peer", is_of_peer), []).append(fact)
    blamed = {*root.hosts, *(short_host(case.endings[r].host) for r in root.culprits if r in case.endings)}
    found = []
    for (peer, is_of_peer), facts in by_peer.items():
        if any(_is_shown(fact, shown) for fact in facts):
            continue
        ranks = sorted({fact.rank for fact in facts if fact.rank is not None})
        hosts = sorted({fact.host for fact in facts if fact.host})
        who = ranks_text(ranks) if ranks else ", ".join(hosts[:3]) or "a process"
        states = ", ".join(map(str, sorted({fact.number_of("status") or 0 for fact in facts})))
        if not is_of_peer:
            what = f"seen, an echo: {who} reported completions of status {states} on connections with {peer}"
        else:
            same = ", the culprit's host" if peer in blamed else ""
            what = f"{who} lost the connection to {peer}{same} (completion status {states})"
            what = what if same else f"seen, not taken as the cause: {what}"
        first = min(facts, key=lambda fact: (fact.time_ns is None, fact.time_ns or 0))
        found.append(Evidence(what, first.source, ranks[0] if len(ranks) == 1 else None, first.time_ns))
    return found


def _counted(case: Case, shown: set[tuple[str, str]]) -> list[Evidence]:
    """Counters that moved and that no line of a log speaks of."""
    pieces = [piece for one in case.troubles if one.is_counted for piece in one.shown]
    return [
        replace(piece, what=f"seen, not taken as the cause: {piece.what}")
        for piece in pieces
        if (piece.what, piece.source) not in shown
    ]


def _ends(case: Case, root: Finding, shown: set[tuple[str, str]]) -> list[Evidence]:
    """Ends of processes that a launcher told of without saying of which rank."""
    if root.structure in _QUIET or root.detail in (Detail.DEAD, Detail.EXITED_EARLY):
        return []  # how those ended that count is told already
    return [
        Evidence(f"seen, of which rank is not told: {fact.evidence.what}", fact.source, None, fact.time_ns)
        for fact in told(case.trace, _NAMELESS_ENDS)
        if fact.rank is None and not _is_shown(fact, shown)
    ]


def _steps(root: Finding, ends: list[Evidence]) -> tuple[str, ...]:
    """What to do next, which follows what was told of processes without a rank."""
    if root.detail is not Detail.SILENT or not ends:
        return root.next_steps
    hint = "a launcher reported the end of a process without its rank (see the evidence): it may be this one"
    return (hint, *(step.partition(": nothing here says")[0] for step in root.next_steps))
