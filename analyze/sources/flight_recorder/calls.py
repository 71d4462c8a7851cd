"""Entries of Flight Recorder dumps as calls: how each ended, who its peer is, and how calls are numbered.

What an entry's state means depends on who wrote it:

- NCCL, XCCL, NCCLX by torch: `completed` once the watchdog has seen the end; retired without that: failed.
- gloo (torch 2.8 to 2.14): the state stays `scheduled` for ever, retired means completed, the time of the end is lost.
- torchcomms: state and duration are taken when the call was issued, so that only `completed` means something.
- c10d (`FlightRecorderHook`, torch 2.14): a second entry of a call that the backend has recorded already.

Members of a coalesced group never end themselves: they share the numbers of the entry that ends the group, and its end.

Source: retire_id in FlightRecorderDetail.hpp; ProcessGroupNCCL::endCoalescing; ProcessGroupGloo.cpp, torch 2.13;
comms/torchcomms/hooks/fr/FlightRecorder.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa

from roundk.analyze.sources import ops
from roundk.analyze.sources.flight_recorder.dump import Dump
from roundk.analyze.sources.flight_recorder.entries import AT, COMPLETED, NONE, Vocabulary
from roundk.analyze.sources.flight_recorder.groups import Groups
from roundk.analyze.trace import frame
from roundk.tracer import schema
from roundk.tracer import words as contract

_Array = np.ndarray[Any, Any]

_GLOO: Final = "gloo"
_XCCL: Final = "xccl"
_MIRROR: Final = "c10d"
_COALESCED: Final = "coalesced"
_NS_PER_MS: Final = 1_000_000

_COLUMNS: Final = {
    "rank": np.int32,
    "group": np.int32,
    "seq": np.int64,
    "op": np.int32,
    "peer": np.int32,
    "size": np.int32,
    "thread": np.int64,
    "site": np.int32,
    "enter_ns": np.int64,
    "issued_ns": np.int64,
    "start_ns": np.int64,
    "end_ns": np.int64,
    "is_timed": np.bool_,
    "outcome": np.int8,
}
"""What is kept of a call on the way to the table."""


@dataclass
class Notes:
    """What was done to the calls of a job.

    Attributes:
        dropped_ends: Ends of batches of sends and receives, whose state their members have taken over.
        mirrored: Entries that repeat another one.
        issued_only: Ranks whose dumps tell when a call was issued, and not how it ended.
        renumbered: Ranks whose calls are counted by us, as their numbers run over all groups.
    """

    dropped_ends: int = 0
    mirrored: int = 0
    issued_only: int = 0
    renumbered: int = 0


class Calls:
    """Puts together the calls of a job."""

    def __init__(self, words: Vocabulary, groups: Groups) -> None:
        self._words = words
        self._groups = groups
        self._spelled = [ops.spelled(name) for name in words.ops]
        self._ops = {name: code for code, name in enumerate(dict.fromkeys(one.op for one in self._spelled))}
        self._op = np.array([self._ops[one.op] for one in self._spelled], np.int32)
        self._is_send = np.array([one.op == "send" for one in self._spelled], bool)
        self._is_p2p = np.array([one.op in contract.P2P for one in self._spelled], bool)
        # Only uneven collectives are made of these (ProcessGroupNCCL.cpp, `_broadcast_oop` and `_reduce_oop`).
        self._is_piece = np.array([one.source_op.endswith("_oop") for one in self._spelled], bool)
        self._is_end = np.array([one.op.endswith(_COALESCED) for one in self._spelled], bool)
        self._backends, self._backend = np.unique([one.backend for one in self._spelled] or [""], return_inverse=True)
        self.notes = Notes()

    def table(self, dumps: Mapping[int, Dump]) -> pl.DataFrame:
        """`schema.CALLS` of all dumps; their rows are let go on the way."""
        most = sum(len(dump.rows) for dump in dumps.values())
        columns: dict[str, _Array] = {name: np.empty(most, kind) for name, kind in _COLUMNS.items()}
        filled = 0
        for rank in sorted(dumps):
            part = self._of(rank, dumps[rank])
            dumps[rank].rows = dumps[rank].rows[:0].copy()  # a view would keep all of them
            begin, filled = filled, filled + len(part["rank"])
            for name, column in columns.items():
                column[begin:filled] = part[name]
        table = frame(self._arrow({name: column[:filled] for name, column in columns.items()}))
        del columns
        pa.default_memory_pool().release_unused()  # as much again was needed on the way: the analysis can use it
        return table

    def _of(self, rank: int, dump: Dump) -> dict[str, _Array]:
        rows = self._without_mirrors(dump.rows)
        one = _Rank(rank, dump, rows, self._groups.of(rank)[rows[:, AT["name"]]])
        op = rows[:, AT["op"]]
        is_end, is_p2p = self._is_end[op], self._is_p2p[op]
        self._judge(one, self._backends[self._backend[op]])
        if is_end.any():
            self._fold(one, is_end)
        self._unended(one, is_p2p)
        seq = self._numbers(one, is_p2p)
        peer, seq = self._peers(one, is_p2p, seq)
        kept = ~(is_end & (rows[:, AT["is_p2p"]] == 1))
        self.notes.dropped_ends += int(len(kept) - np.count_nonzero(kept))
        if one.is_active_only:
            kept &= ~_ended_pieces(rows, self._is_piece[op], is_end)
        found = {
            "rank": np.full(len(rows), rank),
            "group": one.group,
            "seq": seq,
            "op": op,
            "peer": peer,
            "size": rows[:, AT["size"]],
            "thread": rows[:, AT["thread"]],
            "site": rows[:, AT["site"]],
            "enter_ns": rows[:, AT["created"]],
            "issued_ns": one.issued,
            "start_ns": one.start,
            "end_ns": one.end,
            "is_timed": one.is_timed,
            "outcome": one.outcome,
        }
        return {name: column[kept] for name, column in found.items()}

    def _without_mirrors(self, rows: _Array) -> _Array:
        is_mirror = (self._backends == _MIRROR)[self._backend[rows[:, AT["op"]]]]
        if not is_mirror.any():
            return rows
        doubled = is_mirror & np.isin(rows[:, AT["name"]], rows[~is_mirror, AT["name"]])
        self.notes.mirrored += int(np.count_nonzero(doubled))
        kept: _Array = rows[~doubled]
        return kept

    def _judge(self, one: _Rank, backend: _Array) -> None:
        rows = one.rows
        is_completed, is_retired = rows[:, AT["state"]] == COMPLETED, rows[:, AT["is_retired"]] == 1
        if one.is_issued_only:
            self.notes.issued_only += 1
            one.outcome = np.where(is_completed, contract.COMPLETED, contract.NOT_RECORDED)
        else:
            one.outcome = np.select(
                [is_completed, (backend == _GLOO) & is_retired, backend == _MIRROR, is_retired],
                [contract.COMPLETED, contract.COMPLETED, contract.NOT_RECORDED, contract.FAILED],
                contract.OPEN,
            )
        one.end = np.where(is_completed, rows[:, AT["completed"]], NONE)
        one.start = one.starts()
        one.is_timed = np.full(len(rows), bool((rows[:, AT["started"]] != NONE).any()))
        one.is_endless = backend == _XCCL

    def _fold(self, one: _Rank, is_end: _Array) -> None:
        """Give the members of coalesced groups the end of their group."""
        keys = one.rows[:, [AT["name"], AT["seq"], AT["p2p_seq"]]]
        ends = {tuple(keys[at].tolist()): at for at in np.flatnonzero(is_end).tolist()}
        for at in np.flatnonzero(~is_end & (one.outcome != contract.COMPLETED)).tolist():
            end = ends.get(tuple(keys[at].tolist()))
            if end is not None and end > at:
                one.outcome[at], one.end[at], one.start[at] = one.outcome[end], one.end[end], one.start[end]
                one.issued[at] = one.rows[end, AT["created"]]
                one.is_folded[at] = True

    def _unended(self, one: _Rank, is_p2p: _Array) -> None:
        """Sends and receives of a batch whose end is not here say nothing of their own end.

        The end is recorded right behind its members, and stays while it is open. So where it is missing from a dump of
        calls in flight it has come; and XCCL records none. Only the counter tells a batch of one from a single send.
        """
        places = np.flatnonzero(is_p2p & (one.outcome == contract.OPEN) & ~one.is_folded)
        if not len(places):
            return
        keys = one.rows[places][:, [AT["name"], AT["seq"], AT["p2p_seq"]]]
        _, which, counts = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
        is_batch = counts[which.reshape(-1)] > 1
        is_past = self._passed(one, is_p2p)[places]
        is_endless = one.is_endless[places] | one.is_active_only
        lost = places[(is_batch & (is_endless | is_past)) | (is_endless & is_past)]
        one.outcome[lost] = contract.NOT_RECORDED
        one.is_timed[lost] = False

    def _passed(self, one: _Rank, is_p2p: _Array) -> _Array:
        """Sends and receives that the group's counter has passed, where it counts those and not the collectives."""
        passed = np.zeros(len(is_p2p), bool)
        for key, status in self._groups.counters(one.rank).items():
            of_group = is_p2p & (one.group == key)
            numbers = one.rows[of_group, AT["p2p_seq"]]
            if len(numbers) and numbers.max() == status.enqueued:
                passed[of_group] = numbers <= status.completed
        return passed

    def _numbers(self, one: _Rank, is_p2p: _Array) -> _Array:
        seq = one.rows[:, AT["seq"]]
        if not one.is_issued_only and (seq != NONE).all():
            return seq
        self.notes.renumbered += 1
        return _ordinals(one.group.astype(np.int64) * 2 + is_p2p)

    def _peers(self, one: _Rank, is_p2p: _Array, seq: _Array) -> tuple[_Array, _Array]:
        """The global ranks of the peers, and the numbers with those of p2p calls counted by directed pair."""
        peer = np.full(len(seq), NONE, np.int64)
        places = np.flatnonzero(is_p2p)
        if not len(places):
            return peer, seq
        for at in places.tolist():
            other = self._spelled[int(one.rows[at, AT["op"]])].peer
            ranks = self._groups.all[int(one.group[at])].ranks
            if other is not None and other < len(ranks):
                peer[at] = ranks[other]
        is_send = self._is_send[one.rows[places, AT["op"]]]
        pairs = np.stack([one.group[places], peer[places], is_send], axis=1)
        numbered = seq.copy()
        numbered[places] = _ordinals(np.unique(pairs, axis=0, return_inverse=True)[1].reshape(-1))
        return peer, numbered

    def _arrow(self, columns: dict[str, _Array]) -> pa.Table:
        size, op = columns.pop("size"), columns.pop("op")
        sizes = list(self._words.sizes)
        sources = {name: code for code, name in enumerate(dict.fromkeys(one.source_op for one in self._spelled))}
        source = np.array([sources[one.source_op] for one in self._spelled], np.int32)
        made = {
            "op": _words(self._op[op] if len(op) else op, list(self._ops)),
            "source_op": _words(source[op] if len(op) else op, list(sources)),
            "dtype": _of_size([one.dtype for one in sizes], size),
            "shapes": _of_size([one.shapes for one in sizes], size),
            "outcome": _words(columns.pop("outcome").astype(np.int32), list(contract.OUTCOMES)),
        }
        for name in ("numel", "bytes_in", "bytes_out"):
            made[name] = pa.array([getattr(one, name) for one in sizes], pa.int64()).take(pa.array(size))
        for name in list(columns):
            column = columns.pop(name)
            made[name] = pa.array(column) if name in ("rank", "group", "seq", "is_timed") else _nullable(column)
        rows = len(size)
        arrays = [made[of.name].cast(of.type) if of.name in made else pa.nulls(rows, of.type) for of in schema.CALLS]
        return pa.Table.from_arrays(arrays, names=schema.CALLS.names)


