"""Faults that a machine reports of itself: GPUs, NVLink, memory, network ports. What others notice of them is no fault.

Echoes stay out: flushed completions (status 5), connections that a peer closed, aborts of watchdogs, NCCL's "remote
error", the Xids that a program's own fault or the end of another process raises.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from roundk.analyze.finding import Evidence
from roundk.analyze.names import Cause, Confidence
from roundk.analyze.phrases import NS_PER_S, duration, port_text
from roundk.analyze.steps import step
from roundk.analyze.told import Told, short_host, told
from roundk.analyze.trace import Trace

APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45})
"""Xids that a program's own fault raises, or the end of another process. Source: NVIDIA, Xid errors."""

NVLINK_XIDS: Final = frozenset({74, *range(144, 151)})
"""NVLink errors; 144 to 150 of NVLink 5. Source: NVIDIA, Xid errors."""

SOFT_XIDS: Final = frozenset({63, 92})
"""A row that was remapped, single-bit errors above a rate: wear that a job outlives. Source: NVIDIA, Xid errors."""

TIMED_NS: Final = 60 * NS_PER_S
"""Two samples of a counter no further apart than this tell when it moved."""

NEAR_NS: Final = 2 * NS_PER_S
"""How far beside the two samples an event may lie that is the same as a counter's step: logs round to the second."""

GPU_CAUSES: Final = frozenset({Cause.GPU_FAULT, Cause.NVLINK_FAULT})
LINK_CAUSES: Final = frozenset({Cause.LINK_DOWN, Cause.LINK_FLAP})

_GPU_KINDS: Final = ("xid", "sxid", "cuda_error", "nccl_cuda_failure", "process_error", "pcie_error")
_STATE_KINDS: Final = ("netdev_event", "ib_port_event")
"""What the sampler of a host saw of its ports, up and down."""
_SEEN_KINDS: Final = frozenset({"ib_port_event"})
"""A port whose state was read twice, and differed: on RoCE its `link_downed` may stay 0 all the same."""
_LOST_KINDS: Final = ("net_async_event", "link_down", "net_device_failed", "port_module", "nic_error", *_STATE_KINDS)
_BACK_KINDS: Final = ("link_up", "net_async_event", *_STATE_KINDS)
_KILL_KINDS: Final = ("oom_kill", "slurm_oom", "slurm_task_exit", "segfault", "slurm_node_failure")
_PYTHON: Final = ("python", "pt_")
"""What the kernel calls processes of Python; torch names its threads and workers pt_main_thread, pt_data_worker.
Source: torch 2.13, torch/utils/data/_utils/worker.py."""
_LOST_EVENTS: Final = ("port error", "fatal", "device failed")
_BAD_MODULE: Final = ("unplugged", "error", "fail")
_BACK_EVENTS: Final = ("port active",)
_LINK_COUNTERS: Final = frozenset({"link_downed", "carrier_down_count", "carrier_changes", "link_down_events_phy"})
_DOWN_COUNTERS: Final = frozenset({"link_downed", "link_down_events_phy"})
"""Those that count nothing but links that went down, so that each step is one time that it did."""
_MOST_FLAPS: Final = 64
"""Steps of one such counter that are told, the first ones."""
_ECC_COUNTER: Final = r"(?i)^ECC Errors/Volatile/.*Uncorrectable"
_NVLINK_COUNTER: Final = r"(?i)recovery"


@dataclass(frozen=True)
class Trouble:
    """A fault that a rank or host reported of itself.

    Attributes:
        cause: What it is.
        sure: How sure the fault alone is, before its place and time are looked at.
        what: A clause for a sentence: `port mlx5_0 of node-a went down`.
        time_ns: When; None: not told, or only that it was between two samples far apart.
        shown: What shows it.
        kind: What to compare with the same on other hosts.
        device, port: Network device, where it is a link's.
        until_ns: When a port came back; None: not, or not told.
        is_counted: A counter tells it, and no line of anybody's log.
        is_python: It is of a process that Python runs.
        since_ns: The reading of a counter before the one that shows it; None: `time_ns` is when it was.
    """

    cause: Cause
    sure: Confidence
    what: str
    host: str | None
    rank: int | None
    time_ns: int | None
    shown: tuple[Evidence, ...]
    kind: str
    device: str | None = None
    port: int | None = None
    until_ns: int | None = None
    is_counted: bool = False
    is_python: bool = False
    since_ns: int | None = None

    @property
    def earliest_ns(self) -> int:
        """When it was at the earliest; 0: no time is told."""
        return self.time_ns or 0 if self.since_ns is None else self.since_ns


