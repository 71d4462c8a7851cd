"""Inspector's lines as tables: calls, groups, ranks, facts."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa

from roundk.analyze.sources.ops import op_name
from roundk.analyze.sources.part import Part
from roundk.analyze.sources.ras import snapshot as nccl
from roundk.analyze.sources.rows import count, from_dicts, table, words_of
from roundk.analyze.trace import Unreadable
from roundk.tracer import schema, words

_NS_PER_US: Final = 1_000
_MOST_US: Final = (1 << 62) // _NS_PER_US
_MOST_BYTES: Final = 1 << 50
_MOST_COMMS: Final = 1 << 16
_MOST_MEMBERS: Final = 1 << 22
_MOST_GB: Final = 1e9
_NULL: Final = -(1 << 63)
_INTEGERS: Final = ("comm", "rank", "seq", "op", "peer", "bytes", "enter", "issued", "start", "end", "spent")
_WHOLE: Final = frozenset({"all_reduce", "broadcast", "reduce"})
"""Operations whose input and output are of one size on every rank."""


class Tables:
    """What was read so far, a number for each column and line: millions of lines fit.

    Attributes:
        number: Lines that told something.
    """

    def __init__(self) -> None:
        self.number = 0
        self._comms: dict[tuple[str, int], int] = {}
        self._desc: dict[int, str] = {}
        self._processes: dict[tuple[str | None, int | None], int] = {}
        self._member: dict[tuple[int, int], int] = {}
        self._alive: dict[int, int] = {}
        self._sources: dict[int, str] = {}
        self._ops: dict[str, int] = {}
        self._columns = {name: array("q") for name in _INTEGERS}
        self._busbw = array("d")
        self._dropped: dict[tuple[int, int], tuple[int, int, int | None, str]] = {}
        self._versions: dict[str, None] = {}

    def add(self, entry: Mapping[str, Any], source: str, line: int) -> bool:
        """Take one line; False: nothing in it can be used."""
        header, about = entry.get("header"), entry.get("metadata")
        if not isinstance(header, dict):
            return False
        rank, size, name = count(header.get("rank")), count(header.get("n_ranks")), header.get("id")
        if rank is None or size is None or not rank < size <= nccl.MOST_RANKS or not isinstance(name, str):
            return False
        key = (name[:64].removeprefix("0x"), size)
        if key not in self._comms and len(self._comms) >= _MOST_COMMS:
            return False
        comm = self._comms.setdefault(key, len(self._comms))
        if isinstance(header.get("comm_name"), str) and header["comm_name"] != "unknown":
            self._desc.setdefault(comm, header["comm_name"][:256])
        metadata = about if isinstance(about, dict) else {}
        process = self._process(metadata, source)
        when = _ns(metadata.get("dump_timestamp_us"))
        self._member.setdefault((comm, rank), process)
        is_told = (
            self._call(entry.get("coll_perf"), "coll", comm, rank)
            or self._call(entry.get("p2p_perf"), "p2p", comm, rank)
            or self._stats(entry.get("dump_stats"), (comm, rank), when, f"{source}:{line}")
        )
        if is_told:
            self.number += 1
            self._alive[process] = max(self._alive.get(process, 0), when or 0)
        return is_told

    def _process(self, about: Mapping[str, Any], source: str) -> int:
        host = about.get("hostname")
        key = (host[:256] if isinstance(host, str) and host else None, count(about.get("pid")))
        process = self._processes.setdefault(key, len(self._processes))
        self._sources.setdefault(process, source)
        version = about.get("inspector_output_format_version")
        if isinstance(version, str):
            self._versions[version[:16]] = None
        return process

    def _call(self, told: object, kind: str, comm: int, rank: int) -> bool:
        if not isinstance(told, dict):
            return False
        spelling, seq = told.get(kind), count(told.get(f"{kind}_sn"))
        if not isinstance(spelling, str) or seq is None:
            return False
        size = count(told.get(f"{kind}_msg_size_bytes"))
        trace = told.get("event_trace_ts")
        times = _times(trace, kind) if isinstance(trace, dict) else (None,) * 4
        op = self._ops.setdefault(spelling[:32], len(self._ops))
        size = None if size is None or size > _MOST_BYTES else size
        spent = _ns(told.get(f"{kind}_exec_time_us"))
        values = (comm, rank, seq, op, count(told.get("p2p_peer")), size, *times, spent)
        for name, value in zip(_INTEGERS, values, strict=True):
            self._columns[name].append(_NULL if value is None else value)
        busbw = told.get(f"{kind}_busbw_gbs")
        self._busbw.append(busbw if isinstance(busbw, int | float) and 0 <= busbw < _MOST_GB else float("nan"))
        return True

    def _stats(self, told: object, member: tuple[int, int], when: int | None, source: str) -> bool:
        if not isinstance(told, dict):
            return False
        lost = [count(told.get(f"{kind}_dropped_total")) for kind in ("coll", "p2p")]
        if any(lost):
            # The totals only grow: the last line of a rank has the most.
            self._dropped[member] = (lost[0] or 0, lost[1] or 0, when, source)
        return lost != [None, None]

    def part(self, kind: str, read: tuple[str, ...], unreadable: tuple[Unreadable, ...], cut: tuple[str, ...]) -> Part:
        """The tables of all that was added.

        Args:
            kind: Name of the source.
            read: Inputs that told something.
            unreadable: Inputs, or lines of them, that did not.
            cut: Inputs that end in the middle of a line.
        """
        whole, ranks, notes = self._global()
        data = self._frame(whole, ranks)
        groups, data = self._groups(data, whole, ranks, notes)
        if cut:
            notes.append(f"Inspector: {len(cut)} file(s) end in the middle of a line: {', '.join(cut[:3])}")
        if self.number:
            notes.append("Inspector writes finished operations only: one that hangs leaves no line")
        truncated = {rank for process, rank in ranks.items() if self._sources[process] in set(cut)}
        return Part(
            kind=kind,
            read=read,
            calls=_calls(data),
            groups=groups,
            ranks=self._ranks(ranks, data, truncated),
            facts=self._facts(whole, ranks),
            world_size=max((size for _, size in self._comms), default=None) if whole else None,
            unreadable=unreadable,
            truncated=tuple(sorted(truncated)),
            versions=tuple(f"NCCL Inspector {version}" for version in self._versions),
            notes=tuple(notes),
        )

    def _global(self) -> tuple[set[int], dict[int, int], list[str]]:
        """The communicators that span the job, and the global rank of each process that has one rank in them."""
        size = max((size for _, size in self._comms), default=0)
        if len(self._processes) > size:
            return set(), {}, self._unmapped("no communicator spans all processes that left a file")
        whole = {comm for (_, own), comm in self._comms.items() if own == size}
        members: dict[int, set[int]] = defaultdict(set)
        for (comm, rank), process in self._member.items():
            if comm in whole:
                members[process].add(rank)
        several = [process for process, own in members.items() if len(own) > 1]
        per_comm = {(comm, process) for (comm, _), process in self._member.items() if comm in whole}
        if several and len(per_comm) == sum(comm in whole for comm, _ in self._member):
            return set(), {}, self._unmapped("communicators that span the job number its processes differently")
        return whole, {process: min(own) for process, own in members.items() if len(own) == 1}, []

    def _unmapped(self, why: str) -> list[str]:
        return [f"Inspector: {why}; ranks cannot be told as global ranks, calls are left out"] if self._comms else []

    def _rank_of(self, comm: int, rank: int, whole: set[int], ranks: Mapping[int, int]) -> int | None:
        if comm in whole:
            return rank
        process = self._member.get((comm, rank))
        return None if process is None else ranks.get(process)

    def _frame(self, whole: set[int], ranks: Mapping[int, int]) -> pl.DataFrame:
        """The lines with global ranks; those that have none are left out."""
        integers = {name: np.frombuffer(column, dtype=np.int64) for name, column in self._columns.items() if column}
        if not integers:
            return pl.DataFrame()
        data = pl.DataFrame(integers).with_columns(
            pl.when(pl.col(name) != _NULL).then(pl.col(name)) for name in _INTEGERS
        )
        known = [(comm, rank, self._rank_of(comm, rank, whole, ranks)) for comm, rank in self._known(data)]
        by = pl.DataFrame(known, schema={"comm": pl.Int64, "rank": pl.Int64, "global": pl.Int64}, orient="row")
        return (
            data.join(by, on=["comm", "rank"], how="left", maintain_order="left")
            .join(
                by.rename({"rank": "peer", "global": "peer_global"}),
                on=["comm", "peer"],
                how="left",
                maintain_order="left",
            )
            .filter(pl.col("global").is_not_null())
        )

    def _known(self, data: pl.DataFrame) -> set[tuple[int, int]]:
        peers = data.filter(pl.col("peer").is_not_null()).select("comm", "peer").unique()
        return {*self._member, *peers.iter_rows()}

    def _groups(
        self, data: pl.DataFrame, whole: set[int], ranks: Mapping[int, int], notes: list[str]
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        """One group per communicator, and per type where it has collectives of several: each type counts for itself."""
        if data.is_empty():
            return from_dicts(schema.GROUPS, []), data
        names = list(self._ops)
        rows: list[dict[str, Any]] = []
        keys: list[tuple[int, int, int]] = []
        left, budget = 0, _MOST_MEMBERS
        used: dict[int, list[int]] = defaultdict(list)
        for comm, op in data.select("comm", "op").unique().sort("comm", "op").iter_rows():
            used[comm].append(op)
        for (name, size), comm in self._comms.items():
            if comm not in used:
                continue
            own = self._members(comm, size, whole, ranks) if size <= budget else None
            if own is None:
                left += 1
                continue
            types = [op for op in used[comm] if op_name(names[op]) not in words.P2P]
            by_name: dict[str, int] = {}
            for op in used[comm]:
                title = f"{name}:{names[op]}" if op in types and len(types) > 1 else name
                if title not in by_name:
                    by_name[title] = len(rows)
                    budget -= size
                    desc = self._desc.get(comm, "")
                    rows.append({"group": len(rows), "name": title, "desc": desc, "backend": "nccl", "ranks": own})
                keys.append((comm, op, by_name[title]))
        if left:
            notes.append(f"Inspector: {left} communicator(s) have members without a line; their calls are left out")
        by = pl.DataFrame(keys, schema={"comm": pl.Int64, "op": pl.Int64, "group": pl.Int64}, orient="row")
        data = data.join(by, on=["comm", "op"], how="inner", maintain_order="left").with_columns(
            spelling=pl.col("op").replace_strict(dict(enumerate(names)), return_dtype=pl.String),
        )
        return from_dicts(schema.GROUPS, rows), data

    def _members(self, comm: int, size: int, whole: set[int], ranks: Mapping[int, int]) -> list[int] | None:
        if comm in whole:
            return list(range(size))
        own = [self._rank_of(comm, rank, whole, ranks) for rank in range(size)]
        known = [rank for rank in own if rank is not None]
        return known if len(known) == size else None

    def _ranks(self, ranks: Mapping[int, int], data: pl.DataFrame, truncated: set[int]) -> pl.DataFrame:
        calls = dict(data.group_by("global").len().iter_rows()) if data.width else {}
        places = {process: key for key, process in self._processes.items()}
        rows = [
            {
                "rank": rank,
                "host": places[process][0],
                "pid": places[process][1],
                "data": "truncated" if rank in truncated else "present",
                "calls": calls.get(rank, 0),
                "calls_lost": sum(
                    sum(lost[:2]) for member, lost in self._dropped.items() if self._member[member] == process
                ),
                "last_alive_ns": self._alive.get(process) or None,
                "source": self._sources[process],
            }
            for process, rank in sorted(ranks.items(), key=lambda one: one[1])
        ]
        return from_dicts(schema.RANKS, rows)

    def _facts(self, whole: set[int], ranks: Mapping[int, int]) -> pl.DataFrame:
        places = {process: key for key, process in self._processes.items()}
        comms = {number: name for (name, _), number in self._comms.items()}
        rows: list[dict[str, Any]] = []
        for (comm, number), (collectives, p2p, when, source) in self._dropped.items():
            rows.append(
                {
                    "time_ns": when,
                    "host": places[self._member[comm, number]][0],
                    "rank": self._rank_of(comm, number, whole, ranks),
                    "kind": "inspector_dropped",
                    "text": f"the plugin lost {collectives} collectives and {p2p} p2p operations of {comms[comm]}",
                    "fields": words_of(
                        {"comm": comms[comm], "comm_rank": number, "collectives": collectives, "p2p": p2p}
                    ),
                    "source": source,
                }
            )
        return from_dicts(schema.FACTS, rows + self._bandwidths(comms))

    def _bandwidths(self, comms: Mapping[int, str]) -> list[dict[str, Any]]:
        if not self._busbw:
            return []
        names = list(self._ops)
        spent = pl.when(pl.col("spent") != _NULL).then(pl.col("spent"))
        data = pl.DataFrame(
            {
                **{
                    name: np.frombuffer(self._columns[name], dtype=np.int64)
                    for name in ("comm", "op", "bytes", "spent", "rank")
                },
                "busbw": np.frombuffer(self._busbw, dtype=np.float64),
            }
        ).with_columns(spent=spent, busbw=pl.col("busbw").fill_nan(None))
        told = (
            data.group_by("comm", "op", "bytes")
            .agg(
                pl.len().alias("calls"),
                pl.col("rank").n_unique().alias("ranks"),
                pl.concat_list(pl.col("busbw").min(), pl.col("busbw").median(), pl.col("busbw").max()).alias("busbw"),
                pl.concat_list(
                    pl.col("spent").min().cast(float), pl.col("spent").median(), pl.col("spent").max().cast(float)
                ).alias("spent"),
            )
            .sort("comm", "op", "bytes")
        )
        return [_bandwidth(comms[row["comm"]], names[row["op"]], row) for row in told.iter_rows(named=True)]


def _bandwidth(comm: str, op: str, row: Mapping[str, Any]) -> dict[str, Any]:
    size = None if row["bytes"] == _NULL else row["bytes"]
    least, median, most = row["busbw"]
    rates = (
        "no bandwidth" if median is None else f"{least:.4g} to {most:.4g} GB/s on the bus, {median:.4g} in the median"
    )
    fields = {
        "comm": comm,
        "op": op_name(op),
        "bytes": size,
        "calls": row["calls"],
        "ranks": row["ranks"],
        "busbw_gb_per_s": row["busbw"],
        "exec_us": [None if value is None else value / _NS_PER_US for value in row["spent"]],
    }
    text = f"{row['calls']} {op} of {size} bytes in communicator {comm}: {rates}"
    return {"kind": "inspector_bandwidth", "text": text, "fields": words_of(fields), "source": ""}


def _calls(data: pl.DataFrame) -> pl.DataFrame:
    if not data.width or "group" not in data.columns or data.is_empty():
        return table(schema.CALLS, {})
    data = data.with_columns(
        name=pl.col("spelling").replace_strict(
            {spelling: op_name(spelling) for spelling in data["spelling"].unique()}, return_dtype=pl.String
        )
    ).sort("global", "enter", nulls_last=True, maintain_order=True)
    scatters = pl.col("name") == "reduce_scatter"
    size = pl.col("bytes")
    columns = data.select(
        pl.col("global").alias("rank"),
        "group",
        "seq",
        pl.col("name").alias("op"),
        pl.col("spelling").alias("source_op"),
        pl.col("peer_global").alias("peer"),
        # Of ReduceScatter NCCL names what a rank receives, of all others what it sends.
        pl.when(~scatters).then(size).alias("bytes_in"),
        pl.when(scatters | pl.col("name").is_in(list(_WHOLE))).then(size).alias("bytes_out"),
        pl.col("enter").alias("enter_ns"),
        pl.col("issued").alias("issued_ns"),
        pl.col("start").alias("start_ns"),
        pl.col("end").alias("end_ns"),
        pl.col("start").is_not_null().alias("is_timed"),
        pl.lit("completed").alias("outcome"),
    ).to_arrow()
    given: dict[str, pa.Array] = {name: columns[name] for name in columns.column_names}
    return table(schema.CALLS, given)


def _ns(value: object) -> int | None:
    number = count(value)
    return None if number is None or not 0 < number < _MOST_US else number * _NS_PER_US


def _times(trace: Mapping[str, Any], kind: str) -> tuple[int | None, int | None, int | None, int | None]:
    """When the call was entered, had been handed over, started on the GPU and ended there."""
    entered, handed = _ns(trace.get(f"{kind}_start_ts")), _ns(trace.get(f"{kind}_stop_ts"))
    channels = trace.get("kernel_events")
    starts: list[int] = []
    ends: list[int] = []
    for channel in channels if isinstance(channels, list) else ():
        if isinstance(channel, dict):
            start, end = _ns(channel.get("kernel_start_ts")), _ns(channel.get("kernel_stop_ts"))
            starts += [] if start is None else [start]
            ends += [] if end is None else [end]
    return entered, handed, min(starts, default=None), max(ends, default=None)
