"""One rank's NCCLX communicators out of a dump: values that are JSON text inside JSON, and records read by their times.

Source: comms/ncclx/meta/commDump.cc, comms/utils/colltrace/plugins/CommDumpPlugin.cc, CollRecord::toDynamic,
ProxyTrace.cc and MapperTrace.cc of torchcomms, 2026-04 to 2026-09; comms/rcclx/develop/meta/lib/ProxyTrace.cc for what
the steps of the proxy mean.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from roundk.analyze.sources.rows import count

GLOBAL: Final = "GlobalInfo"
MOST_RECORDS: Final = 8192
"""Records read of one list: NCCLX holds back 4,096 and keeps 20."""
_HASH_BITS: Final = (1 << 64) - 1
_NS_PER_US: Final = 1_000
_MOST_US: Final = 1 << 52
_LISTS: Final = ("CT_pastColls", "CT_currentColls", "CT_currentColl", "CT_pendingColls")


@dataclass(frozen=True)
class Record:
    """One collective as CollTrace saw it. The list that it stood in says nothing: a pending one may be called current.

    Attributes:
        number: `collId`, which counts the calls of the communicator in this process, sends and receives as well.
        op: Name of the operation as NCCL spells it.
        is_p2p: A group of sends and receives.
        peers: Ranks in the communicator that such a group talks to.
        enqueued_ns: Unix time at which it was enqueued.
        started_ns: Unix time at which its kernel began; None: it has not.
        ended_ns: Unix time at which it was done; None: it is not.
        count: Elements, as NCCL's function counts them.
        dtype: Their type as NCCLX spells it.
        root: Root's rank in the communicator.
        reduce_op: Reduction.
        algorithm: What NCCL chose: `Baseline_Simple_Ring_4`.
    """

    number: int
    op: str
    is_p2p: bool
    peers: tuple[int, ...]
    enqueued_ns: int | None
    started_ns: int | None
    ended_ns: int | None
    count: int | None
    dtype: str | None
    root: int | None
    reduce_op: str | None
    algorithm: str | None


@dataclass
class Comm:
    """One communicator as one rank has it.

    Attributes:
        hash: Its identity over all ranks, as hexadecimal digits.
        desc: Description and number of the process group, `DP:3`.
        rank: The rank in the communicator.
        size: Ranks in it.
        records: Its collectives, by number.
        values: All other values, by key.
    """

    hash: str
    desc: str
    rank: int | None
    size: int | None
    records: list[Record] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)


def decoded(value: Any) -> Any:
    """A value that may be JSON text; text that is none (a description before 2026-05) stays as it is."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def hash_of(value: Any) -> str | None:
    """The identity of a communicator: hexadecimal text at the top, a signed decimal number in records."""
    value = decoded(value) if isinstance(value, str) and value[:1] == '"' else value
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _HASH_BITS:
        return f"{value & _HASH_BITS:x}"
    if isinstance(value, str):
        text = value.lower().removeprefix("0x").lstrip("0")
        return text if 0 < len(text) <= 16 and all(digit in "0123456789abcdef" for digit in text) else None
    return None


def comms(dump: Any) -> Iterator[Comm]:
    """The communicators of a dump: one, or all of a process by their hash."""
    if not isinstance(dump, dict):
        return
    if "commHash" in dump:
        dump = {"": dump}
    for key, values in dump.items():
        if isinstance(values, dict) and key != GLOBAL:
            name = hash_of(values.get("commHash")) or hash_of(key)
            if name is not None:
                yield _comm(name, values)


def process(dump: Any) -> Mapping[str, Any]:
    """What a dump says of the whole process."""
    values = dump.get(GLOBAL) if isinstance(dump, dict) else None
    return {key: decoded(value) for key, value in values.items()} if isinstance(values, dict) else {}


def _comm(name: str, values: Mapping[str, Any]) -> Comm:
    plain = {key: decoded(value) for key, value in values.items() if isinstance(key, str)}
    found: dict[int, Record] = {}
    for key in _LISTS:
        listed = plain.pop(key, None)
        for one in ([listed] if isinstance(listed, dict) else listed if isinstance(listed, list) else [])[
            :MOST_RECORDS
        ]:
            record = _record(one)
            if record is not None:
                found.setdefault(record.number, record)
    desc = plain.get("commDesc")
    return Comm(
        name,
        desc if isinstance(desc, str) else "",
        count(plain.get("rank")),
        count(plain.get("nRanks")),
        [found[number] for number in sorted(found)],
        plain,
    )


def _record(value: Any) -> Record | None:
    if not isinstance(value, dict):
        return None
    number = count(value.get("collId"))
    number = count(value.get("opCount")) if number is None else number
    op = value.get("opName") or value.get("coll")
    if number is None or not isinstance(op, str):
        return None
    peers = value.get("ranksInGroupedP2P")
    return Record(
        number,
        op[:100],
        value.get("MetadataType") == "GroupedP2PMetaData" or peers is not None,
        tuple(sorted({rank for rank in map(count, peers) if rank is not None})) if isinstance(peers, list) else (),
        _time(value.get("enqueueTs")),
        _time(value.get("startTs")),
        _time(value.get("endTs")),
        count(value.get("count")),
        _text(value.get("dataType")),
        count(value.get("root")),
        _text(value.get("redOp")),
        _text(value.get("algoName")) or _text(value.get("algorithm")),
    )


def _time(value: Any) -> int | None:
    """Microseconds as Unix time in ns; 0 is a time that has not come."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _MOST_US:
        return int(value * _NS_PER_US)
    return None


def _text(value: Any) -> str | None:
    return value[:100] if isinstance(value, str) and value else None


SEND_STATES: Final = (
    ("TRANSMITTED", "POSTED", "waiting_gpu", "the kernel of this rank, or a slot of the receiver"),
    ("DONE", "TRANSMITTED", "sending", "the network or the receiver's NIC"),
)
RECV_STATES: Final = (
    ("RECEIVED", "POSTED", "receiving", "the sender, or the path from it"),
    ("TRANSMITTED", "RECEIVED", "flushing", "this host's GPU or PCIe"),
    ("DONE", "TRANSMITTED", "waiting_gpu", "the kernel of this rank"),
)
"""What a proxy does whose first counter is behind its second: the state, and who is waited for."""


def proxy_state(op: Mapping[str, Any]) -> tuple[str, str] | None:
    """What an operation of the proxy is doing, and who it waits for; None where its steps do not tell."""
    for behind, ahead, state, waits in SEND_STATES if op.get("opType") == "SEND" else RECV_STATES:
        done, asked = step(op, behind), step(op, ahead)
        if done is not None and asked is not None and done < asked:
            return state, waits
    return None


def step(op: Mapping[str, Any], name: str) -> int | None:
    """How far a counter of a proxy's operation is."""
    value = op.get(name)
    return count(value.get("step")) if isinstance(value, dict) else None
