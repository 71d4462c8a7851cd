"""What NCCLX dumps say beside their collectives: proxies on the network, peers of the mapper, errors, speeds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from roundk.analyze.sources import ops
from roundk.analyze.sources.ncclx.records import Comm, comms, decoded, process, proxy_state, step
from roundk.analyze.sources.rows import count, words_of

_MOST_OPS: Final = 1_000
"""Unfinished operations of a proxy that are read: each channel has one or two."""
_MOST_TEXT: Final = 500
_MOST_NAME: Final = 40
_MOST_PEERS: Final = 4_096
_NS_PER_MS: Final = 1_000_000
_NS_PER_US: Final = 1_000


def facts(rank: int, source: str, dump: Any) -> Iterator[dict[str, Any]]:
    """`schema.FACTS` of one rank's dump; the kinds are those that `ncclx` lists."""
    for found in _found(dump):
        kind, text, fields, time_ns = found
        yield {
            "time_ns": time_ns,
            "rank": rank,
            "kind": kind,
            "text": text[:_MOST_TEXT],
            "fields": words_of({name: value for name, value in fields.items() if value is not None}),
            "source": source,
        }


_Fact = tuple[str, str, Mapping[str, Any], int | None]


def _found(dump: Any) -> Iterator[_Fact]:
    for comm in comms(dump):
        yield _comm(comm)
        yield from _grouped(comm)
        yield from _open(comm)
        yield from _proxy(comm)
        yield from _mapper(comm)
    yield from _process(process(dump))
    values = dump if isinstance(dump, dict) else {}
    yield from _errors(decoded(values.get("processGlobalErrors")))
    yield from _errors(process(dump).get("processGlobalErrors"))


def _comm(comm: Comm) -> _Fact:
    iteration, busy = count(comm.values.get("CT_currentIteration")), comm.values.get("CT_currentIterationCommTimeUs")
    fields = {
        "comm": comm.hash,
        "desc": comm.desc[:_MOST_TEXT],
        "comm_rank": comm.rank,
        "comm_size": comm.size,
        "iteration": iteration,
        "comm_time_us": count(busy),
    }
    return "comm", f"rank {comm.rank} of {comm.size} in communicator {comm.hash} {comm.desc}", fields, None


def _grouped(comm: Comm) -> Iterator[_Fact]:
    for record in comm.records:
        if record.is_p2p and record.ended_ns is None:
            is_started = record.started_ns is not None
            fields = {"comm": comm.hash, "number": record.number, "peers": record.peers, "is_started": is_started}
            peers = ", ".join(map(str, record.peers[:8]))
            text = f"{record.op} #{record.number} with ranks {peers} of communicator {comm.hash} is not done"
            yield "grouped_p2p", text, fields, record.enqueued_ns


def _open(comm: Comm) -> Iterator[_Fact]:
    """The first collective that is not done: what the operations of the proxy are lined up with."""
    record = next((one for one in comm.records if not one.is_p2p and one.ended_ns is None), None)
    if record is not None:
        width = None if record.dtype is None else ops.dtype(record.dtype)[1]
        fields = {
            "comm": comm.hash,
            "comm_rank": comm.rank,
            "number": record.number,
            "op": record.op,
            "bytes": None if record.count is None or width is None else count(record.count * width),
            "algorithm": record.algorithm,
            "is_started": record.started_ns is not None,
        }
        state = "is not done" if record.started_ns is not None else "has not started"
        yield "open_collective", f"{record.op} #{record.number} of communicator {comm.hash} {state}", fields, None


