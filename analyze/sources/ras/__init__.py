"""NCCL RAS: answers of `ncclras` (or of `roundk ras --out`), as text and JSON, single, several, or in a directory.

Versions: text since NCCL 2.24 (one count of operations), by type since 2.26; JSON since 2.28.7, without a comma until
2.28.9; monitor events since 2.29. Ray Train writes `nccl_ras/ncclras_<time>.json` and `ncclras_report.txt`.
Source: `src/ras/client_support.cc` of NCCL 2.24 to 2.30; Ray `train/v2/_internal/callbacks/nccl_ras.py`.

Counts are collectives launched, per type: `progress` has one row per rank, communicator and type (`op`), `enqueued` is
the count. Ranks in RAS are ranks of the communicator. They are made global by (node, process, NVML device) through
the communicator that spans all GPU processes RAS knows; without one, facts keep node and process and `progress` is
left out. RAS sees no process that no communicator connects to the one asked, so "all" is what it knows.
JSON has a local time without a zone; it is read as UTC, unless the file's name tells UTC. Text has no time: it is that
of the file's name.

Facts (`kind`: fields):
    ras_mismatch: comm, size, op, low, high, num_behind, num_ranks, behind (at most 100), are_global. One per
        communicator, type and answer. In one answer alone it is normal for a job at work.
    ras_dead, ras_unresponsive, ras_not_member: comm_rank, comms, pid, gpu (number of processes where only that is told)
    ras_error: comm, comm_rank, error, pid, gpu
    ras_status: comm, comm_rank, status, pid: a rank that aborts or ends where others of its communicator run
    ras_timeout: timeouts
    ras_event: event, details, pid, gpu
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from roundk.analyze.sources.inputs import Hints, Input
from roundk.analyze.sources.part import Part
from roundk.analyze.sources.ras import json as ras_json
from roundk.analyze.sources.ras import snapshot as model
from roundk.analyze.sources.ras import text as ras_text
from roundk.analyze.sources.ras.snapshot import Event, Snapshot
from roundk.analyze.sources.ras.tables import Tables
from roundk.analyze.sources.rows import READ_ERRORS, named_time, read_bytes
from roundk.analyze.trace import Unreadable

KIND: Final = "ras"

MOST_BYTES: Final = 1 << 29
"""An answer beyond half a gigabyte is read up to there: 16,384 ranks in 80 communicators."""

_ANSWER: Final = re.compile(rb'"communicators(?:_count)?"\s{0,64}:')
_ABOUT: Final = re.compile(rb'"(?:nccl_version|collective_counts|missing_ranks_count)"\s{0,64}:')
_EVENT: Final = re.compile(rb'"event"\s{0,64}:\s{0,64}"PEER_')
_TEXT: Final = re.compile(rb"^[ \t]{0,64}Job summary[ \t\r]{0,64}\n[ \t]{0,64}={5,}", re.MULTILINE)
_TABLE: Final = re.compile(rb"Processes[ \t]+GPUs|Nodes[ \t]+Processes")
_TEXT_EVENT: Final = re.compile(rb"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] PEER_[A-Z_]{2,40}: ", re.MULTILINE)


def recognises(item: Input) -> bool:
    """Whether it is an answer of RAS or a record of its monitor mode."""
    head = item.head
    if _EVENT.search(head) or _TEXT_EVENT.search(head):
        return True
    if _ANSWER.search(head) and _ABOUT.search(head):
        return True
    return bool(_TEXT.search(head) and _TABLE.search(head))


def parse(data: bytes, source: str) -> tuple[list[Snapshot], list[Event], list[str]]:
    """The answers and events in the bytes of one file, and what there is to say of them."""
    text = data.decode("utf-8", "replace")
    is_json = _ANSWER.search(data, 0, 1 << 16) or _EVENT.search(data, 0, 1 << 16)
    return ras_json.read(text, source) if is_json else ras_text.read(text, source)


def load(inputs: Sequence[Input], hints: Hints) -> Part:
    """What RAS told of the job."""
    del hints  # No input is of one rank.
    unreadable: list[Unreadable] = []
    snapshots: list[Snapshot] = []
    events: list[Event] = []
    notes: list[str] = []
    read: list[str] = []
    ignored: list[str] = []
    for item in inputs:
        try:
            data, is_long = read_bytes(item, MOST_BYTES)
        except READ_ERRORS as error:
            unreadable.append(Unreadable(item.name, f"cannot be read: {error}"))
            continue
        found, seen, told = parse(data, item.name)
        if is_long:
            told.append(f"{item.name}: only its first {MOST_BYTES >> 20} MiB are read")
        if not found and not seen:
            why = "an answer of NCCL RAS in which nothing whole is left; fetch it again (`roundk ras --out DIR`)"
            unreadable.append(Unreadable(item.name, why) if told or data else Unreadable(item.name, "it is empty"))
            continue
        snapshots += [_timed(snapshot, item.name) for snapshot in found]
        events += seen
        notes += told
        (read if any(s.comms or s.num_gpus for s in found) or seen else ignored).append(item.name)
    ordered = sorted(snapshots, key=lambda snapshot: (snapshot.time_ns is None, snapshot.time_ns or 0, snapshot.source))
    tables = Tables(ordered, events)
    return Part(
        kind=KIND,
        read=tuple(read),
        ignored=tuple(ignored),
        groups=tables.groups,
        progress=tables.progress,
        ranks=tables.ranks,
        facts=tables.facts,
        world_size=tables.world_size,
        unreadable=tuple(unreadable),
        versions=_versions(ordered, events),
        notes=(*notes, *tables.notes, *_notes(ordered)),
    )


def _timed(snapshot: Snapshot, name: str) -> Snapshot:
    """The snapshot with the time of its file's name where that is the better one."""
    when, is_utc = named_time(name.replace("!", "/").rsplit("/", 1)[-1])
    if when is not None and (is_utc or snapshot.time_ns is None):
        return replace(snapshot, time_ns=when)
    return snapshot


def _versions(snapshots: Iterable[Snapshot], events: Sequence[Event]) -> tuple[str, ...]:
    told = dict.fromkeys(
        f"NCCL RAS {snapshot.form}" + (f", NCCL {snapshot.version}" if snapshot.version else "")
        for snapshot in snapshots
    )
    return (*told, *(["NCCL RAS monitor events"] if events else []))


def _notes(snapshots: Sequence[Snapshot]) -> list[str]:
    notes: list[str] = []
    garbage = sum(snapshot.num_garbage for snapshot in snapshots)
    if garbage:
        notes.append(f"RAS: {garbage} entries with impossible numbers are left out (known of NCCL 2.27.3)")
    repaired = sum(snapshot.num_repaired > 0 for snapshot in snapshots)
    if repaired:
        notes.append(f"RAS: in {repaired} file(s) commas are put back that NCCL 2.28.7 to 2.28.9 leave out")
    if any(snapshot.time_ns is not None for snapshot in snapshots):
        notes.append("RAS tells its time without a zone: it is read as UTC where the file's name does not say")
    if snapshots and not any(comm.lags() for snapshot in snapshots for comm in snapshot.comms):
        notes.append(
            "RAS counts what was launched, of five types of collectives: counts that are equal do not mean that the"
            " job is healthy, and send/recv, all-to-all and CUDA graphs are not counted at all"
        )
    if any(comm.size is not None and comm.members for snapshot in snapshots for comm in snapshot.comms):
        ranks, _, note = model.world(snapshots)
        if note is None and ranks:
            notes.append(
                "RAS: ranks are those of its largest communicator; processes that none connects to it are not seen"
            )
    return notes
