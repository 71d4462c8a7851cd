"""NCCLX communicator dumps made by hand, as `ncclCommDump` gives them."""

from __future__ import annotations

import json

T = 1_714_234_567_890_000
"""Microseconds."""
HASH = "e8ad5d7b00000001"
SIGNED = int(HASH, 16) - (1 << 64)
"""The same in records."""


def record(number, enqueued=0, started=None, ended=None, **fields):
    """A collective; times in ms from the start, None for one that has not come."""
    at = {name: 0 if ms is None else T + 1000 * ms for name, ms in (("s", started), ("e", ended))}
    made = {
        "enqueueTs": T + 1000 * enqueued,
        "startTs": at["s"],
        "endTs": at["e"],
        "latencyUs": at["e"] - at["s"],
        "QueueingTimeUs": at["s"] - T - 1000 * enqueued,
        "commHash": SIGNED,
        "rank": 0,
        "nRanks": 4,
        "opName": "AllReduce",
        "algoName": "Baseline_Simple_Ring_4",
        "redOp": "Sum",
        "root": 0,
        "dataType": "commFloat32",
        "count": 1024,
        "MetadataType": "CollectiveMetadata",
        "collId": number,
        "opCount": number,
    }
    return made | fields


def comm(rank, past=(), current=(), pending=(), size=2, name=HASH, desc="default_pg:0", **values):
    """A communicator as `ncclCommDump` gives it: JSON text in every value."""
    made = {
        "commHash": name,
        "rank": rank,
        "nRanks": size,
        "commDesc": desc,
        "CT_pastColls": list(past),
        "CT_currentColls": list(current),
        "CT_pendingColls": list(pending),
        **values,
    }
    return {key: json.dumps(value) for key, value in made.items()}


def write(folder, dumps):
    """Write one file per rank of communicators by their hash."""
    for rank, of in dumps.items():
        (folder / f"comm_dump_{rank}").write_text(json.dumps(of))
