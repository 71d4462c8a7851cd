"""NCCL Inspector (the profiler plugin of NCCL 2.28.3 and later): one JSON object a line for each finished operation.

    {"header": {"id": "0xe62dedaa97644a", "rank": 4, "n_ranks": 8, "nnodes": 1},
     "metadata": {"inspector_output_format_version": "v4.0", "dump_timestamp_us": ..., "hostname": "h", "pid": 438776},
     "coll_perf": {"coll": "ReduceScatter", "coll_sn": 1231, "coll_msg_size_bytes": ..., "coll_exec_time_us": ...,
                   "event_trace_ts": {"coll_start_ts": ..., "coll_stop_ts": ..., "kernel_events": [...]}}}

`p2p_perf` and `comm_name` since 2.30; `dump_stats` (what the plugin dropped) in lines of v4.2. The version did not
change with the fields, so keys decide. Files: `<host>-pid<pid>.log`, also `.jsonl`, compressed or not.
Source: NCCL `plugins/profiler/inspector/inspector_json.cc`, before 2.29.7 `ext-profiler/inspector`.

Only what ended is written: an operation that hangs leaves no line, and one below the plugin's least size or pushed out
of its ring leaves none either. So every call here is completed, and a missing one is weak evidence.
`coll_sn` counts per type of operation and communicator, from 0: it is kept as printed, and rounds need `op` beside it.
Times: `event_trace_ts` (verbose lines) in microseconds of Unix time: enter is `coll_start_ts` (the host's side),
start is the first `kernel_start_ts`, end the last `kernel_stop_ts`, by the GPU's clock where `coll_timing_source` says
`kernel_gpu`. `coll_stop_ts` is when the host had launched it, and is `issued_ns`. Without them all four are null: the
time of the dump is no time of the call.

Ranks are those of the communicator; they are made global as with RAS: by host and process through the communicator
with all processes in it. Bandwidths are kept per communicator, type and size in `facts`.

Facts (`kind`: fields):
    inspector_bandwidth: comm, op, bytes, calls, ranks, busbw_gb_per_s (least, median, greatest), exec_us (the same)
    inspector_dropped: comm, comm_rank, collectives, p2p: lines that the plugin lost in its ring
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

from roundk.analyze.sources.inputs import Hints, Input
from roundk.analyze.sources.inspector.tables import Tables
from roundk.analyze.sources.part import Part
from roundk.analyze.sources.rows import READ_ERRORS, lines
from roundk.analyze.trace import Unreadable

KIND: Final = "inspector"

_KEYS: Final = re.compile(rb'"(?:coll_perf|p2p_perf|dump_stats)"\s{0,8}:\s{0,8}\{')
_HEADER: Final = re.compile(rb'"header"\s{0,8}:\s{0,8}\{')


def recognises(item: Input) -> bool:
    """Whether its first lines are Inspector's."""
    head = item.head
    return head.lstrip()[:1] == b"{" and bool(_HEADER.search(head, 0, 4096)) and bool(_KEYS.search(head, 0, 16384))


def load(inputs: Sequence[Input], hints: Hints) -> Part:
    """The finished operations of all processes."""
    del hints  # A line says its rank.
    tables = Tables()
    read: list[str] = []
    unreadable: list[Unreadable] = []
    cut: list[str] = []
    for item in inputs:
        before = tables.number
        bad, is_cut, why = _lines(tables, item)
        if tables.number > before:
            read.append(item.name)
        if is_cut or why:
            cut.append(item.name)
        if why:
            unreadable.append(Unreadable(item.name, why))
        elif tables.number == before:
            unreadable.append(Unreadable(item.name, "no line of it is whole; was the file cut when it was copied?"))
        elif bad:
            unreadable.append(Unreadable(item.name, f"{bad} of its lines are no whole JSON objects and are left out"))
    return tables.part(KIND, tuple(read), tuple(unreadable), tuple(cut))


def _lines(tables: Tables, item: Input) -> tuple[int, bool, str | None]:
    """Take the lines of one input: how many are bad, whether the last is cut, and why reading stopped early."""
    bad, number, is_cut = 0, 0, False
    try:
        for line, has_end in lines(item):
            number += 1
            entry = _parsed(line)
            if entry is not None and tables.add(entry, item.name, number):
                continue
            is_cut = not has_end
            bad += bool(line.strip()) and has_end
    except READ_ERRORS as error:
        return bad, True, f"cannot be read beyond line {number}: {error or type(error).__name__}"
    return bad, is_cut, None


def _parsed(line: bytes) -> dict[str, Any] | None:
    if not line.lstrip().startswith(b"{"):
        return None
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None
