"""The columns of the table that a batch makes, and the four kinds of cause that a fleet is asked about."""

from __future__ import annotations

import enum
from typing import Final

import pyarrow as pa

from roundk.analyze.names import Cause


class Category(enum.StrEnum):
    """Where the cause of an interruption lies."""

    NETWORK = "network"
    HOST = "host"
    GPU = "gpu"
    CODE = "code"
    UNDETERMINED = "undetermined"


CATEGORIES: Final = {
    Cause.LINK_FLAP: Category.NETWORK,
    Cause.LINK_DOWN: Category.NETWORK,
    Cause.LINK_DEGRADED: Category.NETWORK,
    Cause.CONGESTION: Category.NETWORK,
    Cause.MTU_MISMATCH: Category.NETWORK,
    Cause.TRANSPORT_ERROR: Category.NETWORK,
    Cause.TRANSPORT_FALLBACK: Category.NETWORK,
    Cause.NETWORK_CONFIG: Category.NETWORK,
    Cause.PROCESS_KILLED: Category.HOST,
    Cause.PROCESS_STOPPED: Category.HOST,
    Cause.OOM_KILLED: Category.HOST,
    Cause.HOST_STALL: Category.HOST,
    Cause.HOST_SLOW: Category.HOST,
    Cause.GPU_FAULT: Category.GPU,
    Cause.NVLINK_FAULT: Category.GPU,
    Cause.EXCEPTION: Category.CODE,
    Cause.PROCESS_EXITED: Category.CODE,
    Cause.CODE_DIVERGENCE: Category.CODE,
    Cause.DUPLICATE_GPU: Category.CODE,
    Cause.UNDETERMINED: Category.UNDETERMINED,
}
"""A setting of the job (two ranks on one GPU) is its code; a setting of the network is the network's."""

_TIME: Final = pa.timestamp("us", tz="UTC")
_LINK: Final = pa.struct(
    [
        pa.field("host", pa.utf8(), nullable=False),
        pa.field("device", pa.utf8(), nullable=False),
        pa.field("port", pa.int32()),
    ]
)


def _column(name: str, kind: pa.DataType, doc: str, *, nullable: bool = True) -> pa.Field:
    return pa.field(name, kind, nullable=nullable, metadata={"doc": doc})


RUNS: Final = pa.schema(
    [
        _column("run", pa.utf8(), "Name of the run: its path below the root", nullable=False),
        _column("root", pa.utf8(), "The root as it was named", nullable=False),
        _column("job", pa.utf8(), "Id of the job; null: nothing tells it"),
        _column("attempt", pa.int32(), "Number of the attempt of the job, as told; null: not told"),
        _column("verdict", pa.int32(), "0: the root verdict; 1, 2, ...: further independent roots", nullable=False),
        _column("started_at", _TIME, "Start of the run, or the first thing known of it"),
        _column("ended_at", _TIME, "End of the run, or the last thing known of it"),
        _column("onset_at", _TIME, "When the first rank began to wait"),
        _column("world_size", pa.int32(), "Ranks of the job; null: nothing tells it"),
        _column("hosts", pa.list_(pa.utf8()), "Hosts of its ranks, sorted; empty: not known", nullable=False),
        _column("status", pa.utf8(), "As in the verdict contract; `error`: see `problem`", nullable=False),
        _column("structure", pa.utf8(), "Who and where; null with a problem"),
        _column("detail", pa.utf8(), "The structure said more closely"),
        _column("structure_confidence", pa.utf8(), "high | medium | low"),
        _column("cause", pa.utf8(), "Why; null: nothing is wrong, or a problem"),
        _column("cause_confidence", pa.utf8(), "high | medium | low | none"),
        _column("category", pa.utf8(), "network | host | gpu | code | undetermined; null where `cause` is"),
        _column("culprit_ranks", pa.list_(pa.int32()), "Global ranks", nullable=False),
        _column("culprit_hosts", pa.list_(pa.utf8()), "Host names", nullable=False),
        _column("culprit_links", pa.list_(_LINK), "Ends of links: host, device, port", nullable=False),
        _column("group", pa.utf8(), "Process group"),
        _column("group_size", pa.int32(), "Its members"),
        _column("op", pa.utf8(), "Operation"),
        _column("seq", pa.int64(), "Number of the round"),
        _column("gpu_hours", pa.float64(), "Ranks x hours from start to end"),
        _column(
            "gpu_hours_lost",
            pa.float64(),
            "Ranks x hours from onset to end of a run that did not go on (root verdict only)",
        ),
        _column("summary", pa.utf8(), "One sentence"),
        _column("ranks_seen", pa.int32(), "Ranks with data"),
        _column("ranks_missing", pa.int32(), "Ranks without a file"),
        _column("ranks_empty", pa.int32(), "Ranks whose file is empty"),
        _column("ranks_truncated", pa.int32(), "Ranks with a file that is cut short"),
        _column("unreadable", pa.int32(), "Files that could not be read"),
        _column("sources", pa.list_(pa.utf8()), "Kinds of input, sorted", nullable=False),
        _column("clock_error_ns", pa.int64(), "Bound of the offsets between the hosts' clocks"),
        _column("problem", pa.utf8(), "Why the run could not be judged, or was judged without some of its files"),
        _column("fingerprint", pa.utf8(), "Of the run's files", nullable=False),
        _column("roundk_version", pa.utf8(), "What judged it", nullable=False),
    ],
    metadata={"roundk_batch": "1"},
)
"""One row per run and root verdict; sorted by run, then verdict. A run that could not be judged has one row."""

INTERRUPTED: Final = ("failed", "stuck", "undetermined")
"""Statuses of a run that was interrupted; `slow` ones went on."""
