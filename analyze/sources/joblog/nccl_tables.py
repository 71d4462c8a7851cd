"""Channels, calls and communicators of NCCL's INFO lines as tables."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Final

import polars as pl
import pyarrow as pa

from roundk.analyze.sources import ops, rows
from roundk.analyze.sources.inputs import Input
from roundk.analyze.sources.joblog.book import Book
from roundk.analyze.sources.joblog.comms import DIRECTIONS, SHAPES, Comm
from roundk.analyze.sources.joblog.elastic import short_host
from roundk.analyze.sources.joblog.events import MOST_LISTED, MOST_RANK
from roundk.analyze.sources.joblog.resolve import Ranks
from roundk.analyze.sources.joblog.tables import evenly_spaced
from roundk.analyze.trace import empty, frame
from roundk.tracer import schema, words

_DTYPES: Final = (
    "int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16",
    "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip
"""ncclDataType_t, NCCL 2.24 nccl.h."""
_REDUCTIONS: Final = ("SUM", "PRODUCT", "MAX", "MIN", "AVG")
"""ncclRedOp_t."""


def channels(book: Book, ranks: Ranks, inputs: Sequence[Input]) -> pl.DataFrame:
    """`schema.CHANNELS`: one row per end, with the transport where an edge's line told it."""
    if not book.comms.rows["slot"]:
        return empty(schema.CHANNELS)
    plain = pl.DataFrame({name: pl.Series(name, values, pl.Int64) for name, values in book.comms.rows.items()})
    plain = plain.unique(
        ["slot", "comm_rank", "channel", "shape", "direction", "peer", "transport"], keep="first", maintain_order=True
    )
    told = _described(_joined(plain), book, ranks, inputs)
    return frame(
        pa.Table.from_batches(told.select(schema.CHANNELS.names).to_arrow().to_batches()).cast(schema.CHANNELS)
    )


def _joined(plain: pl.DataFrame) -> pl.DataFrame:
    """`Ring` and `Trees` lines tell the neighbours, edges the transport: one row of both where they are of one end."""
    is_edge = pl.col("transport") >= 0
    lines, edges = plain.filter(~is_edge), plain.filter(is_edge)
    via = ["transport", "device", "is_gdr"]
    ring_keys = ["slot", "comm_rank", "channel", "shape", "peer", "direction"]
    tree_keys = ring_keys[:-1]
    told = []
    for shape, keys in ((0, ring_keys), (1, tree_keys)):
        own = lines.filter(pl.col("shape") == shape).drop(via)
        of_edges = edges.filter(pl.col("shape") == shape).unique(keys, keep="first", maintain_order=True)
        told.append(own.join(of_edges.select(*keys, *via), on=keys, how="left", maintain_order="left"))
        edges = pl.concat(
            [
                edges.filter(pl.col("shape") != shape),
                edges.filter(pl.col("shape") == shape).join(own, on=keys, how="anti", maintain_order="left"),
            ]
        )
    return pl.concat([*(part.select(plain.columns) for part in told), edges.select(plain.columns)]).sort(
        "file", "line", maintain_order=True
    )


def _described(plain: pl.DataFrame, book: Book, ranks: Ranks, inputs: Sequence[Input]) -> pl.DataFrame:
    """Numbers as names."""
    transports = {number: word for word, number in book.comms.words.items()}
    comms = pl.DataFrame(
        [
            (slot, short_host(comm.host), ranks.of_comm(comm), comm.comm_id)
            for slot, comm in enumerate(book.comms.comms)
        ],
        schema={"slot": pl.Int64, "host": pl.String, "rank": pl.Int32, "comm": pl.String},
        orient="row",
    )
    names = pl.DataFrame(
        {"file": range(len(inputs)), "name": [item.name for item in inputs]},
        schema={"file": pl.Int64, "name": pl.String},
    )
    devices = _devices(book)
    return (
        plain.join(comms, on="slot", how="left", maintain_order="left")
        .join(names, on="file", how="left", maintain_order="left")
        .with_columns(
            transport=pl.col("transport").replace_strict(transports, default=None, return_dtype=pl.String),
            shape=pl.col("shape").replace_strict(dict(enumerate(SHAPES)), return_dtype=pl.String),
            direction=pl.col("direction").replace_strict(dict(enumerate(DIRECTIONS)), return_dtype=pl.String),
            is_gdr=pl.when(pl.col("is_gdr") >= 0).then(pl.col("is_gdr") == 1),
            index=pl.when(pl.col("device") >= 0).then(pl.col("device")),
            source=pl.format("{}:{}", "name", "line"),
        )
        .drop("device")
        .join(devices, on=["host", "transport", "index"], how="left", maintain_order="left")
        .with_columns(device=pl.coalesce("device", pl.col("index").cast(pl.String)))
    )


