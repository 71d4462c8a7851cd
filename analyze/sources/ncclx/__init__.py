"""NCCLX communicator dumps (`ncclCommDump`, `comm_dump_all`), one JSON file per rank; RCCLX's too.

Per communicator a mapping of text to JSON text. Both generations of keys: `CT_currentColls` (a list, since 2026-04)
and `CT_currentColl` (one, and still in RCCLX). The same mapping lies in Flight Recorder dumps of NCCLX builds under
`nccl_comm_state`.

Traps: a collective that has not started may stand among the current ones, and times that have not come are 0, so that
only times decide and the emitted durations are not used; `opCount` is `collId`, which counts sends and receives too;
the hash of a communicator is hexadecimal at the top and a signed number in records; only 20 past collectives are kept;
destroyed communicators stay in the dump and do not say so; `rank` is the rank in the communicator.

Facts: `comm` (one communicator of a rank: `comm`, `desc`, `comm_rank`, `comm_size`, `iteration`, `comm_time_us`),
`grouped_p2p` (an unfinished group of sends and receives: `comm`, `number`, `peers`, `is_started`), `proxy_op` (an
unfinished operation of the network proxy: `comm`, `op_count`, `channel`, `comm_rank`, `remote_rank`, `direction`,
`coll`, `steps` in all, `moved_bytes`, `state`, `waits_for`, and the steps `posted`, `received`, `transmitted`, `done`),
`open_collective` (the first collective that is not done: `comm`, `comm_rank`, `number`, `op`, `bytes` as NCCL counts
them, `algorithm`, `is_started`), `mapper` (`comm`, `notified_by_peer`, `put_to_peer`, `unfinished`), `comm_time`
(`per_iteration_us`), `network_speed` (`gb_per_s`), `nic_error` and `process_error` (`device`, `port`, `message`).

Source: see `records`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import polars as pl

from roundk.analyze.sources import ops
from roundk.analyze.sources.inputs import Hints, Input
from roundk.analyze.sources.ncclx.facts import facts
from roundk.analyze.sources.ncclx.records import Comm, Record, comms
from roundk.analyze.sources.part import Part
from roundk.analyze.sources.rows import MOST_INT, READ_ERRORS, from_dicts, read_bytes
from roundk.analyze.trace import Unreadable
from roundk.tracer import schema
from roundk.tracer import words as contract

KIND: Final = "ncclx"

MOST_BYTES: Final = 64 << 20
"""Bytes of a dump: hundreds of communicators with all their traces take some megabytes."""
MOST_RANK: Final = 1 << 24
_HASH: Final = b'"commHash"'
_BESIDE: Final = (b'"nRanks"', b'"CT_', b'"PT_', b'"localRanks"', b'"commDesc"')
_KEPT: Final = 20
"""Past collectives that NCCLX keeps (NCCL_COLLTRACE_RECORD_MAX)."""
_REDUCING: Final = frozenset({"all_reduce", "reduce", "reduce_scatter"})
_SHOWN: Final = 5


class Tables(NamedTuple):
    """What a job's communicators tell."""

    calls: pl.DataFrame
    groups: pl.DataFrame
    progress: pl.DataFrame
    facts: pl.DataFrame
    counted: Mapping[int, tuple[int, int]]
    notes: tuple[str, ...]


def recognises(item: Input) -> bool:
    """Whether an input is a JSON object of communicators."""
    start = item.head.lstrip(b"\xef\xbb\xbf \t\r\n")
    return start[:1] == b"{" and _HASH in item.head and any(key in item.head for key in _BESIDE)


def load(inputs: Sequence[Input], hints: Hints) -> Part:
    """Read dumps, one per rank."""
    dumps: dict[int, tuple[str, Any]] = {}
    unreadable: list[Unreadable] = []
    notes: list[str] = []
    for item in inputs:
        try:
            data, is_more = read_bytes(item, MOST_BYTES)
            dump = None if is_more else json.loads(data)
        except (*READ_ERRORS, RecursionError) as error:
            unreadable.append(Unreadable(item.name, f"not a whole NCCLX dump: {error}"[:300]))
            continue
        found = list(comms(dump))
        rank = hints.rank(item)
        if rank is None:
            rank = _by_world(found)
        if dump is None or not found:
            unreadable.append(Unreadable(item.name, "it has no NCCLX communicator that can be read"))
        elif rank is None or not 0 <= rank <= MOST_RANK:
            why = f"an NCCLX dump of an unknown rank ({rank}): tell where the rank is with --rank-pattern"
            unreadable.append(Unreadable(item.name, why))
        elif rank in dumps:
            notes.append(f"{item.name} is left out: {dumps[rank][0]} is of rank {rank}, too")
        else:
            dumps[rank] = item.name, dump
    tables = read(dumps)
    return Part(
        kind=KIND,
        read=tuple(name for name, _ in dumps.values()),
        calls=tables.calls,
        groups=tables.groups,
        progress=tables.progress,
        facts=tables.facts,
        ranks=_ranks(dumps, tables),
        unreadable=tuple(unreadable),
        versions=("NCCLX communicator dump",) if dumps else (),
        notes=(*notes, *tables.notes),
    )


