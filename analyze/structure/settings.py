"""Does a setting of the job explain it? What NCCL finds wrong when it initialises, and what it falls back to.

Nobody is blamed for a setting: it is the job's, or that of a host which differs from all others.
"""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

import polars as pl

from roundk.analyze.case import Case
from roundk.analyze.finding import Evidence, Finding, Reason
from roundk.analyze.names import Cause, Confidence, Structure
from roundk.analyze.onpath import lowered
from roundk.analyze.told import Told, short_host, told

PRIVATE: Final = (ipaddress.ip_network("172.17.0.0/16"), ipaddress.ip_network("127.0.0.0/8"))
"""Addresses that lead to the same on every host: docker's bridge as it is unless configured, and the loopback."""

MUST_AGREE: Final = frozenset({"NCCL_ALGO", "NCCL_BUFFSIZE", "NCCL_IB_DISABLE", "NCCL_NET", "NCCL_PROTO"})
"""Settings that choose what both ends of a connection do; others may differ with a host's hardware, or are agreed on
when a communicator is made."""

UNREACHABLE: Final = ("no route to host", "network is unreachable", "cannot assign requested address")
"""What connecting says where the address itself is wrong; a refused or silent peer may only have ended."""

_INITIAL: Final = frozenset(
    {Structure.STUCK_IN_INIT, Structure.ERROR_REPORTED, Structure.INSUFFICIENT_EVIDENCE, Structure.METHODS_DISAGREE}
)
_CALM: Final = frozenset({Structure.HEALTHY, Structure.IN_PROGRESS})
_SHOWN: Final = 3


def mislaunched(case: Case) -> list[Finding]:
    """What no fault of a machine brings about and NCCL refuses on every start: one finding, or none."""
    return _first(_duplicate(case), _versions(case))


def refused(case: Case) -> list[Finding]:
    """What NCCL itself says is wrong with the settings of a job: one finding, or none."""
    return mislaunched(case) or _first(_interface(case), _gids(case))


def inferred(case: Case) -> list[Finding]:
    """What the settings that hosts tell of themselves show, what keeps a job from running before what makes it slow."""
    return _first(_networks(case), _differing(case), _fallback(case))


def _first(*found: Finding | None) -> list[Finding]:
    return [finding for finding in found if finding is not None][:1]


def beside(case: Case, findings: list[Finding]) -> list[Finding]:
    """The findings of the rounds, with those of the settings where these stand for themselves.

    What keeps communicators from being made is the root of all that waits in rounds of which none was completed, and
    refuted where the rounds went well.
    """
    without_rounds = case.calls.is_empty() and not case.is_hung  # there the settings were weighed with the errors
    if without_rounds or any(finding.structure is Structure.CONFIG_FINDING for finding in findings):
        return findings
    explained = [f for f in findings if f.structure in _INITIAL or _is_first(case, f)]
    rest = [f for f in findings if f not in explained]
    said = refused(case)
    if said and findings[0].structure not in _CALM:
        return [*said, *rest] if explained else [*rest, *said]
    found = inferred(case)
    if not found:
        return findings
    if is_slow(found[0]):
        return found if findings[0].structure is Structure.HEALTHY else [*findings, *found]
    return [*found, *rest] if explained and findings[0].structure not in _CALM else findings


def is_slow(finding: Finding) -> bool:
    """The setting makes the job slow and lets it run."""
    return finding.reason is not None and finding.reason.cause is Cause.TRANSPORT_FALLBACK


def _is_first(case: Case, finding: Finding) -> bool:
    """Nobody has completed anything in the group that the finding is about."""
    if finding.group is None:
        return False
    done = case.frontier.filter(pl.col("group") == finding.group)["last_completed"].drop_nulls()
    return done.is_empty() or done.max() == 0


def _finding(
    summary: str, reason: Reason, steps: Iterable[str], *, hosts: Iterable[str] = (), at: int | None = None
) -> Finding:
    return Finding(
        structure=Structure.CONFIG_FINDING,
        summary=summary,
        hosts=tuple(hosts),
        onset_ns=at,
        reason=reason,
        evidence=reason.evidence,
        next_steps=tuple(steps),
    )


def _duplicate(case: Case) -> Finding | None:
    """Two ranks of a communicator on one GPU: NCCL refuses that."""
    found = told(case.trace, ("nccl_duplicate_gpu",))
    if not found:
        return None
    first = found[0]
    pair, bus = first.fields.get("comm_ranks") or [], first.text_of("bus_id")
    on = f" on {first.host}" if first.host else ""
    said = " and ".join(str(rank) for rank in pair)
    return _finding(
        f"Ranks {said} of a communicator are on one GPU (bus id {bus}){on}: NCCL refuses to initialise it.",
        Reason(Cause.DUPLICATE_GPU, Confidence.HIGH, "", _shown(found)),
        (
            "call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before the first collective of every rank",
            "compare the ranks per host with its GPUs: --nproc-per-node, CUDA_VISIBLE_DEVICES, the scheduler's binding",
        ),
        at=first.time_ns,
    )


