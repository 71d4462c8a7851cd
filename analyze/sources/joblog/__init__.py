"""Job logs: what torch, gloo, torchrun, NCCL, CUDA, the kernel and Slurm print, in one file or in many.

Formats and versions stand in the modules: `torch_lines` (torch 1.9 to 2.14), `desync`, `gloo_lines`, `elastic`,
`tracebacks`, `stacks`, `store_lines`, `nccl_lines` and `comms` (NCCL 2.8 to 2.30), `cuda_lines`, `kernel`, `slurm`;
`prefixes` what stands in front. Source: the printf and ostream formats of those projects at their release tags. Only
what one of these reads is evidence: a log in which nothing is read is listed as ignored.

A log is a stream of any size, interleaved, cut short, coloured, wrapped, not UTF-8; memory is bounded (`scan`,
`book`).

Kinds of facts and the fields of each (always: `group`, `group_desc`, `group_rank`, `pid`, `local_rank` where the line
tells; `count` and `last_ns` where equal lines were folded; `after_ns`, the latest time before a line that has none;
`uptime_s` where the kernel's clock is all there is; `peer_host` where a peer's address is known to be a host's):

torch: `collective_timeout` (seq, op, source_op, backend, shape, numel_in, numel_out, timeout_ms, ran_for_ms,
onset_ns, is_blocking_wait) · `async_error` (the same, error) · `watchdog_status` (work, enqueued, started, completed,
is_start_told, is_completed_told: false where the number is garbage) · `dump_signal` (the same, origin_rank, is_own) ·
`dump_first` · `dump_observed` · `dump_started` · `dump_written` (path) · `dump_not_finished` (waited_ms) ·
`watchdog_abort` · `watchdog_ended` (reason) · `process_terminated` (reason) · `heartbeat_timeout` (stuck_s) ·
`gil_held` (waited_ms) · `terminate` (exception) · `store_error` (error) · `remote_error` (origin_rank) ·
`communicator_aborted` (of_group_rank, reason) · `init_store_error` (root, key, error) · `nccl_error` (name, error,
nccl_version) · `tc_timeout` (comm, ran_for_ms) · `tc_abort` (comm, reason) · `collective_stack` (site, function,
frames) · `desync_timeout` (seq, op) · `desync_lagging` (did: never_joined | not_joined | not_finished, ranks, seq) ·
`desync_state` (seq, state, op, ranks) · `desync_missing` · `fingerprint_mismatch` (sides: [rank, seq, op, shape,
dtype], differences) · `ncclx_timeout`, `ncclx_async_error` (op_count, op, comm, state)

store: `store_clients` (joined, expected, waited_s) · `store_barrier` (joined, expected, key) ·
`store_connect_timeout` (peer, port, timeout_ms) · `store_connect_failed` (peer, port, errno, error)

gloo: `gloo_timeout` (timeout_ms, direction, at) · `gloo_closed` (peer, port) · `gloo_io_error` (peer, port,
operation, error) · `gloo_connect_timeout` (peer, port) · `gloo_pair_closed` · `gloo_mesh_failed` (error) ·
`gloo_connect_failed` (retries, retry, retry_limit, rank, size, local, remote, error) · `monitored_barrier` (ranks
that did not come, timeout_ms, reporter) · `monitored_barrier_error` (root, timeout_ms, reporter)

Python, CUDA: `exception` (type, message, site, function, frames, is_uncaught: torch's hook printed it, before: [type,
message, site] of those it followed, is_mixed) · `agent_exception` (the same, of torchrun's agent) ·
`fatal_python_error` (error) · `cuda_error` (error) · `cuda_out_of_memory` (tried, gpu)

torchrun: `elastic_failure` (rank in the summary: exit_code or exit_signal, local_rank, is_first_observed, host,
error_file, message) · `elastic_failed` (exit_code or exit_signal, local_rank, what) · `elastic_closing` (signal) ·
`elastic_told` (signal) · `elastic_restart` · `elastic_forced` · `elastic_stuck` (waited_s)

NCCL: `net_completion_error` (plugin, status, status_name, opcode, opcode_name, length, vendor_err, peer, peer_port,
direction, local_gid, remote_gid, hca) · `net_async_event` (plugin, event, code, device, port, is_fatal) ·
`net_device_failed` (device_index, recovers, failed) · `net_gid_changed` (device, port) · `net_speed_changed` (device,
port, before_mbit_per_s, after_mbit_per_s) · `net_call_failed` (call, errno, error, peer, peer_port, device, port,
current_state, next_state, gid_index, local_gid, remote_gid) · `net_closed` (peer, port) · `net_socket_error` ·
`nccl_size_mismatch` (what, local_size, remote_size) · `nccl_mismatch` (of_comm_rank) · `nccl_cuda_failure` (error,
code) · `nccl_proxy_error`, `nccl_warning` (message) · `nccl_returned` (code, error) · `nccl_duplicate_gpu`
(comm_ranks, bus_id) · `nccl_version_mismatch` (sides: [comm_rank, version]) · `nccl_no_interface` (by) ·
`nccl_setting` (name, value) · `nccl_network` (network) · `nccl_no_device` (plugin) · `nccl_devices` (plugin, devices:
[index, device, port, link | address]) · `nccl_address` (interface, address) · `nccl_gdr` (is_enabled, detail) ·
`nccl_version` (version) · `nccl_communicator` (comm, nranks, began, finished; absent: ranks in it that never
began, absent_ranks: the same as ranks of the job) · `nccl_init_open` (comm, comm_rank, nranks)

kernel: `xid`, `sxid` (bus_id, xid, name, detail) · `oom_kill` (name, is_cgroup, anon_rss_bytes) · `oom_chosen` (name,
constraint) · `oom_invoked` (name) · `segfault` (name, library) · `link_down`, `link_up` (device, bus_id, port, state)
· `port_module` (bus_id, device, module, event) · `nic_error` (bus_id, device, error) · `pcie_error` (bus_id, driver,
severity)

Slurm, mpirun: `slurm_oom` (step, events) · `slurm_task_exit` (tasks, how, exit_code, exit_signal, is_oom) ·
`slurm_time_limit`, `slurm_node_failure`, `slurm_preempted`, `slurm_cancelled` (what, id, node, reason) ·
`slurm_aborted` · `mpirun_exit` (rank, exit_signal)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import polars as pl

from roundk.analyze.sources import rows
from roundk.analyze.sources.inputs import START, Hints, Input
from roundk.analyze.sources.joblog import attempts, nccl_tables
from roundk.analyze.sources.joblog.book import Book
from roundk.analyze.sources.joblog.reading import Reading
from roundk.analyze.sources.joblog.resolve import Ranks
from roundk.analyze.sources.joblog.tables import Tables
from roundk.analyze.sources.part import Part
from roundk.analyze.trace import Unreadable
from roundk.tracer import schema

KIND: Final = "job_log"

_MOST_ODD: Final = 0.02
"""Share of control characters beyond which bytes are no text: a tenth of random ones are."""
_ODD: Final = bytes(byte for byte in range(32) if byte not in b"\t\n\v\f\r\b\a\x1b") + b"\x7f"
_NULS: Final = re.compile(rb"\x00{16,}")
"""What a log that was truncated while it was written to begins with, or a lost block of it."""
_DOCKER: Final = b'{"log":"'
_MARKS: Final = (b"\xff\xfe", b"\xfe\xff")
_MOSTLY: Final = 0.9
"""Share of its letters that are ASCII, in a log of whatever language."""
_SOME: Final = 1 / 16
"""The same in a log that is marked as UTF-16."""
_LEAST_PAIRS: Final = 32
_WIDE: Final = "UTF-16 text: convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)"
_OTHER: Final = (
    b"{",
    b'["',
    b"[{",
    b"[[",
    b"[]",
    b"\x80",
    b"ARROW1",
    b"PAR1",
    b"PK\x03\x04",
    b"<?xml",
    b"<!DOCTYPE",
    b"<html",
)
_TABLE: Final = re.compile(rb"[A-Za-z_]\w*(?:[,;\t][A-Za-z_]\w*){2,}\r?\n")
"""A first line of names between commas: a table of calls."""


def recognises(item: Input) -> bool:
    """Whether the first bytes are text and none of the other sources': what a log says only reading it shows."""
    try:
        head = item.head
    except rows.READ_ERRORS:
        return False
    if _is_wide(item):
        return True  # to say so
    text = _NULS.sub(b"", head).lstrip()
    if not text:
        return bool(head)
    if text.startswith(_OTHER) and not text.startswith(_DOCKER):
        return False
    if _TABLE.match(text) is not None:
        return False
    odd = len(text) - len(text.translate(None, _ODD))
    return odd <= _MOST_ODD * len(text)