def in_dumps(heads: Mapping[int, Mapping[Any, Any]], names: Mapping[int, str]) -> Tables:
    """The same out of Flight Recorder dumps, by rank: their heads, and the names of their files."""
    states = {rank: head.get("nccl_comm_state") for rank, head in heads.items()}
    return read({rank: (names[rank], state) for rank, state in states.items() if state})


def read(dumps: Mapping[int, tuple[str, Any]]) -> Tables:
    """The tables of a job.

    Args:
        dumps: Name of the file and what it says, by global rank.
    """
    groups = _Groups({rank: list(comms(dump)) for rank, (_, dump) in dumps.items()})
    calls: list[dict[str, Any]] = []
    progress: list[dict[str, Any]] = []
    counted: dict[int, tuple[int, int]] = {}
    for rank, of_rank in sorted(groups.comms.items()):
        rows = [row for comm in of_rank for row in _calls(rank, comm, groups)]
        rows.sort(key=lambda row: row["enter_ns"] or MOST_INT)
        calls += rows
        progress += [_progress(rank, comm, groups, dumps[rank][0]) for comm in of_rank if comm.records]
        counted[rank] = len(rows), sum(comm.records[0].number for comm in of_rank if len(comm.records) >= _KEPT)
    rows_of_facts = [row for rank, (name, dump) in sorted(dumps.items()) for row in facts(rank, name, dump)]
    return Tables(
        from_dicts(schema.CALLS, calls),
        from_dicts(schema.GROUPS, list(groups.rows())),
        from_dicts(schema.PROGRESS, progress).sort("rank", "group"),
        from_dicts(schema.FACTS, rows_of_facts),
        counted,
        tuple(groups.notes()),
    )


class _Groups:
    """The communicators of a job: by their hash, with the global ranks of the members that have left a dump."""

    def __init__(self, by_rank: Mapping[int, list[Comm]]) -> None:
        self.comms = by_rank
        self._members: dict[str, dict[int, int]] = defaultdict(dict)
        self._sizes: dict[str, int] = {}
        self._descs: dict[str, str] = {}
        self.with_p2p: set[str] = set()
        for rank, of_rank in sorted(by_rank.items()):
            for comm in of_rank:
                self._descs.setdefault(comm.hash, comm.desc)
                if comm.size is not None and comm.rank is not None and comm.rank < comm.size <= MOST_RANK:
                    self._sizes.setdefault(comm.hash, comm.size)
                    self._members[comm.hash].setdefault(comm.rank, rank)
                if any(record.is_p2p for record in comm.records):
                    self.with_p2p.add(comm.hash)
        self.keys = {name: key for key, name in enumerate(self._descs)}
        self._fill()

    def member(self, comm: str, rank: int | None) -> int | None:
        """The global rank of a rank in a communicator; None: it has left no dump."""
        return None if rank is None else self._members[comm].get(rank)

    def size(self, comm: str) -> int:
        """Ranks in a communicator."""
        return self._sizes.get(comm, 0)

    def rows(self) -> Iterator[dict[str, Any]]:
        """`schema.GROUPS`; the name is the process group's number where the communicator's description has one."""
        taken: set[tuple[str, tuple[int, ...]]] = set()
        for name, key in self.keys.items():
            ranks = tuple(rank for _, rank in sorted(self._members[name].items()))
            desc, colon, number = self._descs[name].rpartition(":")
            title = number if colon and number else name
            if (title, ranks) in taken:  # destroyed communicators stay in the dump
                title = f"{title} ({name})"
            taken.add((title, ranks))
            described = desc if colon else self._descs[name]
            yield {"group": key, "name": title, "desc": described, "backend": "ncclx", "ranks": ranks}

    def notes(self) -> Iterator[str]:
        """What is not known of them."""
        lacking = [name for name, size in self._sizes.items() if len(self._members[name]) < size]
        if lacking:
            shown = ", ".join(lacking[:_SHOWN]) + (", ..." if len(lacking) > _SHOWN else "")
            yield (
                f"{len(lacking)} NCCLX communicators ({shown}) have members without a dump here, whose global ranks "
                "are not known"
            )
        if self.with_p2p:
            yield (
                f"{len(self.with_p2p)} NCCLX communicators carry sends and receives: their numbers count those too, "
                "and may differ by rank for one and the same collective"
            )

    def _fill(self) -> None:
        """The communicator of all ranks: where the rank in it is the global one for all that tell, it is for all."""
        largest = max(self._sizes.values(), default=0)
        for name, size in self._sizes.items():
            members = self._members[name]
            if size == largest and len(members) < size and all(one == rank for one, rank in members.items()):
                self._members[name] = {rank: rank for rank in range(size)}


