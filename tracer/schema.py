"""The column contract of a run directory: every table, its units, its nullability, its version.

Two layers share this module. The *ring* is what a training process writes: fixed-width, non-null columns that can be
stored into in place (0 stands for "not yet" or "none"; see `RING`). The *tables* are what the reader hands to the
analysis, with proper nulls, global ids and names (`CALLS` and those that follow it).

The training process never imports this module (it would load pyarrow): `roundk.tracer.template` carries the bytes of an
empty segment made from `RING`, and a test keeps the two equal. After a change run `python -m roundk.tracer.schema`.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from roundk.tracer import words

VERSION: Final = words.SCHEMA_VERSION

_OP = pa.dictionary(pa.int8(), pa.utf8())
_NAME = pa.dictionary(pa.int32(), pa.utf8())


def _ring(name: str, kind: pa.DataType, doc: str) -> pa.Field:
    return pa.field(name, kind, nullable=False, metadata={"doc": doc})


def _column(name: str, kind: pa.DataType, doc: str, *, nullable: bool = False) -> pa.Field:
    return pa.field(name, kind, nullable=nullable, metadata={"doc": doc})


RING: Final = pa.schema(
    [
        _ring("commit", pa.int64(), "1 + number of the call in this process; 0: the row is not written. Stored last"),
        _ring("enter_ns", pa.int64(), "Unix time at which the call entered torch's dispatcher"),
        _ring("issued_ns", pa.int64(), "Unix time at which the call had been handed to the backend; 0: not yet"),
        _ring("start_ns", pa.int64(), "Unix time at which the device reached the call; 0: not yet, or not timed"),
        _ring("end_ns", pa.int64(), "Unix time at which the call was seen to end; 0: not yet"),
        _ring(
            "seq", pa.int64(), "Number of the collective in its group, or of the p2p call in its directed pair; from 1"
        ),
        _ring("numel", pa.int64(), "Elements in the input tensors"),
        _ring("bytes_in", pa.int64(), "Bytes in the input tensors"),
        _ring("bytes_out", pa.int64(), "Bytes in the output tensors"),
        _ring("group", pa.int32(), "Id of a `group` line of the side file"),
        _ring("signature", pa.int32(), "Id of a `signature` line of the side file; 0: none"),
        _ring("site", pa.int32(), "Id of a `site` line of the side file; 0: no frame outside torch"),
        _ring("step", pa.int32(), "Optimizer steps finished before this call"),
        _ring("thread", pa.int32(), "Native id of the calling thread"),
        _ring("peer", pa.int32(), "1 + global rank of the root or of the p2p peer; 0: none"),
        _ring("op", _OP, "Operation, as in the verdict contract"),
        _ring("dtype", _OP, "Element type of the first tensor"),
        _ring("reduce_op", _OP, "Reduction; '' where the operation has none"),
        _ring("is_async", pa.int8(), "1: the caller asked for an asynchronous call"),
        _ring("is_timed", pa.int8(), "1: `start_ns` is waited for"),
        _ring("outcome", pa.int8(), "Index into `words.OUTCOMES`: how the call ended; 0: it has not"),
    ],
    metadata={"roundk_schema": str(VERSION)},
)
"""One row per call, in the order of entering. A row counts once `commit` is set."""

RING_WORDS: Final = {"op": words.OPS, "dtype": words.DTYPES, "reduce_op": words.REDUCE_OPS}
"""The fixed dictionaries of the ring's dictionary columns."""

LINK_RING: Final = pa.schema(
    [
        _ring("begin_ns", pa.int64(), "Unix time before the reading; of a `LOOKED` row: of its first round"),
        _ring("end_ns", pa.int64(), "Unix time after it; of a `LOOKED` row: at the beginning of its last round so far"),
        _ring("value", pa.int64(), "The counter; the id of a `word` line; the errno; or the id of a `look` line"),
        _ring("counter", pa.int32(), "Id by a `counters` line of the side file; 0 in a `LOOKED` row"),
        _ring("state", pa.int8(), "`words.VALUE`, `WORD`, `UNREADABLE`, `LOOKED`; 0: not written. Stored last"),
    ],
    metadata={"roundk_schema": str(VERSION)},
)
"""Samples of a host's links: a row when a counter is first read or has changed. A `LOOKED` row says that all counters
of a `look` line were read in each round from `begin_ns` to `end_ns`: what has no row of its own since was unchanged."""

