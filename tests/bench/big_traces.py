"""Traces of large jobs, made of whole columns: what analyses are timed on."""

from __future__ import annotations

import pathlib

import numpy as np
import polars as pl
import pyarrow as pa

from roundk.analyze.trace import Trace, frame
from roundk.tracer import schema

T0 = 1_700_000_000_000_000_000
MS = 1_000_000


def hung(world, rounds, *, missing=7, straggler=None):
    """`world` ranks in one group make `rounds` rounds every 20 ms; rank `missing` does not enter the last one."""
    rank = np.repeat(np.arange(world, dtype=np.int32), rounds)
    seq = np.tile(np.arange(1, rounds + 1, dtype=np.int64), world)
    begin = T0 + seq * 20 * MS
    enter = begin + np.random.default_rng(0).integers(0, MS, world * rounds)
    if straggler is not None:
        enter[rank == straggler] += 9 * MS
    end = begin + 12 * MS
    last = seq == rounds
    keep = ~(last & (rank == missing))
    word = pa.dictionary(pa.int32(), pa.utf8())

    def same(text):
        return (
            pa.array([text], pa.utf8())
            .dictionary_encode()
            .cast(word)
            .take(pa.array(np.zeros(world * rounds, np.int32)))
        )

    columns = {name: pa.nulls(world * rounds, schema.CALLS.field(name).type) for name in schema.CALLS.names}
    columns |= {
        "rank": pa.array(rank),
        "group": pa.array(np.zeros(world * rounds, np.int32)),
        "seq": pa.array(seq),
        "op": same("all_reduce"),
        "source_op": same("all_reduce"),
        "numel": pa.array(np.full(world * rounds, 1024)),
        "dtype": same("float32"),
        "shapes": same("[[1024]]"),
        "reduce_op": same("SUM"),
        "site": pa.array(np.ones(world * rounds, np.int32)),
        "enter_ns": pa.array(enter),
        "end_ns": pa.array(end, mask=last),
        "outcome": pa.array(np.where(last, "open", "completed")).dictionary_encode().cast(word),
    }
    calls = pa.table(columns).filter(pa.array(keep)).select(schema.CALLS.names)
    alive = int(end.max()) + 40_000 * MS
    ranks = [
        {
            "rank": r, "host": f"node{r // 8}", "pid": r, "data": "present", "calls": rounds, "calls_lost": 0,
            "first_call": 1, "last_alive_ns": alive, "source": f"node{r // 8}/rank-{r:05d}-1.jsonl",
        }
        for r in range(world)
    ]  # fmt: skip
    site = {"site": 1, "file": "train.py", "line": 9, "function": "main", "loop": 8, "stack": []}
    group = {"group": 0, "name": "0", "desc": "default_pg", "backend": "nccl", "ranks": list(range(world))}
    return Trace(
        root=pathlib.Path("run"),
        calls=frame(calls),
        groups=table([group], schema.GROUPS),
        ranks=table(ranks, schema.RANKS),
        sites=table([site], schema.SITES),
        world_size=world,
        ended_ns=alive,
        exit_code=1,
        last_alive_ns=alive,
    )


def table(rows, columns) -> pl.DataFrame:
    return frame(pa.Table.from_pylist([{n: row.get(n) for n in columns.names} for row in rows], schema=columns))