def _versions(case: Case) -> Finding | None:
    """Ranks with different versions of NCCL: it refuses that too."""
    found = told(case.trace, ("nccl_version_mismatch",))
    if not found:
        return None
    sides = found[0].fields.get("sides") or []
    said = " and ".join(f"{version} on rank {rank}" for rank, version in sides)
    return _finding(
        f"The ranks of a communicator have different versions of NCCL ({said} of it): it refuses to initialise.",
        Reason(Cause.NETWORK_CONFIG, Confidence.HIGH, "", _shown(found)),
        ("compare torch.cuda.nccl.version() and LD_LIBRARY_PATH on all hosts: one image, one version",),
        at=found[0].time_ns,
    )


def _networks(case: Case) -> Finding | None:
    """Hosts that take different networks cannot reach each other."""
    by_host: dict[str, set[str]] = defaultdict(set)
    for fact in told(case.trace, ("nccl_network",)):
        if fact.host:
            by_host[fact.host].add(fact.text_of("network") or "")
    by_network: dict[str, set[str]] = defaultdict(set)
    for host, networks in by_host.items():
        if len(networks) == 1:  # where a host tells several, they are of several communicators or runs
            by_network[next(iter(networks))].add(host)
    if len(by_network) < 2:
        return None
    ordered = sorted(by_network, key=lambda network: (-len(by_network[network]), network))
    few = sorted(host for network in ordered[1:] for host in by_network[network])
    is_clear = len(few) * 2 < len(by_host)
    text = "; ".join(f"{network} on {_some(sorted(by_network[network]))}" for network in ordered)
    shown = [f for f in told(case.trace, ("nccl_network",)) if f.host in few or f.host in by_network[ordered[0]]]
    first_of_each = {f.text_of("network"): f for f in reversed(shown)}
    absent = [f for f in told(case.trace, ("nccl_no_device",)) if f.host in few]
    return _finding(
        f"NCCL takes different networks on different hosts: {text}. They do not reach each other over these.",
        Reason(Cause.NETWORK_CONFIG, Confidence.HIGH, "", _shown([*first_of_each.values(), *absent])),
        (f"check on {_some(few)} what NCCL looks for: /dev/infiniband, libibverbs, NCCL_IB_HCA, NCCL_NET, the plugin",),
        hosts=few if is_clear else (),
    )


def _interface(case: Case) -> Finding | None:
    """No interface to meet over, or one whose address leads nowhere from other hosts."""
    none = told(case.trace, ("nccl_no_interface",))
    if none:
        chosen = [f for f in told(case.trace, ("nccl_setting",)) if f.fields.get("name") == "NCCL_SOCKET_IFNAME"]
        hosts = sorted({f.host for f in none if f.host})
        value = f" (NCCL_SOCKET_IFNAME is {chosen[0].text_of('value')})" if chosen else ""
        return _finding(
            f"NCCL found no network interface on {_some(hosts) or 'a host'} to meet the other ranks over{value}.",
            Reason(Cause.NETWORK_CONFIG, Confidence.HIGH, "", _shown([*none, *chosen])),
            ("compare NCCL_SOCKET_IFNAME with `ip -br address` inside the container of every host",),
            at=none[0].time_ns,
        )
    failed = [f for f in told(case.trace, ("net_call_failed",)) if f.fields.get("call") == "connect"]
    # On one host such an address is as good as any, and one that refuses may only have ended.
    known = {short_host(e.host) for e in case.endings.values() if e.host} | {f.host for f in failed if f.host}
    private = [f for f in failed if _is_private(f.text_of("peer"))] if len(known) > 1 else []
    wrong = private or [f for f in failed if any(words in (f.text_of("error") or "").lower() for words in UNREACHABLE)]
    if not wrong:
        return None
    first = wrong[0]
    used = [f for f in told(case.trace, ("nccl_address",)) if f.text_of("address") == first.text_of("peer")]
    refused = "refused" in (first.text_of("error") or "").lower()
    sure = Confidence.HIGH if private and not refused else Confidence.MEDIUM
    why = ", an address that means every host's own" if private else ""
    interface = f" ({used[0].text_of('interface')} of {used[0].host})" if used else ""
    return _finding(
        f"{first.where or 'A rank'} cannot connect to {first.text_of('peer')}{interface}{why}: {first.text}.",
        Reason(Cause.NETWORK_CONFIG, sure, "", _shown([*wrong[:2], *used])),
        (
            "set NCCL_SOCKET_IFNAME (and GLOO_SOCKET_IFNAME) to the interface that reaches the other hosts",
            f"try from there: ping {first.text_of('peer')}",
        ),
        at=first.time_ns,
    )


