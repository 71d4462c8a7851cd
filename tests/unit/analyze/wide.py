"""A hung job of any number of ranks, straight as tables: `Trace` objects for what has to work at scale."""

from __future__ import annotations

import pathlib

import polars as pl

from roundk.analyze.trace import Trace, empty
from roundk.tracer import schema

T0 = 1_700_000_000_000_000_000
MS = 1_000_000
HOST = 8
"""Ranks of a host, and of a tensor-parallel group."""


def hung(world, missing, *, host="node-{}", name="default_pg", rounds=6):
    """Rounds of tensor-parallel groups and of the default group, the last of which one rank never enters."""
    groups = {0: (name, list(range(world)))}
    for number in range(world // HOST):
        groups[1 + number] = ("TENSOR_MODEL_PARALLEL_GROUP", list(range(number * HOST, (number + 1) * HOST)))
    calls = []
    for seq in range(1, rounds + 1):
        at = T0 + seq * 20 * MS
        for rank in range(world):
            mine = at + (rank * 7919) % 997 * 1000
            calls.append((rank, 1 + rank // HOST, seq, "all_gather", mine, mine + 2 * MS, "completed", 2))
            if seq < rounds or rank != missing:
                end = mine + 10 * MS
                calls.append((rank, 0, seq, "all_reduce", mine + 4 * MS, *_end(seq, rounds, end), 1))
    names = ("rank", "group", "seq", "op", "enter_ns", "end_ns", "outcome", "site")
    table = pl.DataFrame(calls, schema=names, orient="row").sort("rank", "enter_ns")
    frames = ["/opt/train/model.py:{} forward", "/opt/train/train.py:61 step", "/opt/train/train.py:90 <module>"]
    sites = [
        {"site": 1, "file": "/opt/train/model.py", "line": 40, "function": "forward"},
        {"site": 2, "file": "/opt/train/model.py", "line": 33, "function": "forward"},
    ]
    for site in sites:
        site["stack"] = [frames[0].format(site["line"]), *frames[1:]]
    last = T0 + rounds * 20 * MS + 60_000 * MS
    return Trace(
        root=pathlib.Path("run"),
        calls=_like(table.with_columns(source_op="op", is_async=False, is_timed=False), schema.CALLS),
        groups=_like(
            pl.DataFrame(
                [
                    {"group": key, "name": str(key), "desc": desc, "backend": "nccl", "ranks": ranks}
                    for key, (desc, ranks) in groups.items()
                ]
            ),
            schema.GROUPS,
        ),
        ranks=_like(
            pl.DataFrame(
                [
                    {
                        "rank": rank,
                        "host": host.format(rank // HOST),
                        "pid": 100 + rank,
                        "data": "present",
                        "calls": 2 * rounds - (rank == missing),
                        "calls_lost": 0,
                        "first_call": 1,
                        "last_alive_ns": last,
                        "source": f"{host.format(rank // HOST)}/rank-{rank:05d}.jsonl",
                    }
                    for rank in range(world)
                ]
            ),
            schema.RANKS,
        ),
        sites=_like(pl.DataFrame(sites), schema.SITES),
        world_size=world,
        last_alive_ns=last,
        clock_error_ns=0,
        sources={"hand": 1},
        is_post_mortem=True,
    )


def _end(seq, rounds, end):
    return (end, "completed") if seq < rounds else (None, "open")


def _like(table, columns):
    """A table with the columns and types of a schema; what it lacks is null."""
    types = empty(columns).schema
    return table.select(
        (pl.col(name) if name in table.columns else pl.lit(None)).cast(kind).alias(name) for name, kind in types.items()
    )