def troubles(trace: Trace) -> list[Trouble]:
    """All faults, those without a time last, else by time."""
    moved = _steps(trace)
    links = _links(trace, _still(moved))
    counted = _moved(moved, links)
    found = [*_gpu(trace), *_kills(trace), *links, *counted]
    return sorted(found, key=lambda one: (one.time_ns is None, one.time_ns or 0))


def cuda_fault(text: str) -> tuple[Cause, Confidence] | None:
    """What a CUDA error says of the hardware; a launch failure or an illegal address may be the program's own."""
    words = text.lower()
    if "nvlink" in words:
        return Cause.NVLINK_FAULT, Confidence.HIGH
    if re.search(r"\becc\b|ecc_uncorrectable|fallen off the bus|gpu is lost", words):
        return Cause.GPU_FAULT, Confidence.HIGH
    return None


def _gpu(trace: Trace) -> list[Trouble]:
    found: list[Trouble] = []
    for fact in told(trace, _GPU_KINDS):
        says = _of_gpu(fact)
        if says is None:
            continue
        cause, sure = says
        part = "NVLink" if cause is Cause.NVLINK_FAULT else "the GPU"
        of = fact.where or "one process"
        what = f"{part} of {of} reported a fault: {fact.text}"
        if fact.time_ns is not None and any(
            one.kind == _alike(fact, cause)
            and (one.host, one.rank) == (fact.host, fact.rank)
            and one.time_ns is not None
            for one in found
        ):
            continue  # the first of a burst is enough
        found.append(
            Trouble(cause, sure, what, fact.host, fact.rank, fact.time_ns, (fact.evidence,), _alike(fact, cause))
        )
    return found


def _alike(fact: Told, cause: Cause) -> str:
    return f"{fact.kind} {fact.number_of('xid') or cause}"


def _of_gpu(fact: Told) -> tuple[Cause, Confidence] | None:
    if fact.kind == "xid":
        number = fact.number_of("xid")
        if number in APPLICATION_XIDS or number is None:
            return None
        if number in NVLINK_XIDS:
            return Cause.NVLINK_FAULT, Confidence.HIGH
        return Cause.GPU_FAULT, Confidence.LOW if number in SOFT_XIDS else Confidence.HIGH
    if fact.kind == "sxid":  # of an NVSwitch
        mild = "non-fatal" in fact.text.lower()
        return Cause.NVLINK_FAULT, Confidence.MEDIUM if mild else Confidence.HIGH
    if fact.kind == "pcie_error":
        is_gpu = "nvidia" in (fact.text_of("driver") or "").lower()
        return (Cause.GPU_FAULT, Confidence.MEDIUM) if is_gpu else None
    hard = cuda_fault(f"{fact.text_of('error') or ''} {fact.text_of('message') or ''} {fact.text}")
    # CUDA's words alone name the rank that noticed: the kernel's log would name the device.
    return hard or ((Cause.GPU_FAULT, Confidence.LOW) if fact.kind in ("cuda_error", "nccl_cuda_failure") else None)


def _kills(trace: Trace) -> list[Trouble]:
    """Processes that the kernel or the scheduler ended."""
    found = []
    for fact in told(trace, _KILL_KINDS):
        if fact.kind == "slurm_task_exit" and not fact.fields.get("is_oom"):
            continue
        host = fact.host or short_host(fact.text_of("node"))
        of = fact.where or host or "a host"
        if fact.kind == "segfault":
            cause, what = Cause.PROCESS_KILLED, f"the process of {of} made a segmentation fault"
        elif fact.kind == "slurm_node_failure":
            cause, what = Cause.PROCESS_KILLED, f"Slurm reported that node {of} failed"
        else:
            cause, what = Cause.OOM_KILLED, f"memory ran out on {of}: {fact.text}"
        # A library that crashes on one rank may be anybody's process: it needs the rank.
        if fact.kind == "segfault" and fact.rank is None:
            continue
        found.append(
            Trouble(
                cause=cause,
                sure=Confidence.HIGH,
                what=what,
                host=host,
                rank=fact.rank,
                time_ns=fact.time_ns,
                shown=(fact.evidence,),
                kind=fact.kind,
                is_python=(fact.text_of("name") or "").startswith(_PYTHON),
            )
        )
    return found