def _is_utf16(head: bytes) -> bool:
    """Whether text is UTF-16: by its mark or, without one, as every other byte of English is zero."""
    text = head[:START]
    pairs = len(text) // 2
    zeros = max((text[k::2].count(0) for k in (0, 1)), default=0)
    others = text.count(0) - zeros
    # Of any language: spaces, digits and the ends of lines have a zero. A program's line may begin with any two bytes.
    is_marked = text.startswith(_MARKS) and zeros >= _SOME * pairs
    return is_marked or (pairs >= _LEAST_PAIRS and zeros >= _MOSTLY * pairs and others == 0)


def _is_wide(item: Input) -> bool:
    try:
        return _is_utf16(item.start)
    except rows.READ_ERRORS:
        return False


def load(inputs: Sequence[Input], hints: Hints) -> Part:
    """Read logs.

    Args:
        inputs: Logs of one job.
        hints: What the user says of their names.
    """
    inputs, of_earlier = attempts.last_files(inputs)
    book = Book()
    wide = [item for item in inputs if _is_wide(item)]
    unreadable = [Unreadable(item.name, _WIDE) for item in wide]
    inputs = [item for item in inputs if item not in wide]
    readings = [Reading(item, file, book) for file, item in enumerate(inputs)]
    _date(readings, hints)
    for reading, item in zip(readings, inputs, strict=True):
        try:
            reading.run()
        except rows.READ_ERRORS as error:
            what = str(error) or type(error).__name__
            why = f"{what}: {reading.lines} lines were read; copy it again if it should be longer"
            unreadable.append(Unreadable(item.name, why))
    ranks = Ranks(book, inputs, hints)
    tables = Tables(book, ranks, inputs)
    watched, sites = tables.calls()
    traced, comm_groups, call_notes = nccl_tables.calls(book, ranks, len(tables.groups))
    calls = pl.concat([rows.from_dicts(schema.CALLS, watched), traced]).sort("rank", maintain_order=True)
    progress = tables.progress()
    found = {file for file, count in book.found.items() if count}
    return Part(
        kind=KIND,
        read=tuple(item.name for file, item in enumerate(inputs) if file in found),
        ignored=tuple(item.name for file, item in enumerate(inputs) if file not in found),
        calls=calls,
        groups=rows.from_dicts(schema.GROUPS, [*tables.group_rows(), *comm_groups]),
        progress=progress,
        ranks=tables.ranks(
            {**dict.fromkeys(progress["rank"].to_list(), 0), **dict(calls["rank"].value_counts().iter_rows())}
        ),
        sites=rows.from_dicts(schema.SITES, sites),
        facts=pl.concat(
            [
                tables.facts(),
                rows.from_dicts(
                    schema.FACTS,
                    [*nccl_tables.communicators(book, ranks, inputs), *nccl_tables.unfinished(book, ranks, inputs)],
                ),
            ]
        ),
        channels=nccl_tables.channels(book, ranks, inputs),
        members_told=tables.are_members_told,
        world_size=ranks.world_size,
        unreadable=tuple(unreadable),
        versions=_versions(book),
        notes=(
            *([of_earlier] if of_earlier else ()),
            *_notes(book, readings),
            *ranks.notes,
            *tables.notes,
            *call_notes,
        ),
    )


