"""Lines of torch's NCCL process groups, torch 1.9 to 2.14: the watchdog, its state of the group, the heartbeat monitor.

`WorkNCCL(...)`, by version (ProcessGroupNCCL.cpp):
- 1.9: `WorkNCCL(OpType=ALLREDUCE, Timeout(ms)=1800000)`; 1.13: `SeqNum=` in front; some builds `TensorShape=[..]`;
  2.1: `NumelIn=, NumelOut=`. Behind it `ran for N milliseconds before timing out`, `timed out in blocking wait` or
  `raised the following async exception: ...`. XCCL and others print `WorkXCCL(...)`.
- 2.3 `[PG 1 Rank 1] Timeout at NCCL work: 7, last enqueued NCCL work: 8, last completed NCCL work: 6.`; 2.4 `[PG 0
  (default_pg) Rank 1] Exception (either an error or timeout) detected by watchdog at work: ...`; 2.5 `[PG ID 0 PG
  GUID 0(default_pg) Rank 1]`; 2.6 `failure detected by watchdog at work sequence id: 5 PG status: last enqueued work:
  5, last completed work: 4`; 2.13 adds `last started work: 19 (_ALLGATHER_BASE)`, -1 where none is timed.
- `Received a dump signal due to a collective timeout from  rank 0 ...` (2.4 on; before it `Received a global timeout
  from another rank`): the only line of a rank that is not stuck itself, hence its only counters.

Traps: early 2.3 prints an uninitialised "last completed" (beyond "enqueued": dropped). `[Rank N]` is the rank in the
group that the line does not name. The watchdog prints at a multiple of its period: what counts is the time less `ran
for`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from roundk.analyze.sources import ops
from roundk.analyze.sources.joblog.events import Event, Group, number, present, rank_number, short

LITERALS: Final = (
    "OpType=",
    "ast enqueued",
    "ProcessGroup",
    "NCCL communicator ",
    "terminate called after",
    " debug info to ",
    "[TC][rank=",
    "NCCL error",
    "ncclRemoteError",
    "ncclSystemError",
    "ncclInternalError",
    "ncclUnhandledCudaError",
)

_PG: Final = re.compile(
    r"\[PG (?:ID \d+ PG GUID |GUID )?(?P<name>[^\s()\[\]]{1,200}) ?(?:\((?P<desc>[^()\[\]]{0,200})\))?"
    r" Rank (?P<rank>\d{1,8})\]"
)
_RANK: Final = re.compile(r"\[Rank (?P<rank>\d{1,8})\]")
_WORK: Final = re.compile(
    r"Work(?P<backend>[A-Z]\w{0,20})\((?:SeqNum=(?P<seq>\d+), ?)?OpType=(?P<op>\w+)(?:, ?TensorShape=\["
    r"(?P<shape>[\d, ]*)\])?"
    r"(?:, ?NumelIn=(?P<numel_in>\d+))?(?:, ?NumelOut=(?P<numel_out>\d+))?, ?Timeout\(ms\)=(?P<timeout>\d+)\)"
    r"(?P<end> ran for (?P<ran>\d+) milliseconds before timing out| timed out in blocking wait"
    r"| raised the following async exception: (?P<error>.*))?"
)
_LONGEST_END: Final = 64
"""Characters of what follows a work, numbers included: with more behind it, it is another message."""
_OPENED: Final = re.compile(r"Work[A-Z]\w{0,20}\(")
_NAMED: Final = r"(?: \((?P<{0}>\w+)\))?"
_STATUS: Final = re.compile(
    r"(?:at (?:\w+ )?work(?: sequence id)?: (?P<work>\d+).{0,60}?)?"
    rf"[Ll]ast enqueued (?:\w+ )?work: (?P<enqueued>-?\d+){_NAMED.format('enqueued_op')}"
    rf"(?:, last started (?:\w+ )?work: (?P<started>-?\d+){_NAMED.format('started_op')})?"
    rf", last completed (?:\w+ )?work: (?P<completed>-?\d+){_NAMED.format('completed_op')}"
)
_SIGNAL: Final = re.compile(
    r"Received a (?:dump signal|global timeout|timeout signal)(?: due to a collective timeout)? from (?:"
    r"(?P<own>this local rank)"
    r"| ?(?:global )?rank (?P<rank>\d{1,8})|another rank)"
)
_NCCL_ERROR: Final = re.compile(
    r"(?P<name>nccl[A-Z]\w{1,40}Error)|NCCL error: (?P<text>[^,\n]{1,200}?)(?:, NCCL version "
    r"(?P<version>[\d.]+))?(?:\n|$|, )"
)
_STUCK: Final = re.compile(r"watchdog got stuck for (?P<stuck>\d+) seconds")
_ABORTED: Final = re.compile(
    r"NCCL communicator was aborted on rank (?P<rank>\d{1,8})(?:\. +Original reason for failure was: (?P<why>.*))?"
)
_STORE: Final = re.compile(
    r"\[(?P<rank>\d{1,8})\] is setting up NCCL communicator and retrieving ncclUniqueId from \["
    r"(?P<root>\d{1,8})\] via c10d "
    r"key-value store by key '(?P<key>[^']{0,200})', but store->get\('[^']*'\) got error: (?P<error>.*)"
)
_TC: Final = re.compile(r"\[TC\]\[rank=(?P<rank>\d{1,8})\]\[name=(?P<name>[^\]]{0,200})\] ?(?P<what>.*)")
_TC_TIMEOUT: Final = re.compile(r"Operation timed out after (?P<ms>\d+) ms")

_NOTICES: Final = (
    ("dump_first", re.compile(r"First PG on this rank to signal dumping"), "the first on its rank to ask for dumps"),
    (
        "dump_observed",
        re.compile(r"Observed flight recorder dump signal from another rank"),
        "another rank asked for dumps",
    ),
    (
        "dump_started",
        re.compile(r"ProcessGroup\w+ preparing to dump debug info"),
        "starts to dump its Flight Recorder",
    ),
    (
        "dump_written",
        re.compile(
            r"Finished writing [\w ]+ debug info to (?P<path>\S+)|ProcessGroup\w+ dumping nccl trace to (?P<to>\S+)"
        ),
        "dump of the Flight Recorder",
    ),
    (
        "dump_not_finished",
        re.compile(r"timed out after waiting for (?P<waited_ms>\d+)ms flight recorder dumps to finish"),
        "gave up waiting for the dumps",
    ),
    ("watchdog_abort", re.compile(r"we are taking the entire process down"), "the watchdog ends the process"),
    (
        "watchdog_ended",
        re.compile(r"watchdog thread terminated with exception: (?P<reason>.*)"),
        "the watchdog ended with an exception",
    ),
    (
        "process_terminated",
        re.compile(r"Terminating the process after attempting to dump debug info, due to (?P<reason>[^.\n]*)"),
        "the heartbeat monitor ends the process",
    ),
    ("gil_held", re.compile(r"Could not acquire GIL within (?P<waited_ms>\d+) ?ms"), "the GIL was held"),
    (
        "terminate",
        re.compile(r"terminate called after throwing an instance of '(?P<exception>[^']{1,200})'"),
        "ended by an uncaught C++ exception",
    ),
    (
        "store_error",
        re.compile(r"Failed to check the \"should dump\" flag on TCPStore.*?with error: (?P<error>.*)"),
        "the store did not answer",
    ),
    ("remote_error", re.compile(r"remote error detected from rank: (?P<origin_rank>\d{1,8})"), "another rank failed"),
)


def parse(text: str) -> Iterator[Event]:
    """What a line of torch's NCCL process groups says."""
    named, plain = _PG.search(text), _RANK.search(text)
    group = Group(named["name"], named["desc"] or "") if named else None
    group_rank = rank_number((named or plain or {"rank": None})["rank"])
    for event in _events(text):
        event.group, event.group_rank = (
            event.group or group,
            group_rank if event.group_rank is None else event.group_rank,
        )
        yield event