class _Rank:
    """The entries of one dump on their way, and what has been found of them so far."""

    def __init__(self, rank: int, dump: Dump, rows: _Array, group: _Array) -> None:
        self.rank = rank
        self.rows = rows
        self.group = group
        self.outcome = np.zeros(0, np.int64)
        self.start = self.end = self.outcome
        self.is_timed = self.is_endless = np.zeros(0, bool)
        self.is_folded = np.zeros(len(rows), bool)
        self.issued = rows[:, AT["created"]].copy()
        """When the backend had the call: of a member of a coalesced group, when the group ended."""
        status = (dump.head or {}).get("pg_status")
        self.is_issued_only = len(rows) > 0 and isinstance(status, dict) and not status
        """Torchcomms' dumps have counters of no group, torch's of every group with an entry."""
        self.is_active_only = not (rows[:, AT["state"]] == COMPLETED).any()

    def starts(self) -> _Array:
        """When the device began: the end less the measured duration, where that lies behind the entering.

        Both times are noted when the watchdog looks, up to its period late. So the end less the duration is as late as
        the end, and the time between them is right; the two as noted are late by different amounts.
        """
        rows = self.rows
        noted, ended, lasted = rows[:, AT["started"]], self.end, rows[:, AT["duration"]]
        computed = ended - lasted
        is_sound = (ended != NONE) & (lasted != NONE) & (computed >= rows[:, AT["created"]]) & (not self.is_issued_only)
        start: _Array = np.where(is_sound, computed, noted)
        return start