def _links(trace: Trace, still: set[tuple[str | None, str]]) -> list[Trouble]:
    """Ports that were lost, each time; a flap where the port came back. Not those that never moved."""
    back = [fact for fact in told(trace, _BACK_KINDS) if _is_back(fact)]
    found: list[Trouble] = []
    until: dict[tuple[str | None, int | None, str | None, int | None], int | None] = {}
    for fact in told(trace, _LOST_KINDS):
        device, port = fact.text_of("device"), fact.number_of("port")
        place = (fact.host, fact.rank if fact.host is None else None, device, port)
        is_of_known = place in until and (until[place] is None or (fact.time_ns or 0) <= (until[place] or 0))
        # The counters of a device that is gone are gone with it.
        is_seen = fact.kind in _SEEN_KINDS or bool(fact.fields.get("is_gone"))
        if not _is_loss(fact) or is_of_known or (not is_seen and (fact.host, device) in still):
            continue
        again = next((one for one in back if _same_port(one, fact) and _follows(one, fact)), None)
        until[place] = None if again is None else again.time_ns
        named = f"port {port_text(device, port)}" if device else "a network port"
        of = f" of {fact.host or fact.where}" if fact.host or fact.where else ""
        found.append(
            Trouble(
                cause=Cause.LINK_DOWN if again is None else Cause.LINK_FLAP,
                sure=Confidence.HIGH if fact.time_ns is not None else Confidence.MEDIUM,
                what=f"{named}{of} {'is gone' if fact.fields.get('is_gone') else 'went down'}{_came_back(fact, again)}",
                host=fact.host,
                rank=fact.rank if fact.host is None else None,
                time_ns=fact.time_ns,
                shown=(fact.evidence, *(() if again is None else (again.evidence,))),
                kind="link",
                device=device,
                port=port,
                until_ns=until[place],
            )
        )
    return found


def _is_back(fact: Told) -> bool:
    if fact.kind in _STATE_KINDS:
        return fact.fields.get("is_up") is True
    return fact.kind == "link_up" or _says(fact, _BACK_EVENTS)


def _came_back(lost: Told, again: Told | None) -> str:
    if again is None:
        return ""
    after = again.time_ns - lost.time_ns if None not in (again.time_ns, lost.time_ns) else None  # type: ignore[operator]
    return " and came back" if after is None else f" and came back after {duration(after)}"


def _says(fact: Told, events: Sequence[str]) -> bool:
    return any(words in (fact.text_of("event") or "").lower() for words in events)


def _is_loss(fact: Told) -> bool:
    if fact.kind == "net_async_event":
        return _says(fact, _LOST_EVENTS)
    if fact.kind in _STATE_KINDS:
        return fact.fields.get("is_up") is False
    return fact.kind != "port_module" or _says(fact, _BAD_MODULE)


def _same_port(one: Told, other: Told) -> bool:
    """The same host and, where both name one, the same device and port."""
    names = {one.text_of("device"), other.text_of("device")} - {None}
    ports = {one.number_of("port"), other.number_of("port")} - {None}
    return one.host == other.host and len(names) <= 1 and len(ports) <= 1


def _follows(back: Told, lost: Told) -> bool:
    return back.time_ns is None or lost.time_ns is None or back.time_ns >= lost.time_ns


def _steps(trace: Trace) -> pl.DataFrame:
    """Samples of counters with how far they went up since the sample before, and when that was."""
    keys = ["host", "kind", "device", "port", "counter"]
    counted = trace.counters.filter(pl.col("value").is_not_null(), pl.col("is_read"))
    return counted.select(
        *keys, "time_ns", "source", step=step(keys), before_ns=pl.col("time_ns").shift(1).over(keys)
    ).filter(pl.col("step").is_not_null())