CALLS: Final = pa.schema(
    [
        _column("rank", pa.int32(), "Global rank"),
        _column("group", pa.int32(), "Key into `GROUPS`"),
        _column("seq", pa.int64(), "Collectives: number in the group; p2p: number in the directed pair; from 1"),
        _column("op", _NAME, "Operation, lower-case torch name"),
        _column("source_op", _NAME, "The operation as the source spells it"),
        _column("root", pa.int32(), "Global rank of the root", nullable=True),
        _column("peer", pa.int32(), "Global rank of the p2p peer; null also for a recv from any source", nullable=True),
        _column("numel", pa.int64(), "Elements in the input tensors", nullable=True),
        _column("bytes_in", pa.int64(), "Bytes in the input tensors", nullable=True),
        _column("bytes_out", pa.int64(), "Bytes in the output tensors", nullable=True),
        _column("dtype", _NAME, "Element type, as torch prints it without `torch.`", nullable=True),
        _column("shapes", _NAME, "Exact shapes `[[4, 2]] -> [[8, 2]]`, with split sizes where given", nullable=True),
        _column("reduce_op", _NAME, "Reduction, upper case", nullable=True),
        _column("is_async", pa.bool_(), "The caller asked for an asynchronous call", nullable=True),
        _column("step", pa.int64(), "Training step, from 0; null where no optimizer has stepped", nullable=True),
        _column("thread", pa.int64(), "Native id of the calling thread", nullable=True),
        _column("site", pa.int32(), "Key into `SITES`", nullable=True),
        _column("enter_ns", pa.int64(), "Unix time of entering", nullable=True),
        _column(
            "issued_ns", pa.int64(), "Unix time at which the backend had the call; null: did not happen", nullable=True
        ),
        _column(
            "start_ns",
            pa.int64(),
            "Unix time at which the device reached the call; null: see `is_timed`",
            nullable=True,
        ),
        _column("end_ns", pa.int64(), "Unix time of the end; null: did not happen, or see `outcome`", nullable=True),
        _column(
            "is_timed", pa.bool_(), "The start on the device is recorded: a null `start_ns` is one that did not happen"
        ),
        _column("outcome", _NAME, "completed | failed | open | not_recorded (the end may have happened unseen)"),
    ]
)
"""One row per call; sorted by rank, then in the order of entering."""

GROUPS: Final = pa.schema(
    [
        _column("group", pa.int32(), "Key: one name and one member list of one attempt"),
        _column("name", pa.utf8(), "Process group name"),
        _column("desc", pa.utf8(), "Description, '' where none was given"),
        _column("backend", pa.utf8(), "Backend, '' where unknown"),
        _column("ranks", pa.list_(pa.int32()), "Global ranks of the members in group order"),
    ]
)
"""One row per process group; sorted by key. Groups of one name with different members are different rows."""

RANKS: Final = pa.schema(
    [
        _column("rank", pa.int32(), "Global rank"),
        _column("host", pa.utf8(), "Host name", nullable=True),
        _column("pid", pa.int64(), "Process id", nullable=True),
        _column("data", pa.utf8(), "present | empty | truncated | missing"),
        _column("calls", pa.int64(), "Committed rows"),
        _column(
            "calls_lost", pa.int64(), "Calls known to be made and not kept (no space, deleted segment, unreadable file)"
        ),
        _column("first_call", pa.int64(), "Number of the first kept call in its process, from 1", nullable=True),
        _column("start_ns", pa.int64(), "Unix time at which recording began", nullable=True),
        _column(
            "last_alive_ns",
            pa.int64(),
            "Last sign of life: the recorder's thread, or the last stored time",
            nullable=True,
        ),
        _column("recorder_off", pa.utf8(), "Why the recorder switched itself off", nullable=True),
        _column("goodbye_ns", pa.int64(), "Unix time at which the interpreter shut down in order", nullable=True),
        _column("exit_code", pa.int32(), "Exit code, where anybody told; null after a signal", nullable=True),
        _column("exit_signal", pa.int32(), "Number of the signal that ended it", nullable=True),
        _column("exit_ns", pa.int64(), "Unix time at which the end was noticed", nullable=True),
        _column(
            "exit_source",
            pa.utf8(),
            "agent (its parent, as torchrun's) | launcher | self | vanished (the pid was gone and nobody said why)",
            nullable=True,
        ),
        _column("exception_type", pa.utf8(), "Qualified type of the uncaught exception", nullable=True),
        _column("exception_message", pa.utf8(), "Its message, cut at 500 characters", nullable=True),
        _column("exception_site", pa.utf8(), "file:line of the innermost frame outside torch", nullable=True),
        _column("exception_ns", pa.int64(), "Unix time at which it reached the top", nullable=True),
        _column(
            "process_state",
            pa.utf8(),
            "Last state the launcher noted while it lived: T, t (stopped) or alive (again)",
            nullable=True,
        ),
        _column("process_state_ns", pa.int64(), "Since when, to a polling period", nullable=True),
        _column("source", pa.utf8(), "File that speaks for the rank, relative to the run directory", nullable=True),
    ]
)
"""One row per rank of the last attempt, missing ones included; sorted by rank."""

