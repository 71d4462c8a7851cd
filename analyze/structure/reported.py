"""No call to line up: which error was reported first, by whom, and about whom?

A completion error of NCCL's transport is printed by the victim; the peer that it names is the suspect. What a flush, a
closed connection or a watchdog prints is an echo of what happened before. A link that reports itself down, a GPU that
reports an Xid and a process that the kernel kills say so where they are.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import polars as pl

from roundk.analyze import cause
from roundk.analyze.case import Case
from roundk.analyze.finding import Evidence, Finding, Reason
from roundk.analyze.names import Cause, Confidence, Structure
from roundk.analyze.phrases import NS_PER_MS, NS_PER_S, capital, duration

_RETRIES_EXHAUSTED: Final = 12
"""`IBV_WC_RETRY_EXC_ERR`: the peer or the path to it no longer answers."""

_APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45})
"""Xids that a program's own fault raises, or the end of another process. Source: NVIDIA, Xid errors."""

_LINK_LOST: Final = ("net_async_event", "link_down", "net_device_failed")
_LINK_BACK: Final = ("link_up",)
_LOST_EVENTS: Final = ("port error", "fatal", "device failed")
_GPU: Final = ("xid", "sxid", "nccl_cuda_failure")
_KILLED: Final = ("oom_kill", "slurm_oom")
_WAITS: Final = ("gloo_timeout", "collective_timeout", "gloo_connect_timeout", "tc_timeout", "monitored_barrier_error")
_ECHOES: Final = ("gloo_closed", "gloo_pair_closed", "net_closed", "watchdog_abort")
_SHOWN: Final = 3

_Fact = dict[str, Any]


def reported(case: Case) -> list[Finding]:
    """What the facts alone name: the first local error in time, or a setting that explains a slow job."""
    facts = [_fact(row) for row in _in_order(case.trace.facts).iter_rows(named=True)]
    link, completion = _link(facts), _completion(facts)
    if link is not None and completion is not None and completion[1].hosts in ((), link[1].hosts):
        completion = None  # the link explains it, whichever line came out first
    # Where no times tell, in this order: who says so of itself, before what its peers say of it.
    candidates = [found for found in (link, _gpu(facts), _killed(facts), completion) if found is not None]
    if candidates:
        return [min(candidates, key=lambda pair: (pair[0] is None, pair[0] or 0))[1]]
    quiet = _fallback(facts) or _waited(facts)
    return [] if quiet is None else [quiet]


def _in_order(facts: pl.DataFrame) -> pl.DataFrame:
    return facts.sort("time_ns", nulls_last=False, maintain_order=True)


def _fact(row: _Fact) -> _Fact:
    return {**row, "fields": json.loads(row["fields"]) if row["fields"] else {}}


def _link(facts: Sequence[_Fact]) -> tuple[int | None, Finding] | None:
    """A link that reported itself down; a flap where it came back."""
    lost = [f for f in facts if f["kind"] in _LINK_LOST and f["host"] and _is_loss(f)]
    if not lost:
        return None
    host = lost[0]["host"]
    errors = [f for f in facts if f["kind"] == "net_completion_error" and f["host"] != host]
    back = [f for f in facts if f["host"] == host and (f["kind"] in _LINK_BACK or "port active" in _event(f))]
    victims = sorted({f["host"] for f in errors if f["host"]})
    others = sorted({f["host"] for f in lost} - {host})
    device = next((str(f["fields"]["device"]) for f in lost if f["host"] == host and f["fields"].get("device")), None)
    port = f"port {device}" if device else "a network port"
    echo = f"; {', '.join(victims)} reported the lost connection" if victims else ""
    why = Cause.LINK_FLAP if back else Cause.LINK_DOWN
    named = [f for f in errors if f["fields"].get("peer_host") == host]
    sure = Confidence.HIGH if named else Confidence.MEDIUM
    finding = Finding(
        structure=Structure.ERROR_REPORTED,
        summary=f"{host} reported {port} {'down and up again' if back else 'down'}{echo}; no round tells more.",
        hosts=(host,),
        victim_hosts=tuple(victims),
        links=((host, device or "", _port(lost[0])),) if device else (),
        onset_ns=lost[0]["time_ns"],
        reason=Reason(why, sure, "", _evidence(lost[:1])),
        doubts=tuple(f"{other} reported a port down too" for other in others[:_SHOWN]),
        evidence=_evidence([*lost[:_SHOWN], *named[:1], *back[:1]]),
        next_steps=(
            f"look at the cable, the transceiver and the switch port of {host}" + (f", {device}" if device else ""),
            f"compare link_downed of {host}'s ports with those of its peers: /sys/class/infiniband/*/ports/*/counters",
        ),
    )
    return lost[0]["time_ns"], finding