def _by_world(found: Sequence[Comm]) -> int | None:
    """The rank in the default group, which is the global one."""
    ranks = {comm.rank for comm in found if comm.desc.startswith("default_pg") and comm.rank is not None}
    return ranks.pop() if len(ranks) == 1 else None


def _calls(rank: int, comm: Comm, groups: _Groups) -> Iterator[dict[str, Any]]:
    for record in comm.records:
        op = ops.op_name(record.op)
        if record.is_p2p and (op not in contract.P2P or len(record.peers) > 2):
            continue  # a group of several has no pair to line it up by: a fact where it is not done
        others = [peer for peer in record.peers if peer != comm.rank]
        yield {
            "rank": rank,
            "group": groups.keys[comm.hash],
            "seq": record.number,
            "op": op,
            "source_op": record.op,
            "root": groups.member(comm.hash, record.root) if op in contract.ROOTED else None,
            "peer": groups.member(comm.hash, others[0]) if op in contract.P2P and len(others) == 1 else None,
            "dtype": None if record.dtype is None else ops.dtype(record.dtype)[0],
            "reduce_op": record.reduce_op.upper() if record.reduce_op and op in _REDUCING else None,
            "enter_ns": record.enqueued_ns,
            "issued_ns": record.enqueued_ns,
            "start_ns": record.started_ns,
            "end_ns": record.ended_ns,
            "is_timed": True,
            "outcome": "open" if record.ended_ns is None else "completed",
            **_sizes(record, op, groups.size(comm.hash)),
        }


def _sizes(record: Record, op: str, ranks: int) -> dict[str, int | None]:
    """What NCCL's count means in elements and bytes: of one rank's share for AllGather and ReduceScatter."""
    width = None if record.dtype is None else ops.dtype(record.dtype)[1]
    if record.count is None or not ranks:
        return {"numel": record.count if op not in ("reduce_scatter", "all_to_all") else None}
    numel = record.count * (ranks if op in ("reduce_scatter", "all_to_all") else 1)
    out = record.count * (ranks if op in ("all_gather", "all_to_all") else 1)
    if numel > MOST_INT >> 5 or out > MOST_INT >> 5:
        return {}
    return {
        "numel": numel,
        "bytes_in": None if width is None else numel * width,
        "bytes_out": None if width is None else out * width,
    }


def _progress(rank: int, comm: Comm, groups: _Groups, source: str) -> dict[str, Any]:
    started = [record.number for record in comm.records if record.started_ns is not None]
    ended = [record.number for record in comm.records if record.ended_ns is not None]
    return {
        "rank": rank,
        "group": groups.keys[comm.hash],
        "enqueued": comm.records[-1].number,
        "started": max(started, default=None),
        "completed": max(ended, default=None),
        "is_start_told": True,
        "counts": "calls" if comm.hash in groups.with_p2p else "collectives",
        "source": source,
    }


def _ranks(dumps: Mapping[int, tuple[str, Any]], tables: Tables) -> pl.DataFrame:
    rows: list[dict[str, Any]] = []
    for rank in sorted(dumps):
        calls, lost = tables.counted[rank]
        rows.append(
            {"rank": rank, "data": "present" if calls else "empty", "calls": calls, "calls_lost": lost}
            | {"first_call": lost + 1 if calls else None, "source": dumps[rank][0]}
        )
    newest = tables.calls.group_by("rank").agg(
        last_alive_ns=pl.max_horizontal(pl.col("enter_ns", "start_ns", "end_ns").max())
    )
    made = from_dicts(schema.RANKS, rows)
    return made.drop("last_alive_ns").join(newest, on="rank", how="left").select(made.columns).sort("rank")