def _devices(book: Book) -> pl.DataFrame:
    """Devices of each host by NCCL's numbers: `NET/IB : Using [0]mlx5_0:1/IB [1]...`."""
    found: dict[tuple[str, str, int], str] = {}
    for fact in book.facts("nccl_devices"):
        listed: Any = fact.event.fields["devices"]
        for device in listed if fact.origin.host is not None else ():
            found[fact.origin.host or "", str(fact.event.fields["plugin"]), device["index"]] = device["device"]
    return pl.DataFrame(
        [(*key, device) for key, device in found.items()],
        schema={"host": pl.String, "transport": pl.String, "index": pl.Int64, "device": pl.String},
        orient="row",
    )


def calls(book: Book, ranks: Ranks, first_group: int) -> tuple[pl.DataFrame, list[dict[str, Any]], list[str]]:
    """`schema.CALLS` of COLL lines, rows of `schema.GROUPS` of their communicators, and notes."""
    plain = book.calls.table()
    if plain.is_empty():
        return empty(schema.CALLS), [], []
    members = _members(book, ranks)
    keys = {comm_id: first_group + k for k, comm_id in enumerate(members)}
    ends = {
        number: (rank, keys[comm.comm_id])
        for comm in book.comms.comms
        if comm.comm_id in keys
        and (rank := ranks.of_comm(comm)) is not None
        and (number := book.calls.names.get(f"{comm.host}:{comm.pid} {comm.pointer}")) is not None
    }
    known = plain.join(
        pl.DataFrame(
            [(number, rank, group) for number, (rank, group) in ends.items()],
            schema={"by": pl.Int32, "rank": pl.Int32, "group": pl.Int32},
            orient="row",
        ),
        on="by",
        how="inner",
        maintain_order="left",
    )
    notes = []
    if book.calls.seen > plain.height:
        notes.append(f"of {book.calls.seen} calls in NCCL's COLL lines the last {plain.height} are kept")
    if known.height < plain.height:
        lost = plain.height - known.height
        notes.append(
            f"{lost} calls in NCCL's COLL lines are left out: of which rank and communicator they are is not told"
        )
    others = pl.DataFrame(
        [(keys[comm_id], k, rank) for comm_id, of_comm in members.items() for k, rank in of_comm.items()],
        schema={"group": pl.Int32, "root": pl.Int32, "other": pl.Int32},
        orient="row",
    )
    groups = [_group(key, comm_id, members[comm_id]) for comm_id, key in keys.items()]
    spelled = {number: name for name, number in book.calls.names.items()}
    return _called(known, others, spelled), groups, notes


def _group(key: int, comm_id: str, members: dict[int, int]) -> dict[str, Any]:
    ranks = list(dict.fromkeys(members[k] for k in sorted(members)))
    return {"group": key, "name": comm_id, "desc": "", "backend": "nccl", "ranks": ranks}