def _event(fact: _Fact) -> str:
    return str(fact["fields"].get("event", ""))


def _is_loss(fact: _Fact) -> bool:
    return fact["kind"] != "net_async_event" or any(word in _event(fact) for word in _LOST_EVENTS)


def _port(fact: _Fact) -> int | None:
    port = fact["fields"].get("port")
    return port if isinstance(port, int) else None


def _gpu(facts: Sequence[_Fact]) -> tuple[int | None, Finding] | None:
    """A GPU that reported a fault that no program causes; NCCL's own word where the kernel's log is not there."""
    faults = [f for f in facts if f["kind"] in _GPU and f["fields"].get("xid") not in _APPLICATION_XIDS]
    if not faults:
        return None
    first = next((f for f in faults if f["kind"] != "nccl_cuda_failure"), faults[0])
    where = _where(first) or "one process"
    if first["kind"] == "nccl_cuda_failure":
        sure, step = Confidence.LOW, "look at the kernel logs of all hosts for Xid lines"
    else:
        sure = Confidence.HIGH
        step = f"drain {first['host'] or where} and run `nvidia-smi -q` and DCGM's diagnostics there"
    summary = f"The GPU of {where} reported a fault first: {first['text']}; no round tells more."
    return first["time_ns"], _local(first, faults, summary, Reason(Cause.GPU_FAULT, sure, "", _evidence([first])), step)


def _killed(facts: Sequence[_Fact]) -> tuple[int | None, Finding] | None:
    """A process that the kernel killed for memory."""
    killed = [f for f in facts if f["kind"] in _KILLED]
    if not killed:
        return None
    first = killed[0]
    summary = f"Memory ran out on {_where(first) or 'a host'}: {first['text']}; no round tells more."
    reason = Reason(Cause.OOM_KILLED, Confidence.HIGH, "", _evidence([first]))
    step = "compare the memory of the processes there with the limit of their cgroup"
    return first["time_ns"], _local(first, killed, summary, reason, step)


def _local(first: _Fact, alike: Sequence[_Fact], summary: str, reason: Reason, next_step: str) -> Finding:
    """What a rank or host says of itself; the first of several alike."""
    return Finding(
        structure=Structure.ERROR_REPORTED,
        summary=summary,
        culprits=() if first["rank"] is None else (first["rank"],),
        hosts=(first["host"],) if first["host"] else (),
        onset_ns=first["time_ns"],
        reason=reason,
        doubts=("no round shows who waited for whom",),
        evidence=_evidence(alike[:_SHOWN]),
        next_steps=(next_step,),
    )


def _where(fact: _Fact) -> str:
    return f"rank {fact['rank']}" if fact["rank"] is not None else fact["host"] or ""


def _completion(facts: Sequence[_Fact]) -> tuple[int | None, Finding] | None:
    """The first transport error that is no flush: its printer is the victim, the peer that it names the suspect."""
    errors = [
        f for f in facts if f["kind"] == "net_completion_error" and f["fields"].get("status") == _RETRIES_EXHAUSTED
    ]
    if not errors:
        return None
    first = errors[0]
    suspect = first["fields"].get("peer_host") or first["fields"].get("peer")
    close = [
        f
        for f in errors[1:]
        if first["time_ns"] is None or f["time_ns"] is None or f["time_ns"] - first["time_ns"] < NS_PER_S
    ]
    blamed = {f["fields"].get("peer_host") for f in [first, *close]}
    known = first["fields"].get("peer_host") is not None and len(blamed) == 1
    finding = Finding(
        structure=Structure.ERROR_REPORTED,
        summary=f"{first['host'] or 'A process'} lost the connection to {suspect or 'a peer'} (retries exhausted); "
        "whose link it was no other evidence says.",
        hosts=(str(suspect),) if known else (),
        victim_hosts=(first["host"],) if first["host"] else (),
        onset_ns=first["time_ns"],
        reason=Reason(Cause.TRANSPORT_ERROR, Confidence.MEDIUM, "", _evidence([first])),
        doubts=("only the victims' side is heard", *(() if known else ("several peers are named",))),
        evidence=_evidence([first, *close[:_SHOWN]]),
        next_steps=(f"look at the links of {suspect or 'the peer'}, then at those between the two",),
    )
    return first["time_ns"], finding


