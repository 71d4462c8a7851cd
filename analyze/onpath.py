"""Which faults lie on the path of a structure: of its ranks and hosts, on ports that its group uses, and in time.

A fault that healthy hosts report alike explains nothing; one that came later than the waiting can be is no cause.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, cast

import polars as pl

from roundk.analyze.case import Case
from roundk.analyze.endings import How
from roundk.analyze.finding import Finding
from roundk.analyze.lost_connections import slack_ns
from roundk.analyze.names import Cause, Confidence, Detail, Structure
from roundk.analyze.phrases import NS_PER_S, duration
from roundk.analyze.told import short_host, told
from roundk.analyze.trace import Trace
from roundk.analyze.troubles import GPU_CAUSES, LINK_CAUSES, NEAR_NS, Trouble

LEVELS: Final = (Confidence.HIGH, Confidence.MEDIUM, Confidence.LOW)

BEFORE_NS: Final = 600 * NS_PER_S
"""A fault older than this at the onset has been lived with. Source: Kokolis et al., Revisiting Reliability in
Large-Scale Machine Learning Research Clusters (2024): causes within the last ten minutes."""

DEVICE_NS: Final = 60 * NS_PER_S
"""Hosts enqueue calls ahead of their devices, and drivers report a device that hangs after timeouts of their own."""

DEATH_NS: Final = 30 * NS_PER_S
"""A kernel's line about the end of a process, and the process's last sign of life, lie no further apart."""

HEALTHY_SHARE: Final = 3
"""A fault that more than one in so many of the other hosts report alike is of none of them: a switch, a fleet."""

MOVING_NS: Final = NS_PER_S
"""Least time that is given to the data of a round to get through, and to counters to be read: once a second."""

ROLLING_NS: Final = 60 * NS_PER_S
MANY_HOSTS: Final = 3
"""Ports of so many hosts, and of more than one in `HEALTHY_SHARE`, that go down within that time are of a switch."""

_TICK_NS: Final = 4_096
_RETRIES: Final = 8
"""NCCL_IB_RETRY_CNT 7, and the first try."""
_TIMEOUTS: Final = ((2, 23, 20), (2, 14, 18), (0, 0, 14))
"""NCCL_IB_TIMEOUT by the first version that has it as its default. Source: NCCL, transport/net_ib.cc at its tags."""

_INSIDE: Final = frozenset(
    {
        Structure.ALL_ENTERED_NONE_COMPLETED,
        Structure.PARTIAL_COMPLETION,
        Structure.STUCK_IN_INIT,
        Structure.SLOW_TRANSFER,
    }
)
_NCCL: Final = "nccl"
_PREFIX: Final = re.compile(r"[A-Za-z]+")


@dataclass(frozen=True)
class Path:
    """Where a structure's cause may lie.

    Attributes:
        ranks, hosts: Those to blame or, where nobody is, the members of the group.
        onset_ns: When the waiting began; None: not told.
        gave_up_ns: When the first of those who waited gave up; None: not told.
        is_culprits: Somebody is to blame.
        ports: Devices over which the group's members send, by host; hosts of which nothing tells it are not there.
        is_placed: Of every rank it is told on which host it is.
        numbers: Which ports of a device are used, by host and device; where that is told.
        moving_ns: Until when the data of what hangs would have been through: a port that is lost later is not what it
            waits for.
        begun_ns: When the last round of the group began that everybody left; None: there is none, or it is not told.
    """

    ranks: frozenset[int]
    hosts: frozenset[str]
    onset_ns: int | None
    gave_up_ns: int | None
    is_culprits: bool
    ports: Mapping[str, frozenset[str]]
    is_placed: bool = True
    numbers: Mapping[tuple[str, str], frozenset[int]] = field(default_factory=dict)
    moving_ns: int = 0
    begun_ns: int | None = None

    def use(self, host: str | None, device: str | None, port: int | None = None) -> str:
        """Whether a port is used, in the words of `use_of`."""
        use = use_of(self.ports, host, device)
        told_numbers = self.numbers.get((host or "", device or ""))
        is_other = port is not None and told_numbers is not None and port not in told_numbers
        return "unused" if use == "used" and is_other else use


@dataclass(frozen=True)
class Suspicion:
    """A fault on the path, how sure that makes it the cause, and what speaks against it."""

    trouble: Trouble
    sure: Confidence
    against: tuple[str, ...] = ()


def path_of(case: Case, finding: Finding) -> Path:
    """Where to look for the cause of a finding."""
    ranks = finding.culprits or (case.member_ranks(finding.group) if finding.group is not None else ())
    hosts = {short_host(case.endings[rank].host) for rank in ranks if rank in case.endings}
    return Path(
        ranks=frozenset(ranks),
        hosts=frozenset(host for host in hosts if host),
        onset_ns=finding.onset_ns,
        gave_up_ns=gave_up_ns(case),
        is_culprits=bool(finding.culprits),
        ports={} if finding.group is None else _ports(case, finding.group),
        is_placed=all(r in case.endings and case.endings[r].host for r in ranks),
        numbers=_numbers(case),
        moving_ns=0 if finding.group is None else _moving_ns(case, finding),
        begun_ns=None if finding.group is None else cast("int | None", _done(case, finding)["first_enter_ns"].max()),
    )


def path_of_job(case: Case) -> Path:
    """The path of all that a job sends, whichever group it is of."""
    hosts = {short_host(ending.host) for ending in case.endings.values()}
    return Path(
        ranks=frozenset(case.endings),
        hosts=frozenset(host for host in hosts if host),
        onset_ns=None,
        gave_up_ns=None,
        is_culprits=False,
        ports=used_ports(case),
        numbers=_numbers(case),
    )


def suspicions(case: Case, finding: Finding, path: Path) -> list[Suspicion]:
    """The faults on the path of a finding, the first in time first, those without a time last."""
    every = case.troubles
    known = _known_hosts(case) | {one.host for one in every if one.host}
    found = []
    for one in every:
        is_near = _is_of(one, path)
        if not (is_near or _may_be_of(case, one, path)) or not _is_in_time(case, finding, one, path):
            continue
        weighed = _weighed(case, finding, one, path)
        if weighed is not None and not is_near:
            weighed = _of_unplaced(weighed)
        if weighed is not None:
            found.append(weighed)
    kept = [kept for one in found if (kept := _against_healthy(one, every, known - path.hosts)) is not None]
    return [_against_alike(one, every, path) for one in kept]


def unused_ports(case: Case, path: Path) -> list[Trouble]:
    """Ports on the path's hosts that went down, and that the group does not use."""
    return [
        one
        for one in case.troubles
        if one.cause in LINK_CAUSES and one.host in path.hosts and path.use(one.host, one.device, one.port) == "unused"
    ]