def _called(known: pl.DataFrame, others: pl.DataFrame, spelled: dict[int, str]) -> pl.DataFrame:
    """Numbers as names, and the columns of the contract."""
    if known.is_empty():  # no mapping has a type then
        return empty(schema.CALLS)
    spelling = {number: spelled[number] for number in known["op"].unique()}
    names = {number: ops.op_name(name) for number, name in spelling.items()}
    told = (
        known.with_columns(
            source_op=pl.col("op").replace_strict(spelling, return_dtype=pl.String),
            op=pl.col("op").replace_strict(names, return_dtype=pl.String),
        )
        .join(others, on=["group", "root"], how="left", maintain_order="left")
        .select(
            "rank",
            "group",
            "seq",
            "op",
            "source_op",
            "numel",
            root=pl.when(pl.col("op").is_in(words.ROOTED)).then("other"),
            peer=pl.when(pl.col("op").is_in(words.P2P)).then("other"),
            dtype=pl.col("type").replace_strict(dict(enumerate(_DTYPES)), default="other", return_dtype=pl.String),
            reduce_op=pl.when(pl.col("op").str.contains("reduce", literal=True)).then(
                pl.col("reduction").replace_strict(
                    dict(enumerate(_REDUCTIONS)), default="OTHER", return_dtype=pl.String
                )
            ),
            enter_ns=pl.col("time_ns"),
            is_timed=pl.lit(value=False),
            outcome=pl.lit("not_recorded"),
        )
        .sort("rank", maintain_order=True)
        .to_arrow()
    )
    return rows.table(schema.CALLS, {name: told[name] for name in told.column_names})


def _members(book: Book, ranks: Ranks) -> dict[str, dict[int, int]]:
    """Global ranks of each communicator's members that are known, by their rank in it."""
    found: dict[str, dict[int, int]] = {}
    for comm in book.comms.comms:
        rank = ranks.of_comm(comm)
        if comm.comm_id is not None and rank is not None:
            found.setdefault(comm.comm_id, {})[comm.rank] = rank
    return found


def unfinished(book: Book, ranks: Ranks, inputs: Sequence[Input]) -> list[dict[str, Any]]:
    """Rows of `schema.FACTS`: communicators whose initialisation began and did not end, per process."""
    told = []
    for comm in book.comms.comms:
        if comm.is_complete or not comm.pointer or comm.nranks < 0:
            continue
        fields = {"comm": comm.comm_id, "comm_rank": comm.rank, "nranks": comm.nranks, "pid": comm.pid}
        told.append(
            {
                "host": short_host(comm.host),
                "rank": ranks.of_comm(comm),
                "kind": "nccl_init_open",
                "text": f"NCCL began to initialise a communicator of {comm.nranks} ranks and has not finished",
                "fields": rows.words_of(fields),
                "source": _place(comm.source, inputs),
            }
        )
    return told


def communicators(book: Book, ranks: Ranks, inputs: Sequence[Input]) -> list[dict[str, Any]]:
    """Rows of `schema.FACTS`: each communicator, how many of its ranks began and finished, and who never began."""
    found: dict[str, list[Comm]] = {}
    for comm in book.comms.comms:
        if comm.comm_id is not None:
            found.setdefault(comm.comm_id, []).append(comm)
    return [_communicator(comm_id, ends, ranks, inputs) for comm_id, ends in found.items()]


def _communicator(comm_id: str, ends: list[Comm], ranks: Ranks, inputs: Sequence[Input]) -> dict[str, Any]:
    nranks, began, finished = ends[0].nranks, len(ends), sum(comm.is_complete for comm in ends)
    fields: dict[str, Any] = {"comm": comm_id, "nranks": nranks, "began": began, "finished": finished}
    seen = {comm.rank for comm in ends}
    if len(seen) < nranks <= MOST_RANK:
        absent = list(itertools.islice((rank for rank in range(nranks) if rank not in seen), MOST_LISTED))
        fields["absent"] = absent
        if (of_job := _global_ranks(absent, ends, ranks)) is not None:
            fields["absent_ranks"] = of_job
    return {
        "kind": "nccl_communicator",
        "text": f"communicator of {nranks} ranks: {began} began, {finished} finished",
        "fields": rows.words_of(fields),
        "source": _place(ends[0].source, inputs),
    }


def _global_ranks(absent: list[int], ends: list[Comm], ranks: Ranks) -> list[int] | None:
    """Global ranks of those that never began: of the job's communicator its own, else by the spacing of the others."""
    if ends[0].nranks == ranks.world_size:
        return absent
    known = {comm.rank: rank for comm in ends if (rank := ranks.of_comm(comm)) is not None}
    spaced = evenly_spaced(known) if len(known) == len(ends) else None
    return None if spaced is None else [spaced[0] + k * spaced[1] for k in absent]


def _place(source: tuple[int, int], inputs: Sequence[Input]) -> str:
    file, line = source
    return f"{inputs[file].name}:{line}"