def _is_private(address: str | None) -> bool:
    try:
        parsed = ipaddress.ip_address(address or "")
    except ValueError:
        return False
    return any(parsed in network for network in PRIVATE if network.version == parsed.version)


def _gids(case: Case) -> Finding | None:
    """A queue pair that could not be connected: the address (GID) on one side leads nowhere from the other."""
    failed = [
        f
        for f in told(case.trace, ("net_call_failed",))
        if f.fields.get("call") == "ibv_modify_qp" and f.fields.get("next_state") in (None, "RTR")
    ]
    if not failed:
        return None
    first = failed[0]
    index, gid = first.number_of("gid_index"), first.text_of("local_gid")
    chosen = [f for f in told(case.trace, ("nccl_setting",)) if f.fields.get("name") == "NCCL_IB_GID_INDEX"]
    values = {f.text_of("value") for f in chosen}
    sure = Confidence.HIGH if gid == "::" or len(values) > 1 else Confidence.MEDIUM
    told_gid = f" with GID index {index} ({gid})" if index is not None else f" with GID {gid}" if gid else ""
    empty = ", which is empty there" if gid == "::" else ""
    return _finding(
        f"{first.where or 'A rank'} could not connect a queue pair of {first.text_of('device') or 'its HCA'}"
        f"{told_gid}{empty}: {first.text_of('error') or first.text}.",
        Reason(Cause.NETWORK_CONFIG, sure, "", _shown([*failed[:2], *chosen[:2]])),
        (
            "compare `show_gids` (/sys/class/infiniband/*/ports/*/gids) of both hosts, and NCCL_IB_GID_INDEX with it",
            "check that the subnets of these ports reach each other: rping or ib_write_bw between the two hosts",
        ),
        at=first.time_ns,
    )


def _differing(case: Case) -> Finding | None:
    """Settings that must agree and do not; only where hosts say of themselves what is set there."""
    by_name: dict[str, dict[str, Told]] = defaultdict(dict)
    hosts: set[str] = set()
    for fact in told(case.trace, ("nccl_setting",)):
        if fact.host:
            hosts.add(fact.host)
            by_name[str(fact.fields.get("name"))].setdefault(fact.host, fact)
    for name in sorted(MUST_AGREE & by_name.keys()):
        of_host = by_name[name]
        values = {fact.text_of("value") for fact in of_host.values()}
        unset = hosts - of_host.keys()
        if len(values) < 2 and not unset:
            continue
        text = "; ".join(
            f"{value} on {_some(sorted(h for h, f in of_host.items() if f.text_of('value') == value))}"
            for value in sorted(str(v) for v in values)
        ) + (f"; not told to be set on {_some(sorted(unset))}" if unset else "")
        sure = lowered(Confidence.HIGH, 1 if len(values) > 1 else 2)
        one_each = {fact.text_of("value"): fact for fact in reversed(of_host.values())}
        return _finding(
            f"{name} differs between hosts: {text}. Both ends of a connection must agree on it.",
            Reason(Cause.NETWORK_CONFIG, sure, "", _shown(list(one_each.values()))),
            (f"give {name} the same value on all hosts, or to none of them",),
        )
    return None


def _fallback(case: Case) -> Finding | None:
    """NCCL found no InfiniBand device and went over TCP: slow, not stuck."""
    sockets = [f for f in told(case.trace, ("nccl_network",)) if f.fields.get("network") == "Socket"]
    absent = [f for f in told(case.trace, ("nccl_no_device",)) if f.fields.get("plugin") == "NET/IB"]
    if not sockets or not absent:
        return None
    hosts = sorted({f.host for f in sockets if f.host})
    return _finding(
        f"NCCL runs over TCP sockets on {_some(hosts) or 'all hosts'}: it found no InfiniBand or RoCE device. That is "
        "slow, and not a hang.",
        Reason(Cause.TRANSPORT_FALLBACK, Confidence.HIGH, "", _shown([*absent[:_SHOWN], *sockets[:_SHOWN]])),
        (
            "check that the container sees /dev/infiniband and that its image has libibverbs",
            "check NCCL_IB_HCA, NCCL_IB_DISABLE and NCCL_NET in the job's environment",
        ),
    )


def _some(hosts: list[str]) -> str:
    more = f" and {len(hosts) - _SHOWN} more hosts" if len(hosts) > _SHOWN else ""
    return ", ".join(hosts[:_SHOWN]) + more


def _shown(facts: list[Told]) -> tuple[Evidence, ...]:
    return tuple(fact.evidence for fact in facts[: 2 * _SHOWN])