def lowered(sure: Confidence, levels: int = 1) -> Confidence:
    """A confidence so many levels down, to `low` at most."""
    return LEVELS[min(LEVELS.index(sure) + levels, len(LEVELS) - 1)]


def retry_budget_ns(trace: Trace) -> int:
    """How long NCCL's transport tries again before it reports a lost connection.

    Source: InfiniBand's local ACK timeout is 4.096 us x 2^n; n is NCCL_IB_TIMEOUT.
    """
    told_n = [
        fact.text_of("value") or ""
        for fact in told(trace, ("nccl_setting",))
        if fact.fields.get("name") == "NCCL_IB_TIMEOUT"
    ]
    chosen = [int(value) for value in told_n if value.isdecimal() and int(value) < 32]
    return (_TICK_NS << (max(chosen) if chosen else _default_timeout(trace))) * _RETRIES


def _default_timeout(trace: Trace) -> int:
    found = [
        (int(numbers[1]), int(numbers[2]))
        for fact in told(trace, ("nccl_version",))
        if (numbers := re.match(r"(\d+)\.(\d+)", fact.text_of("version") or "")) is not None
    ]
    version = min(found, default=(2, 23))
    return next(n for major, minor, n in _TIMEOUTS if version >= (major, minor))


def gave_up_ns(case: Case) -> int | None:
    """When the first of those who waited gave up, by its call or its watchdog; None: not told."""
    said = [fact.time_ns for fact in told(case.trace, ("collective_timeout",)) if fact.time_ns is not None]
    known = [*said, *([] if case.gave_up_ns is None else [case.gave_up_ns])]
    return min(known, default=None)


def _known_hosts(case: Case) -> set[str]:
    return {host for ending in case.endings.values() if (host := short_host(ending.host)) is not None}


def _is_of(one: Trouble, path: Path) -> bool:
    return one.rank in path.ranks if one.rank is not None else one.host in path.hosts


def _may_be_of(case: Case, one: Trouble, path: Path) -> bool:
    """Of a round that all entered: a fault of a host on which members may be, as nothing tells where they are."""
    if path.is_culprits or path.is_placed or one.rank is not None or one.host is None:
        return False
    return one.host not in _known_hosts(case)