def _still(steps: pl.DataFrame) -> set[tuple[str | None, str]]:
    """Devices whose link did not move between two samples: one that is down was so all along."""
    of_links = steps.filter(pl.col("counter").is_in(_LINK_COUNTERS))
    ups = pl.col("step").filter(pl.col("step") > 0).sum()
    sums = of_links.group_by("host", "device").agg(moved=ups).filter(pl.col("moved") == 0)
    return {(short_host(host), device) for host, device in sums.select("host", "device").iter_rows()}


def _moved(steps: pl.DataFrame, links: Sequence[Trouble]) -> list[Trouble]:
    """What counters of links and GPUs tell that no line of a log and no event of a port does."""
    ups = steps.filter(pl.col("step") > 0)
    is_down = pl.col("counter").is_in(_DOWN_COUNTERS)
    keys = ["host", "kind", "device", "port", "counter"]
    sums = (
        ups.filter(~is_down)
        .group_by(keys, maintain_order=True)
        .agg(pl.col("step").sum(), pl.col("time_ns", "before_ns").first(), pl.col("source").last())
    )
    each = ups.filter(is_down).filter(pl.int_range(pl.len()).over(keys) < _MOST_FLAPS)
    found: dict[tuple[object, ...], Trouble] = {}
    for row in pl.concat([each.select(sums.columns), sums]).iter_rows(named=True):
        cause = _of_counter(row)
        host = short_host(row["host"])
        when = row["time_ns"] if row["counter"] in _DOWN_COUNTERS else None
        place = (host, row["device"], row["port"], cause)
        is_new = (*place, None) not in found and (*place, when) not in found
        if cause is not None and is_new and not any(_tells(link, row, host, cause) for link in links):
            found[*place, when] = _counted(row, host, cause)
    return list(found.values())


def _counted(row: dict[str, Any], host: str | None, cause: Cause) -> Trouble:
    """A fault that a counter tells by going up."""
    is_timed = None not in (row["time_ns"], row["before_ns"]) and row["time_ns"] - row["before_ns"] <= TIMED_NS
    is_link = cause in LINK_CAUSES
    name = port_text(row["device"], row["port"]) if row["device"] else ""
    text = f"{row['counter']} of {name or 'the host'} went up by {row['step']}"
    return Trouble(
        cause=cause,
        sure=Confidence.HIGH if is_timed and is_link else Confidence.MEDIUM,
        what=f"{f'port {name}' if is_link else name} of {host or 'a host'} "
        f"{'went down' if is_link else 'counted errors'}: {text}",
        host=host,
        rank=None,
        time_ns=row["time_ns"] if is_timed else None,
        shown=(Evidence(f"{host + ': ' if host else ''}{text}", row["source"], None, row["time_ns"]),),
        kind="link" if is_link else f"counter {row['counter']}",
        device=row["device"] if is_link else None,
        port=row["port"] if is_link else None,
        is_counted=True,
        since_ns=row["before_ns"] if is_timed else None,
    )


def _tells(link: Trouble, row: dict[str, Any], host: str | None, cause: Cause) -> bool:
    """Whether an event of a port is what the step of a counter tells as well."""
    if cause not in LINK_CAUSES or (link.host, link.device) != (host, row["device"]):
        return False
    if None not in (link.port, row["port"]) and link.port != row["port"]:
        return False
    times = link.time_ns, row["before_ns"], row["time_ns"]
    if row["counter"] not in _DOWN_COUNTERS or None in times:
        return True
    return bool(row["before_ns"] - NEAR_NS <= link.time_ns <= row["time_ns"] + NEAR_NS)


def _of_counter(row: dict[str, object]) -> Cause | None:
    name, kind = str(row["counter"]), row["kind"]
    if name in _LINK_COUNTERS:
        # Up and down both count there, so one flap moves it by two.
        return Cause.LINK_FLAP if name != "carrier_changes" or int(str(row["step"])) > 1 else Cause.LINK_DOWN
    if kind == "gpu" and re.search(_ECC_COUNTER, name):
        return Cause.GPU_FAULT
    return Cause.NVLINK_FAULT if kind == "nvlink" and re.search(_NVLINK_COUNTER, name) else None