def _date(readings: Sequence[Reading], hints: Hints) -> None:
    """Give each log a year for the lines without one: its own, else that of another log, else of another input."""
    undated = [reading for reading in readings if not reading.date()]
    dated = (reading.clock.dated_ns for reading in readings)
    near = next((at for at in dated if at is not None), hints.near_ns)
    for reading in undated:
        if near is not None:
            reading.clock.near(near)


def _versions(book: Book) -> tuple[str, ...]:
    return tuple(sorted({f"NCCL {fact.event.fields['version']}" for fact in book.facts("nccl_version")}))


def _notes(book: Book, readings: Sequence[Reading]) -> list[str]:
    notes = []
    if book.calls.is_zone_missing or any(reading.clock.is_zone_missing for reading in readings):
        notes.append("logs: times without a zone are read as UTC")
    if any(reading.clock.is_year_guessed for reading in readings):
        notes.append("logs: times without a year are given that of other lines or inputs, or of the file")
    notes += [f"logs: {count} more lines of kind {kind} are not kept" for kind, count in sorted(book.lost.items())]
    if crowded := sum(reading.crowded for reading in readings):
        notes.append(f"logs: {crowded} messages of several lines are left out, too many were open at once")
    if book.comms.comms_lost or book.comms.channels_lost:
        lost = f"{book.comms.comms_lost} communicators and {book.comms.channels_lost} ends of channels"
        notes.append(f"logs: {lost} are not kept, there are too many")
    return notes