def needs_more(text: str) -> bool:
    """Whether a known message begins here and does not end: it was wrapped."""
    work = _WORK.search(text)
    if work is None:
        return _OPENED.search(text) is not None or ("ast enqueued" in text and _STATUS.search(text) is None)
    return work["end"] is None and len(text) - work.end() < _LONGEST_END


def _events(text: str) -> Iterator[Event]:
    if "OpType=" in text and (work := _WORK.search(text)) is not None and work["end"] is not None:
        yield _work(work)
    elif (error := _NCCL_ERROR.search(text)) is not None and "NCCL WARN" not in text:
        yield _nccl_error(error, text)
    if "ast enqueued" in text and (status := _STATUS.search(text)) is not None:
        yield _status(status, text)
    for kind, pattern, what in _NOTICES:
        if (match := pattern.search(text)) is not None:
            yield Event(kind, what, _told(match))
    if "eartbeat monitor timed out" in text or "watchdog got stuck" in text:
        stuck = _STUCK.search(text)
        seconds = number(stuck["stuck"]) if stuck else None
        yield Event("heartbeat_timeout", "the watchdog itself made no progress", present(stuck_s=seconds))
    if (aborted := _ABORTED.search(text)) is not None:
        why = short(aborted["why"]) if aborted["why"] else None
        fields = present(of_group_rank=rank_number(aborted["rank"]), reason=why)
        yield Event("communicator_aborted", f"NCCL communicator aborted{': ' + why if why else ''}", fields)
    if (store := _STORE.search(text)) is not None:
        fields = present(root=rank_number(store["root"]), key=store["key"], error=short(store["error"]))
        yield Event("init_store_error", "no NCCL id from the store", fields, group_rank=rank_number(store["rank"]))
    if "[TC][rank=" in text and (line := _TC.search(text)) is not None:
        yield from _torchcomms(line)