def _of_unplaced(found: Suspicion) -> Suspicion:
    """A fault of a host that may have none of the ranks."""
    against = (*found.against, f"which ranks are on {found.trouble.host} is not told")
    return Suspicion(found.trouble, Confidence.LOW, against)


def _is_in_time(case: Case, finding: Finding, one: Trouble, path: Path) -> bool:
    """Before the waiting began, or as long after that as such a fault can come and still be its cause."""
    if one.time_ns is None:
        return True
    slack = slack_ns(case.trace)
    ends = [e.at_ns for r in path.ranks if (e := case.endings.get(r)) is not None and e.how is not How.UNKNOWN]
    died = [at for at in ends if at is not None]
    if path.is_culprits and finding.detail is Detail.DEAD and died:
        return any(abs(one.time_ns - at) <= DEATH_NS + slack for at in died)
    if path.onset_ns is None or one.time_ns < path.onset_ns - BEFORE_NS:
        return path.onset_ns is None
    if path.is_culprits and finding.structure is Structure.RANK_NOT_ENTERED:
        # Whatever kept a rank from coming may have happened at any time until its peers gave up.
        return path.gave_up_ns is None or one.time_ns <= path.gave_up_ns + slack
    if one.cause in LINK_CAUSES:
        return one.earliest_ns <= _last_ns(case, finding, path) and _is_of_wait(case, finding, one, path)
    return one.time_ns <= path.onset_ns + DEVICE_NS + slack


def _done(case: Case, finding: Finding) -> pl.DataFrame:
    """The rounds of a finding's group that everybody left."""
    return case.rounds.filter(pl.col("group") == finding.group, pl.col("completed") == pl.col("size"))


def _moving_ns(case: Case, finding: Finding) -> int:
    """See `Path`."""
    stuck = case.rounds.filter(pl.col("group") == finding.group, pl.col("seq").eq_missing(finding.seq))
    came, longest = stuck["last_enter_ns"].max(), _done(case, finding)["longest_inside_ns"].max()
    begun = max(finding.onset_ns or 0, came if isinstance(came, int) else 0)
    return begun + max(MOVING_NS, longest if isinstance(longest, int) else 0) + slack_ns(case.trace)


def _last_ns(case: Case, finding: Finding, path: Path) -> int:
    """The last time at which the loss of a port can be the cause of a wait.

    Hosts may enqueue calls long ahead of their devices, and the transport of a call that runs tries again for long.
    """
    if finding.until_ns is not None or finding.group is None or case.groups[finding.group].backend == "gloo":
        return path.moving_ns
    return max(path.moving_ns, (path.onset_ns or 0) + retry_budget_ns(case.trace) + slack_ns(case.trace))


def _is_of_wait(case: Case, finding: Finding, one: Trouble, path: Path) -> bool:
    """Whether a port was down while something waited: what rounds have gone over since hangs nothing later."""
    if one.time_ns is None or finding.group is None:
        return True
    slack = slack_ns(case.trace)
    if finding.until_ns is not None:  # a wait that is over
        return (
            one.time_ns <= finding.until_ns + slack and (one.until_ns or one.time_ns) >= (finding.onset_ns or 0) - slack
        )
    over = one.time_ns + NEAR_NS if one.until_ns is None else one.until_ns
    return path.begun_ns is None or path.begun_ns <= over + slack


def _weighed(case: Case, finding: Finding, one: Trouble, path: Path) -> Suspicion | None:
    """How sure a fault in the right place makes it the cause; None: it cannot be."""
    sure = one.sure
    if one.time_ns is None or (path.onset_ns is None and one.rank is None):
        sure = max(sure, Confidence.MEDIUM, key=LEVELS.index)
    if one.cause in LINK_CAUSES:
        return _link(case, finding, one, path, sure)
    is_living = path.is_culprits and finding.detail in (Detail.IDLE, Detail.BUSY, Detail.STOPPED)
    if is_living and one.cause is Cause.PROCESS_KILLED:
        return None  # it was alive
    return (
        Suspicion(one, sure) if one.rank is not None else _of_host(case, finding, one, path, sure, is_living=is_living)
    )


