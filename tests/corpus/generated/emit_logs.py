"""What the job of a run prints: the watchdogs of those that wait, and the last words of one that dies."""

from __future__ import annotations

import os
from datetime import UTC, datetime

from generated.emit_dumps import START_NS
from generated.program import P2P, UNEVEN_GATHER

TIMEOUT_S = 600.0
WORKS = {
    "all_reduce": "ALLREDUCE",
    "all_gather_into_tensor": "_ALLGATHER_BASE",
    "reduce_scatter_tensor": "_REDUCE_SCATTER_BASE",
    "all_to_all_single": "ALLTOALL_BASE",
    "all_gather": "ALLGATHER",
    "broadcast": "BROADCAST",
    "reduce": "REDUCE",
    "barrier": "BARRIER",
    "all_reduce_coalesced": "ALLREDUCE_COALESCED",
    UNEVEN_GATHER: "ALLGATHER",
    "coalesced": "COALESCED",
    "send": "SEND",
    "recv": "RECV",
}


def write(case, path):
    """One log of all ranks; the clock is that of each one's host."""
    lines = []
    for rank in range(case.world):
        how, at = case.run.halted.get(rank, ("", 0.0))
        if how == "dead":
            lines += _last_words(case, rank, at)
        elif how not in ("stopped", "exit") and not case.is_blocking:
            lines += _watchdog(case, rank)
    lines.sort()
    path.write_text("".join(f"{text}\n" for _, text in lines))
    when = (START_NS / 1e9) + case.cut + 60
    os.utime(path, (when, when))


def _watchdog(case, rank):
    """The oldest call that has not ended is what is found first."""
    counts, found = {}, None
    completed = {}
    for node in case.run.calls[rank]:
        call = node.call
        is_p2p = call.op in P2P or bool(call.batch)
        count = counts.setdefault(call.group, [0, 0])
        count[is_p2p] += 1
        if node.end is not None:
            completed[call.group] = count[is_p2p]
        elif found is None or node.enter < found[0].enter:
            found = (node, count[is_p2p])
    if found is None:
        return []
    node, seq = found
    group = case.layout.groups[node.call.group]
    mine = [one for one in case.layout.groups if rank in one.ranks]
    number, place = mine.index(group), group.ranks.index(rank)
    at = node.enter + TIMEOUT_S + 0.02
    enqueued = sum(counts[group.key])
    work = (
        f"WorkNCCL(SeqNum={seq}, OpType={WORKS[node.call.op]}, NumelIn={node.call.numel}, NumelOut={node.call.numel}, "
    )
    head = f"[rank{rank}]:[E{_clock(case, rank, at)} ProcessGroupNCCL.cpp"
    desc = "" if group.desc == "undefined" else f"({group.desc})"
    prefix = f"[PG ID {number} PG GUID {group.torch_name}{desc} Rank {place}]"
    caught = (
        f"{work}Timeout(ms)={TIMEOUT_S * 1e3:.0f}) ran for {TIMEOUT_S * 1e3 + 20:.0f} milliseconds before timing out."
    )
    counters = f"last enqueued NCCL work: {enqueued}, last completed NCCL work: {completed.get(group.key, 0)}."
    found = f"Exception (either an error or timeout) detected by watchdog at work: {seq}, {counters}"
    return [
        (at, f"{head}:629] [Rank {place}] Watchdog caught collective operation timeout: {caught}"),
        (at + 1e-6, f"{head}:1895] {prefix} {found}"),
    ]


def _clock(case, rank, at):
    ns = START_NS + round((at + case.offsets[case.hosts[rank]]) * 1e9)
    when = datetime.fromtimestamp(ns // 10**9, UTC)
    return f"{when.month}{when.day:02d} {when:%H:%M:%S}.{ns % 10**9:09d}"


def _last_words(case, rank, at):
    words = [
        "Traceback (most recent call last):",
        '  File "/app/train.py", line 300, in <module>',
        "    main()",
        '  File "/app/train.py", line 61, in main',
        "    batch = next(batches)",
        "ValueError: bad batch",
    ]
    return [(at + 1e-6 * n, f"[rank{rank}]: {text}") for n, text in enumerate(words)]