def _proxy(comm: Comm) -> Iterator[_Fact]:
    listed = comm.values.get("PT_activeOps")
    for op in listed[:_MOST_OPS] if isinstance(listed, list) else ():
        if not isinstance(op, dict) or op.get("status") == "DONE":
            continue
        direction = "send" if op.get("opType") == "SEND" else "recv"
        state, waits = proxy_state(op) or ("unknown", "not told")
        remote, mine = count(op.get("remoteRank")), count(op.get("rank"))
        fields = {
            "comm": comm.hash,
            "op_count": count(op.get("opCount")),
            "channel": count(op.get("channelId")),
            "comm_rank": mine,
            "remote_rank": remote,
            "direction": direction,
            "coll": _name(op.get("coll")),
            "steps": count(op.get("nSteps")),
            "moved_bytes": count(op.get("transSize")),
            "state": state,
            "waits_for": waits,
            **{name.lower(): step(op, name) for name in ("POSTED", "RECEIVED", "TRANSMITTED", "DONE")},
        }
        way = "to" if direction == "send" else "from"
        text = f"the proxy of rank {mine} of communicator {comm.hash} is {state} {way} rank {remote}: waits for {waits}"
        yield "proxy_op", text, fields, _micros(op.get("startTs"))


def _name(value: Any) -> str | None:
    return value[:_MOST_NAME] if isinstance(value, str) and value else None


def _mapper(comm: Comm) -> Iterator[_Fact]:
    notified, put = comm.values.get("MT_recvNotifiedByPeer"), comm.values.get("MT_putFinishedByPeer")
    unfinished = comm.values.get("MT_unfinishedRequests")
    kinds = [_request(one) for one in unfinished[:_MOST_OPS]] if isinstance(unfinished, list) else []
    if notified or put or kinds:
        fields = {
            "comm": comm.hash,
            "notified_by_peer": _by_peer(notified),
            "put_to_peer": _by_peer(put),
            "unfinished": sorted(kinds),
        }
        yield (
            "mapper",
            f"{len(kinds)} requests of the mapper in communicator {comm.hash} are not seen to end",
            fields,
            None,
        )


def _request(value: Any) -> str:
    """The kind of a request. A put calls itself the receive of a control message, and has an address and a length."""
    event = value.get("event") if isinstance(value, dict) else None
    if not isinstance(event, dict):
        return "unknown"
    if event.get("type") == "RecvCtrlStart" and "remoteBuffer" in event and "length" in event:
        return "PutStart"
    return str(event.get("type"))[:40]


def _by_peer(value: Any) -> dict[str, int] | None:
    if not isinstance(value, dict):
        return None
    counted = ((str(peer)[:20], count(times)) for peer, times in list(value.items())[:_MOST_PEERS])
    return {peer: times for peer, times in counted if times is not None}


def _process(values: Mapping[str, Any]) -> Iterator[_Fact]:
    busy = count(values.get("totalCommDurPerIterationUs"))
    if busy is not None:
        yield "comm_time", f"{busy} us of communication per iteration", {"per_iteration_us": busy}, None
    speed = values.get("NetworkPerfMonitor")
    average = speed.get("avgBw") if isinstance(speed, dict) else None
    if isinstance(average, int | float) and not isinstance(average, bool) and 0 <= average < 1e6:
        yield "network_speed", f"{average} GB/s over all communicators", {"gb_per_s": average}, None


def _errors(values: Any) -> Iterator[_Fact]:
    if not isinstance(values, dict):
        return
    nics = values.get("badNics")
    for device, ports in nics.items() if isinstance(nics, dict) else ():
        for port, error in ports.items() if isinstance(ports, dict) else ():
            if isinstance(error, dict):
                fields = {"device": str(device)[:40], "port": str(port)[:20], "message": _message(error)}
                yield "nic_error", f"{device} port {port}: {_message(error)}", fields, _millis(error.get("timestampMs"))
    listed = values.get("errorAndStackTraces")
    for error in listed[:_MOST_OPS] if isinstance(listed, list) else ():
        if isinstance(error, dict):
            yield "process_error", _message(error), {"message": _message(error)}, _millis(error.get("timestampMs"))


def _message(error: Mapping[str, Any]) -> str:
    return str(error.get("errorMessage"))[:_MOST_TEXT]


def _millis(value: Any) -> int | None:
    found = count(value)
    return found * _NS_PER_MS if found and found < 1 << 42 else None


def _micros(value: Any) -> int | None:
    found = count(value)
    return found * _NS_PER_US if found and found < 1 << 52 else None