def _of_host(
    case: Case, finding: Finding, one: Trouble, path: Path, sure: Confidence, *, is_living: bool
) -> Suspicion | None:
    """A fault that is told of a host and not of a rank."""
    if one.cause is Cause.OOM_KILLED:
        if is_living:
            return _of_a_child(finding, one, path)
        if finding.detail is not Detail.DEAD:
            level = Confidence.MEDIUM if path.is_culprits else Confidence.LOW
            return Suspicion(one, max(sure, level, key=LEVELS.index), ("whose process that was is not told",))
    stopped = path.is_culprits and not is_living  # a device or process of this host stopped, and a device of it failed
    if _is_alone(case, path, one) or (stopped and one.cause in GPU_CAUSES):
        return Suspicion(one, sure)
    return Suspicion(one, max(sure, Confidence.MEDIUM, key=LEVELS.index), ("which rank it hit is not told",))


def _of_a_child(finding: Finding, one: Trouble, path: Path) -> Suspicion | None:
    """The kernel ended another process beside a living rank that did not come: it may wait for a worker of its own."""
    if finding.detail is Detail.STOPPED or one.time_ns is None or path.onset_ns is None:
        return None
    if not one.is_python or abs(one.time_ns - path.onset_ns) > DEVICE_NS:
        return None
    against = ("it was another process than the rank's: a worker that loads data, or a stranger",)
    return Suspicion(one, Confidence.LOW, against)


def _is_alone(case: Case, path: Path, one: Trouble) -> bool:
    """Every rank of the fault's host is on the path: whichever it hit, it was one of them."""
    there = {r for r, ending in case.endings.items() if short_host(ending.host) == one.host}
    return there <= path.ranks


def _link(case: Case, finding: Finding, one: Trouble, path: Path, sure: Confidence) -> Suspicion | None:
    """A link explains only what goes over it, and never that a rank did not come."""
    if finding.group is None or (finding.structure not in _INSIDE and finding.structure is not Structure.DEVICE_STUCK):
        return None
    members = case.member_ranks(finding.group)
    hosts = {short_host(case.endings[r].host) if r in case.endings else None for r in members}
    if len(hosts) == 1 and None not in hosts:
        return None  # nothing of it leaves the host
    use = path.use(one.host, one.device, one.port)
    if use == "unused":
        return None
    found = Suspicion(one, sure)
    if use != "used":
        level = Confidence.MEDIUM if use == "unknown" else Confidence.LOW
        why = f"whether the group's traffic goes over {one.device or 'that port'} is not told"
        found = Suspicion(one, max(sure, level, key=LEVELS.index), (why,))
    if one.time_ns is not None and path.onset_ns is not None and one.earliest_ns > path.moving_ns:
        late = f"the port was lost {duration(one.time_ns - path.onset_ns)} after the first member began to wait"
        found = Suspicion(one, lowered(found.sure), (*found.against, late))
    return found


def use_of(ports: Mapping[str, frozenset[str]], host: str | None, device: str | None) -> str:
    """Whether a port is used: used, unused, unknown, or of another kind of name (other) than those that are known.

    Args:
        ports: Devices that are used, by host.
        host: The port's host.
        device: The port's device.
    """
    used = ports.get(host or "", frozenset())
    if device is None or not used:
        return "unknown"
    if device in used:
        return "used"
    kinds = {_kind(one) for one in used}
    return "unused" if _kind(device) in kinds else "other"


def _kind(device: str) -> str:
    """`mlx` of mlx5_0, `eth` of eth2: RDMA devices and network devices of one card have different names."""
    found = _PREFIX.match(device)
    return found[0] if found else ""


def _ports(case: Case, group: int) -> dict[str, frozenset[str]]:
    """Devices over which a group's members send, by host, as NCCL's lines tell."""
    members = case.member_ranks(group)
    sizes = {fact.text_of("comm"): fact.number_of("nranks") for fact in told(case.trace, ("nccl_communicator",))}
    comms = [comm for comm, size in sizes.items() if size == len(members)]
    ends = case.trace.channels.filter(
        pl.col("device").is_not_null() & ~pl.col("device").str.contains(r"^\d+$"),
        pl.col("rank").is_null() | pl.col("rank").is_in(list(members)),
    )
    own = ends.filter(pl.col("comm").is_in(comms))
    return _told_ports(case, ends if own.is_empty() else own, case.groups[group].backend)


def used_ports(case: Case) -> dict[str, frozenset[str]]:
    """Devices over which the job's groups send, by host; hosts of which nothing tells it are not there."""
    is_named = pl.col("device").is_not_null() & ~pl.col("device").str.contains(r"^\d+$")
    backends = {group.backend for group in case.groups.values() if not group.is_control}
    return _told_ports(case, case.trace.channels.filter(is_named), backends.pop() if len(backends) == 1 else "")