def _ended_pieces(rows: _Array, is_piece: _Array, is_end: _Array) -> _Array:
    """Pieces of uneven collectives whose end is not in a dump of the calls in flight: it has come.

    Pieces never end themselves and stay in such dumps for ever; what they were together only the end tells.
    """
    ended = np.zeros(len(rows), bool)
    places = np.flatnonzero(is_piece | is_end)
    if not len(places):
        return ended
    _, which = np.unique(rows[places][:, [AT["name"], AT["seq"]]], axis=0, return_inverse=True)
    which = which.reshape(-1)
    has_end = np.zeros(which.max() + 1, bool)
    has_end[which[is_end[places]]] = True
    ended[places] = ~has_end[which]
    return ended


def _ordinals(keys: _Array) -> _Array:
    """The number of each row among those with the same key, from 1."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    places = np.arange(len(keys))
    is_first = np.append(True, ordered[1:] != ordered[:-1])[: len(keys)]
    numbers = np.empty(len(keys), np.int64)
    numbers[order] = places - np.maximum.accumulate(np.where(is_first, places, 0)) + 1
    return numbers


def _nullable(column: _Array) -> pa.Array:
    return pa.array(column, mask=column == NONE)


def _words(codes: _Array, values: list[str]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(values, pa.utf8()))


def _of_size(texts: list[str | None], size: _Array) -> pa.Array:
    codes = {text: code for code, text in enumerate(dict.fromkeys(text for text in texts if text is not None))}
    by_size = pa.array([None if text is None else codes[text] for text in texts], pa.int32())
    return pa.DictionaryArray.from_arrays(by_size.take(pa.array(size)), pa.array(list(codes), pa.utf8()))