SITES: Final = pa.schema(
    [
        _column("site", pa.int32(), "Key"),
        _column("file", pa.utf8(), "File of the innermost frame outside torch and roundk"),
        _column("line", pa.int32(), "Line of that frame"),
        _column("function", pa.utf8(), "Function of that frame"),
        _column("loop", pa.int32(), "Line of the innermost loop around the call in that function", nullable=True),
        _column("stack", pa.list_(pa.utf8()), "`file:line function` of every frame of its first call, innermost first"),
        _column(
            "loops",
            pa.list_(pa.int32()),
            "Line of the innermost loop around each frame of `stack`; null: none, or not the user's code",
            nullable=True,
        ),
    ]
)
"""One row per distinct call site (file, line, function) over all ranks; sorted by key."""

FACTS: Final = pa.schema(
    [
        _column("time_ns", pa.int64(), "Unix time", nullable=True),
        _column("host", pa.utf8(), "Host name", nullable=True),
        _column("rank", pa.int32(), "Global rank", nullable=True),
        _column(
            "kind",
            pa.utf8(),
            "In a run directory: exit | exception | thread_exception | goodbye | state | signal | off | lost | deleted"
            " | end | setting | version; other sources list theirs in their module",
        ),
        _column("text", pa.utf8(), "The fact in a few words"),
        _column(
            "fields", pa.utf8(), "What was parsed, as a JSON object; its keys are the source module's", nullable=True
        ),
        _column("source", pa.utf8(), "File and line, relative to what was named"),
    ]
)
"""One row per fact that is not a call; sorted by time."""

STEPS: Final = pa.schema(
    [
        _column("rank", pa.int32(), "Global rank"),
        _column("step", pa.int64(), "Number of the step, from 0, as in `CALLS`"),
        _column(
            "start_ns", pa.int64(), "Unix time of the end of the step before; null for the first kept", nullable=True
        ),
        _column("end_ns", pa.int64(), "Unix time at which the optimizer had stepped, or the user's mark"),
    ]
)
"""One row per finished training step of a rank; sorted by rank and step."""

STACKS: Final = pa.schema(
    [
        _column("rank", pa.int32(), "Global rank"),
        _column("time_ns", pa.int64(), "Unix time of the dump; null where a signal or a timer made it", nullable=True),
        _column("not_before_ns", pa.int64(), "Unix time of the recorder's last mark before it", nullable=True),
        _column("trigger", pa.utf8(), "stall | timer (the GIL was held) | term (SIGTERM) | fatal (a fatal signal)"),
        _column("what", pa.utf8(), "Why, in a few words"),
        _column("call", pa.int64(), "Number of the call in flight in its process; null: none was", nullable=True),
        _column("thread", pa.int64(), "pthread id of the thread"),
        _column("is_main", pa.bool_(), "Whether it is the main thread; null where not known", nullable=True),
        _column("frames", pa.list_(pa.utf8()), "`file:line function`, innermost first"),
        _column("source", pa.utf8(), "File, relative to the run directory"),
    ]
)
"""One row per thread of each dump of Python stacks; sorted by rank, then as written."""