def _told_ports(case: Case, ends: pl.DataFrame, backend: str) -> dict[str, frozenset[str]]:
    """The devices of these ends of channels; of hosts without any those that were chosen or listed."""
    used: dict[str, set[str]] = defaultdict(set)
    for host, device in ends.select("host", "device").unique().iter_rows():
        used[short_host(host) or ""].add(device)
    chosen, listed = _chosen(case, backend), _listed(case)
    hosts = used.keys() | chosen.keys() | listed.keys()
    return {host: frozenset(used.get(host) or chosen.get(host) or listed.get(host) or set()) for host in hosts}


def _chosen(case: Case, backend: str) -> dict[str, set[str]]:
    """Ports that the job was told to take, or that its traffic is routed over, by host.

    Of a host with HCAs NCCL uses network devices to meet, and for nothing that a round waits for.
    """
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for fact in told(case.trace, ("port_used",)):
        found[fact.host or ""][fact.text_of("kind") or ""].add(fact.text_of("device") or "")
    with_hca = {short_host(host) for host in _hosts_with(case, "ib")} | {h for h, of in found.items() if of.get("ib")}
    only_meets = with_hca if backend.removeprefix("cuda:") == _NCCL else set()
    return {
        host: set().union(*(devices for kind, devices in of.items() if kind != "netdev" or host not in only_meets))
        for host, of in found.items()
    }


def _hosts_with(case: Case, kind: str) -> list[str]:
    return case.trace.counters.filter(pl.col("kind") == kind)["host"].drop_nulls().unique().to_list()


def _numbers(case: Case) -> dict[tuple[str, str], frozenset[int]]:
    """The ports of each HCA that the job was told to take, by host and device."""
    found: dict[tuple[str, str], set[int]] = defaultdict(set)
    for fact in told(case.trace, ("port_used",)):
        port = fact.number_of("port")
        if port is not None:
            found[fact.host or "", fact.text_of("device") or ""].add(port)
    return {place: frozenset(ports) for place, ports in found.items()}


def _listed(case: Case) -> dict[str, set[str]]:
    """Devices that NCCL lists on each host for the network that it takes there."""
    networks: dict[str, set[str]] = defaultdict(set)
    for fact in told(case.trace, ("nccl_network",)):
        networks[fact.host or ""].add(fact.text_of("network") or "")
    found: dict[str, set[str]] = defaultdict(set)
    for fact in told(case.trace, ("nccl_devices",)):
        host, plugin = fact.host or "", (fact.text_of("plugin") or "").removeprefix("NET/")
        if host not in networks or plugin in networks[host]:
            found[host] |= {str(device.get("device")) for device in fact.fields.get("devices", ())}
    return found


def _against_alike(one: Suspicion, every: tuple[Trouble, ...], path: Path) -> Suspicion:
    """Ports of many hosts that went down one after another were taken down by what they share."""
    at = one.trouble.time_ns
    if one.trouble.cause not in LINK_CAUSES or at is None:
        return one
    hosts = {
        other.host
        for other in every
        if other.cause in LINK_CAUSES
        and other.host in path.hosts
        and path.use(other.host, other.device, other.port) != "unused"
        and other.time_ns is not None
        and abs(other.time_ns - at) <= ROLLING_NS
    }
    if len(hosts) < MANY_HOSTS or len(hosts) * HEALTHY_SHARE <= len(path.hosts):
        return one
    why = f"ports of {len(hosts)} of the group's {len(path.hosts)} hosts went down within a minute: what do they share?"
    return Suspicion(one.trouble, Confidence.LOW, (*one.against, why))


def _against_healthy(one: Suspicion, every: tuple[Trouble, ...], healthy: set[str]) -> Suspicion | None:
    """The same on hosts that are not to blame counts against it; on many of them it is of none."""
    at = one.trouble.time_ns
    alike = {
        other.host
        for other in every
        if other.kind == one.trouble.kind
        and other.host in healthy
        and (at is None or other.time_ns is None or abs(other.time_ns - at) <= BEFORE_NS)
    }
    if not alike:
        return one
    if len(alike) * HEALTHY_SHARE > len(healthy):
        return None
    names = ", ".join(sorted(str(host) for host in alike)[:3])
    return Suspicion(one.trouble, lowered(one.sure), (*one.against, f"{names} reported the same and is not stuck"))