def _fallback(facts: Sequence[_Fact]) -> Finding | None:
    """NCCL found no InfiniBand device and went over TCP: slow, not stuck."""
    sockets = [f for f in facts if f["kind"] == "nccl_network" and f["fields"].get("network") == "Socket"]
    absent = [f for f in facts if f["kind"] == "nccl_no_device" and f["fields"].get("plugin") == "NET/IB"]
    if not sockets or not absent:
        return None
    hosts = sorted({f["host"] for f in sockets if f["host"]})
    return Finding(
        structure=Structure.CONFIG_FINDING,
        summary=f"NCCL runs over TCP sockets on {', '.join(hosts[:_SHOWN]) or 'all hosts'}"
        f"{f' and {len(hosts) - _SHOWN} more hosts' if len(hosts) > _SHOWN else ''}: it found no InfiniBand or RoCE "
        "device. That is slow, and not a hang.",
        reason=Reason(Cause.TRANSPORT_FALLBACK, Confidence.HIGH, "", _evidence(absent[:1])),
        evidence=_evidence([*absent[:_SHOWN], *sockets[:_SHOWN]]),
        next_steps=(
            "check that the container sees /dev/infiniband and that its image has libibverbs",
            "check NCCL_IB_HCA, NCCL_IB_DISABLE and NCCL_NET in the job's environment",
        ),
    )


def _waited(facts: Sequence[_Fact]) -> Finding | None:
    """Somebody waited and gave up, and nothing says for whom."""
    waits = [f for f in facts if f["kind"] in _WAITS]
    if not waits:
        return None
    first = waits[0]
    waited_ms = next((first["fields"][k] for k in ("ran_for_ms", "timeout_ms") if first["fields"].get(k)), None)
    long = f" for {duration(waited_ms * NS_PER_MS)}" if waited_ms else ""
    onset = None if first["time_ns"] is None or not waited_ms else first["time_ns"] - round(waited_ms * NS_PER_MS)
    echoes = [f for f in facts if f["kind"] in _ECHOES]
    after = f" What {_who(echoes[0])} reported ({echoes[0]['text']}) may be an echo of that." if echoes else ""
    return Finding(
        structure=Structure.INSUFFICIENT_EVIDENCE,
        summary=f"{capital(_who(first))} was the first to give up: it waited{long} and nothing says for whom.{after}",
        waiting=tuple(sorted({f["rank"] for f in waits if f["rank"] is not None})),
        victim_hosts=tuple(sorted({f["host"] for f in waits if f["host"]})),
        onset_ns=onset,
        reason=cause.UNDETERMINED,
        evidence=_evidence([*waits[:_SHOWN], *echoes[:1]]),
        next_steps=(
            "next time: put `roundk run --` in front of the command, or set TORCH_NCCL_TRACE_BUFFER_SIZE=2000",
            "name the logs of all ranks here: the one that never waited is the one to look at",
        ),
    )


def _who(fact: _Fact) -> str:
    local = fact["fields"].get("local_rank")
    where = f" on {fact['host']}" if fact["host"] else ""
    if fact["rank"] is not None:
        return f"rank {fact['rank']}{where}"
    return f"local rank {local}{where}" if local is not None else fact["host"] or "a process"


def _evidence(facts: Sequence[_Fact]) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(f"{f['host'] + ': ' if f['host'] else ''}{f['text']}", f["source"], f["rank"], f["time_ns"])
        for f in facts
    )