PROGRESS: Final = pa.schema(
    [
        _column("rank", pa.int32(), "Global rank"),
        _column("group", pa.int32(), "Key into `GROUPS`"),
        _column("time_ns", pa.int64(), "Unix time at which the counters stood so; null: not told", nullable=True),
        _column("enqueued", pa.int64(), "Number of the last call handed to the backend; null: none was", nullable=True),
        _column("started", pa.int64(), "Number of the last one started on the device; null: none was", nullable=True),
        _column("completed", pa.int64(), "Number of the last one completed; null: none was", nullable=True),
        _column("is_start_told", pa.bool_(), "Starts are recorded: a null `started` is one that did not happen"),
        _column(
            "counts", pa.utf8(), "What is numbered: collectives | calls (p2p included: not to compare across ranks)"
        ),
        _column("op", _NAME, "Operation, where the counter is of one kind of call only", nullable=True),
        _column("source", pa.utf8(), "File (and line), relative to what was named"),
    ]
)
"""How far a rank had come in a group, as dumps and log lines count it; sorted by rank and group."""

CHANNELS: Final = pa.schema(
    [
        _column("host", pa.utf8(), "Host name", nullable=True),
        _column("rank", pa.int32(), "Global rank; null: only the communicator's is known", nullable=True),
        _column("comm", pa.utf8(), "Communicator, as hexadecimal digits", nullable=True),
        _column("comm_rank", pa.int32(), "Rank in the communicator"),
        _column("channel", pa.int32(), "Channel number"),
        _column("shape", pa.utf8(), "ring | tree | p2p | collnet | nvls"),
        _column("direction", pa.utf8(), "send | recv | parent | child"),
        _column("peer", pa.int32(), "The other side's rank in the communicator"),
        _column("transport", pa.utf8(), "NET/IB, NET/Socket, P2P/IPC, SHM ... as NCCL spells it", nullable=True),
        _column("device", pa.utf8(), "Network device (mlx5_0, eth0) or its number, for NET transports", nullable=True),
        _column("is_gdr", pa.bool_(), "The NIC reads GPU memory itself (GPUDirect RDMA)", nullable=True),
        _column("source", pa.utf8(), "File and line, relative to what was named"),
    ]
)
"""Who is connected to whom by what, one row per end of a channel, from NCCL's INFO lines and comm dumps."""

COUNTERS: Final = pa.schema(
    [
        _column("time_ns", pa.int64(), "Unix time of the sample; null: not told", nullable=True),
        _column("error_ns", pa.int64(), "How far off that time may be, either way; null: not told", nullable=True),
        _column("host", pa.utf8(), "Host name", nullable=True),
        _column("kind", pa.utf8(), "netdev | ib | tcp | peer | nvlink | gpu"),
        _column("device", pa.utf8(), "Network device, HCA, GPU or a peer's address; '' for a host's own"),
        _column("port", pa.int32(), "Port of the HCA, link of the GPU", nullable=True),
        _column("counter", pa.utf8(), "Name as the kernel or the tool spells it"),
        _column("value", pa.int64(), "Its value; null: it is a word, or it could not be read", nullable=True),
        _column("word", pa.utf8(), "Value of a state (`down`, `4: ACTIVE`)", nullable=True),
        _column("is_read", pa.bool_(), "False: the counter is there and could not be read, which is not zero"),
        _column("source", pa.utf8(), "File (and line), relative to what was named"),
    ]
)
"""Samples of link and device counters; sorted by host, device, port, counter and time."""

BENCHMARKS: Final = pa.schema(
    [
        _column("op", _NAME, "Operation, lower-case torch name"),
        _column("bytes", pa.int64(), "Message size"),
        _column("dtype", _NAME, "Element type", nullable=True),
        _column("reduce_op", _NAME, "Reduction", nullable=True),
        _column("is_in_place", pa.bool_(), "The in-place half of the line"),
        _column("time_us", pa.float64(), "Time of one call"),
        _column("algbw", pa.float64(), "Bytes by time, GB/s (10^9), as nccl-tests defines it"),
        _column("busbw", pa.float64(), "The same, by the share that must cross the slowest link, GB/s"),
        _column("wrong", pa.int64(), "Wrong elements found; null: not checked", nullable=True),
        _column("ranks", pa.int32(), "Ranks that took part", nullable=True),
        _column("source", pa.utf8(), "File and line, relative to what was named"),
    ]
)
"""Lines of nccl-tests."""


def main() -> None:
    """Write `template.py` anew from `RING`."""
    import pathlib

    from roundk.tracer import make_template

    pathlib.Path(__file__).with_name("template.py").write_text(make_template.source())


if __name__ == "__main__":
    main()
