"""RAS as JSON (NCCL 2.28.7 and later): one answer, several of them, monitor events, or what a cut file still has.

A whole answer is one object; monitor mode writes one pretty-printed object after another. 2.28.7 to 2.28.9 leave out
the comma behind `nvml_dev` of every missing rank (fixed in 2.29): it is put back before parsing. An answer of 16,384
ranks has hundreds of megabytes, so a large one is read object by object, as is the part before a cut.

Source: NCCL `src/ras/client_support.cc`, 2.28.7 to 2.30.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from roundk.analyze.sources.ras import snapshot as ras
from roundk.analyze.sources.ras.snapshot import Comm, Event, Member, Place, Snapshot
from roundk.analyze.sources.rows import MOST_INT, count, told_time

MOST_AT_ONCE: Final = 64 << 20
"""Bytes of text up to which a file is parsed whole; the objects take about eight times as much."""

_MOST_FAILURES: Final = 200
"""Objects that cannot be parsed after which a file is given up: each costs a try from its beginning."""

_NO_COMMA: Final = re.compile(r'("nvml_dev"\s*:\s*-?\d{1,12})(\s*"status")')
_COMMS: Final = re.compile(r'"communicators"\s*:\s*\[')
_RANKS: Final = re.compile(r'"(ranks|missing_ranks)"\s*:\s*\[')
_TIMEOUTS: Final = re.compile(r'"timeouts_count"\s*:\s*(\d{1,9})')
_OBJECT: Final = re.compile(r"^[ \t]*\{", re.MULTILINE)
_GAP: Final = " \t\r\n,"
_DECODER: Final = json.JSONDecoder()
_BAD: Final = (ValueError, RecursionError)
_MOST_OPS: Final = 64
_FOOTER: Final = 4096


def read(text: str, source: str) -> tuple[list[Snapshot], list[Event], list[str]]:
    """What a file holds, and what there is to say of it."""
    text, repaired = _NO_COMMA.subn(r"\1,\2", text)
    snapshots: list[Snapshot] = []
    events: list[Event] = []
    failures = 0
    place = _next_object(text, 0)
    while place is not None and failures < _MOST_FAILURES:
        value, end = _decoded(text, place) if len(text) <= MOST_AT_ONCE else (None, place)
        if end == place:
            comms = _COMMS.search(text, place)
            if comms is None:
                failures += 1
                end = place + 1
            else:
                value, end, is_cut = _piecewise(text, place, comms)
                failures += is_cut
        if isinstance(value, dict):
            where = source if not snapshots else f"{source}:{text.count(_LINE_END, 0, place) + 1}"
            _take(value, where, snapshots, events)
        place = _next_object(text, end)
    if repaired and snapshots:
        snapshots[0] = replace(snapshots[0], num_repaired=repaired)
    notes = [f"{source}: it is cut or damaged; what is whole in it is used"] if failures else []
    return snapshots, events, notes


_LINE_END: Final = "\n"


def _next_object(text: str, start: int) -> int | None:
    found = _OBJECT.search(text, start)
    return None if found is None else found.end() - 1


def _decoded(text: str, start: int) -> tuple[Any, int]:
    """The value that begins there and the place behind it, which is `start` where none can be parsed."""
    try:
        return _DECODER.raw_decode(text, start)
    except _BAD:
        return None, start


def _skip(text: str, at: int) -> int:
    while text[at : at + 1] and text[at] in _GAP:
        at += 1
    return at


def _take(value: Mapping[str, Any], where: str, snapshots: list[Snapshot], events: list[Event]) -> None:
    if isinstance(value.get("communicators"), list):
        snapshots.append(_snapshot(value, where))
    elif isinstance(value.get("event"), str):
        peer = value.get("peer")
        place = _peer(peer) if isinstance(peer, dict) else Place(None, None)
        when = told_time(str(value.get("timestamp", "")))
        events.append(Event(when, value["event"][:64], place, str(value.get("details", ""))[:500], where))


def _peer(peer: Mapping[str, Any]) -> Place:
    devices = peer.get("nvml_devs")
    gpu = count(devices[0]) if isinstance(devices, list) and len(devices) == 1 else None
    host = peer.get("host")
    if host is None and isinstance(peer.get("addr"), str):
        host = peer["addr"].split("<")[0]
    return Place(_host(host), count(peer.get("pid")), gpu)


def _piecewise(text: str, start: int, comms: re.Match[str]) -> tuple[dict[str, Any], int, bool]:
    """An answer read communicator by communicator, as far as it goes; the place behind it; whether it is cut."""
    value = _header(text[start : comms.start()])
    entries: list[Comm | int] = []
    at = _skip(text, comms.end())
    is_cut = False
    while text[at : at + 1] == "{":
        entry, end = _decoded(text, at)
        if end == at:
            is_cut = True
            entry, end = _cut_comm(text, at), len(text)
        entries.append(_comm(entry))
        at = _skip(text, end)
    is_cut |= text[at : at + 1] != "]"
    tail = None if is_cut else _TIMEOUTS.search(text, at, at + _FOOTER)
    if tail is not None:
        value["ras"] = {"timeouts_count": int(tail[1])}
    value["communicators"] = entries
    return value, max(at, comms.end()), is_cut


def _header(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text.rstrip().rstrip(",") + "}")
    except _BAD:
        return {}
    return value if isinstance(value, dict) else {}


def _cut_comm(text: str, start: int) -> dict[str, Any]:
    """A communicator whose end is missing: its own fields, and the ranks that are whole."""
    first = _RANKS.search(text, start)
    if first is None:
        return {}
    entry = _header(text[start : first.start()])
    part: re.Match[str] | None = first
    while part is not None:
        entry[part[1]], at = _whole_items(text, part.end())
        part = _RANKS.match(text, _skip(text, at))
    return entry


def _whole_items(text: str, at: int) -> tuple[list[Any], int]:
    items: list[Any] = []
    at = _skip(text, at)
    while text[at : at + 1] == "{":
        item, end = _decoded(text, at)
        if end == at:
            return items, len(text)
        items.append(item)
        at = _skip(text, end)
    return items, at + 1


def _snapshot(value: Mapping[str, Any], source: str) -> Snapshot:
    entries = [entry if isinstance(entry, Comm | int) else _comm(entry) for entry in value["communicators"]]
    comms = tuple(entry for entry in entries if isinstance(entry, Comm))
    about = value.get("ras")
    timeouts = count(about.get("timeouts_count")) if isinstance(about, dict) else None
    version = value.get("nccl_version")
    members = [member for comm in comms for member in comm.members.values()]
    gone = {member.place: member.state for member in members if member.state in {ras.DEAD, ras.UNRESPONSIVE}}
    states = list(gone.values())
    return Snapshot(
        source=source,
        form="JSON",
        time_ns=told_time(str(value.get("timestamp", ""))),
        version=version[:32] if isinstance(version, str) else None,
        comms=comms,
        processes=tuple(gone.items()),
        num_missing=states.count(ras.UNRESPONSIVE),
        num_dead=states.count(ras.DEAD),
        num_timeouts=timeouts or 0,
        num_garbage=sum(entry if isinstance(entry, int) else entry.num_garbage for entry in entries),
    )


def _comm(entry: object) -> Comm | int:
    """A communicator, or the number of entries that are garbage: it and its ranks."""
    if not isinstance(entry, dict):
        return 1
    listed = [
        *((member, _present) for member in _dicts(entry.get("ranks"))),
        *((member, _missing) for member in _dicts(entry.get("missing_ranks"))),
    ]
    size = count(entry.get("size"))
    number = _hex(entry.get("hash"))
    if size is None or not 0 < size <= ras.MOST_RANKS or number is None:
        return 1 + len(listed)
    members: dict[int, Member] = {}
    for member, make in listed:
        rank = count(member.get("rank"))
        if rank is not None and rank < size and rank not in members:
            members[rank] = make(rank, member)
    key = str(entry.get("secondary_hash", ""))[:64]
    return Comm(number, key, size, members, num_garbage=len(listed) - len(members))


def _dicts(entries: object) -> list[dict[str, Any]]:
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _hex(value: object) -> str | None:
    if not isinstance(value, str) or not re.fullmatch(r"(0x)?[0-9a-fA-F]{1,16}", value):
        return None
    return f"{int(value, 16):x}"


def _host(value: object) -> str | None:
    return value[:256] if isinstance(value, str) and value not in ("", "unknown") else None


def _place(entry: Mapping[str, Any]) -> Place:
    gpu = count(entry.get("nvml_dev", entry.get("cuda_dev")))
    return Place(_host(entry.get("host")), count(entry.get("pid")), gpu)


def _present(rank: int, entry: Mapping[str, Any]) -> Member:
    status = entry.get("status")
    counts = entry.get("collective_counts")
    told = status if isinstance(status, dict) else None
    return Member(
        rank,
        _place(entry),
        status=None if told is None else _status(told),
        error=None if told is None else _error(told),
        counts=_counts(counts) if isinstance(counts, dict) else {},
    )


def _counts(counts: Mapping[str, Any]) -> dict[str, int]:
    return {
        op[:32]: value
        for op, value in list(counts.items())[:_MOST_OPS]
        if isinstance(value, int) and 0 <= value <= MOST_INT and not isinstance(value, bool)
    }


def _status(status: Mapping[str, Any]) -> str | None:
    if status.get("abort_flag") is True:
        return "ABORT"
    if status.get("finalize_called") is True or status.get("destroy_flag") is True:
        return "FINALIZE"
    state = status.get("init_state")
    if state is None:
        return None
    return "RUNNING" if state == 0 else "INIT"


def _error(status: Mapping[str, Any]) -> str | None:
    for key, kind in (("init_state", "initialization"), ("async_error", "asynchronous")):
        code = count(status.get(key))
        text = None if code is None else ras.error_text(code)
        if text is not None:
            return f"{kind}: {text}"
    return None


def _missing(rank: int, entry: Mapping[str, Any]) -> Member:
    status = entry.get("status")
    told = status if isinstance(status, dict) else {}
    if told.get("considered_dead") is True:
        state = ras.DEAD
    elif told.get("unresponsive") is False:
        state = ras.NOT_MEMBER
    else:
        state = ras.UNRESPONSIVE
    return Member(rank, _place(entry), state)