def _told(match: re.Match[str]) -> dict[str, object]:
    """The named groups of a notice: numbers as such where their name ends in a unit, messages cut."""
    told: dict[str, object] = {}
    for name, value in match.groupdict().items():
        if value is not None:
            told["path" if name == "to" else name] = number(value) if name.endswith(("_ms", "_rank")) else short(value)
    return told


def _work(work: re.Match[str]) -> Event:
    spelled, seq = work["op"], number(work["seq"])
    shape = [int(size) for size in re.findall(r"\d{1,18}", work["shape"])][:16] if work["shape"] is not None else None
    fields = present(
        seq=seq,
        op=ops.op_name(spelled),
        source_op=spelled,
        backend=work["backend"].lower(),
        shape=shape,
        numel_in=number(work["numel_in"]),
        numel_out=number(work["numel_out"]),
        timeout_ms=number(work["timeout"]),
    )
    name = f"{spelled}{'' if seq is None else f' #{seq}'}"
    if work["error"] is not None:
        return Event("async_error", f"{name}: {short(work['error'])}", {**fields, "error": short(work["error"])})
    if work["ran"] is None:
        return Event("collective_timeout", f"{name} timed out in a blocking wait", {**fields, "is_blocking_wait": True})
    fields["ran_for_ms"] = number(work["ran"])
    return Event("collective_timeout", f"{name} timed out, {work['ran']} ms after it was called", fields)


def _nccl_error(error: re.Match[str], text: str) -> Event:
    said = short(text[error.start() :])
    fields = present(name=error["name"], error=said, nccl_version=error["version"])
    return Event("nccl_error", said, fields)


def _status(status: re.Match[str], text: str) -> Event:
    work, enqueued = number(status["work"]), number(status["enqueued"])
    started, completed = number(status["started"]), number(status["completed"])
    is_garbage = completed is not None and completed > (enqueued if enqueued is not None else -1)
    is_garbage |= completed is None and not status["completed"].startswith("-")  # more digits than a number has
    fields: dict[str, object] = {"enqueued": enqueued, "completed": None if is_garbage else completed}
    if is_garbage:
        fields["is_completed_told"] = False
    fields.update(
        present(
            work=work,
            started=started if status["started"] else None,
            is_start_told=started is not None or None,
            enqueued_op=status["enqueued_op"],
            started_op=status["started_op"],
            completed_op=status["completed_op"],
        )
    )
    shown = "?" if is_garbage else "none" if completed is None else str(completed)
    counters = f"enqueued {'none' if enqueued is None else enqueued}, completed {shown}"
    signal = _SIGNAL.search(text)
    if signal is None:
        return Event("watchdog_status", f"the watchdog failed the group: {counters}", fields)
    origin = rank_number(signal["rank"])
    fields |= present(origin_rank=origin, is_own=True if signal["own"] else None)
    return Event(
        "dump_signal", f"was asked for a dump{'' if origin is None else f' by rank {origin}'}: {counters}", fields
    )


def _torchcomms(line: re.Match[str]) -> Iterator[Event]:
    what = short(line["what"])
    timeout = _TC_TIMEOUT.search(what)
    fields = present(comm=line["name"], ran_for_ms=number(timeout["ms"]) if timeout else None)
    rank = rank_number(line["rank"])
    if timeout is not None:
        yield Event("tc_timeout", f"{line['name']}: {what}", fields, group_rank=rank)
    elif what.startswith("Aborting process"):
        reason = what.partition(" - ")[2] or what
        yield Event("tc_abort", f"{line['name']}: {what}", {**fields, "reason": reason}, group_rank=rank)
