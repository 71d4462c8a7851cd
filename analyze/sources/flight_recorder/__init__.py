"""Dumps of PyTorch's Flight Recorder: what each rank has recorded of its calls, one file per rank, pickle or JSON.

Written on a watchdog timeout, by `_dump_nccl_trace` and its kin, by torch's debug server, torchcomms, Ray Train
(`hang_detector/flight_recorder/rank_<r>.json`) and NVRx (with `health_check_results`). Schemas of torch 2.2 to 2.14;
later ones are read by the fields that are known. The rank is not in the file: it is the last integer of its name.

Traps: a file without entries is data, and so is one that is cut; numbers of sends and receives differ by rank; it may
hold calls in flight only; gloo tells neither members nor ends (see `calls`, `groups`); a pickle may run
code (see `pickled`).

Facts: `dump_error` (no dump could be fetched of the rank: `error`), `dump_empty` (the rank's file has no bytes),
`health_check` (`check`, `status`, `output`) and `calls_unrecorded` (gloo counts sends and receives and does not record
them: `calls`).

Source: FlightRecorderDetail.hpp, torch 2.13; the releases by their headers; nvidia-resiliency-ext trace_collector.py;
Ray python/ray/train/v2/_internal/callbacks/nccl_ras.py.
"""

from __future__ import annotations

import pickletools
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import polars as pl

from roundk.analyze.phrases import NS_PER_S, duration, fold, number_of, ranks_text
from roundk.analyze.sources import ncclx
from roundk.analyze.sources.flight_recorder import dump as dumps
from roundk.analyze.sources.flight_recorder.bulk import Bulk
from roundk.analyze.sources.flight_recorder.calls import Calls, Notes
from roundk.analyze.sources.flight_recorder.dump import Dump
from roundk.analyze.sources.flight_recorder.entries import AT, NONE, Vocabulary
from roundk.analyze.sources.flight_recorder.folders import Folder, by_folder, chosen, worlds
from roundk.analyze.sources.flight_recorder.groups import DEFAULT, MOST_RANK, Groups
from roundk.analyze.sources.inputs import HEAD, Hints, Input
from roundk.analyze.sources.part import Part
from roundk.analyze.sources.rows import READ_ERRORS, from_dicts, words_of
from roundk.analyze.trace import Unreadable
from roundk.tracer import schema
from roundk.tracer.errors import RunError

KIND: Final = "flight_recorder"

_JSON_KEYS: Final = (
    b'"pg_config"',
    b'"pg_status"',
    b'"collective_seq_id"',
    b'"profiling_name"',
    b'"ray_train_dump_error"',
)
_PROTOCOLS: Final = b"\x02\x03\x04\x05"
_RUNNING: Final = frozenset({"GLOBAL", "INST", "REDUCE", "BUILD", "PERSID", "BINPERSID", "EXT1", "EXT2", "EXT4", "OBJ"})
_MOST_TEXT: Final = 500
_SHOWN: Final = 5

APART_NS: Final = 6 * 3600 * NS_PER_S
"""Ranks that hang together made their last calls within a timeout of each other, of minutes, or hours at most. Dumps go
to one folder and later runs overwrite them, so that one of another day may lie there for a rank that left none."""


def recognises(item: Input) -> bool:
    """Whether an input is a pickle, of whatever, or a dump as JSON."""
    start = item.start[:64]
    if start[:1] == b"\x80" and start[1:2] in (bytes((one,)) for one in _PROTOCOLS):
        return True
    if start.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"["):
        return any(key in item.head for key in _JSON_KEYS)
    return _is_old_pickle(item.head)


def _is_old_pickle(head: bytes) -> bool:
    """Whether this is a pickle of protocol 0 or 1, which has no mark to begin with, that would run something."""
    names, at = set(), 0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in what may be no text at all
            for opcode, _, position in pickletools.genops(head):
                names.add(opcode.name)
                at = position or 0
    except (ValueError, OverflowError):  # not a pickle, or one that goes on behind the head
        if len(head) < HEAD:
            return False
    is_whole = not head[at + 1 :].strip()
    return is_whole and not names.isdisjoint(_RUNNING)


def load(inputs: Sequence[Input], hints: Hints) -> Part:
    """Read dumps, at most one per rank: of several folders with the same ranks one, of several in it the newest.

    Raises:
        RunError: They are of jobs of different sizes.
    """
    return _Loading(inputs, hints).part()


class _Loading:
    """The dumps of a job on their way."""

    def __init__(self, inputs: Sequence[Input], hints: Hints) -> None:
        self.words = Vocabulary()
        self.dumps: dict[int, Dump] = {}
        self._all: list[tuple[int, Dump]] = []
        self.errors: dict[int, Dump] = {}
        self.read: list[str] = []
        self.ignored: list[str] = []
        self.unreadable: list[Unreadable] = []
        self.notes: list[str] = []
        self._hints = hints
        self._bulk = Bulk(self.words)
        self._replaced: list[str] = []
        for item in inputs:
            self._one(item)
        self._choose()

    def part(self) -> Part:
        """Everything that the dumps tell."""
        self._leave_out_other_runs()
        groups = self._groups()
        ranks = [_rank_row(rank, dump) for rank, dump in sorted(self.dumps.items())]
        missing = [{"rank": rank, "data": "missing"} for rank in sorted(self.errors.keys() - self.dumps.keys())]
        versions = _versions(self.dumps.values())
        truncated = tuple(rank for rank, dump in sorted(self.dumps.items()) if dump.problem is not None)
        progress = self._progress(groups)
        calls = Calls(self.words, groups)
        table = calls.table(self.dumps)
        facts = from_dicts(schema.FACTS, [*self._facts(), *_unrecorded(self.dumps, groups, ranks)])
        of_comms = ncclx.in_dumps(
            {rank: dump.head or {} for rank, dump in self.dumps.items()},
            {rank: dump.item.name for rank, dump in self.dumps.items()},
        )
        listed = _listed(groups)
        if not table.height and of_comms.calls.height:  # dumps of communicators without a recorded call
            table = of_comms.calls.with_columns(pl.col("group") + listed.height)
            listed = pl.concat([listed, of_comms.groups.with_columns(pl.col("group") + listed.height)])
        return Part(
            kind=KIND,
            read=tuple(self.read),
            ignored=tuple(self.ignored),
            calls=table,
            groups=listed,
            members_told=not groups.guessed,
            progress=progress,
            ranks=from_dicts(schema.RANKS, [{"calls": 0, "calls_lost": 0, **row} for row in [*ranks, *missing]]).sort(
                "rank"
            ),
            sites=from_dicts(
                schema.SITES, [{"site": key, **site._asdict()} for key, site in enumerate(self.words.sites)]
            ),
            facts=pl.concat([facts, of_comms.facts]),
            world_size=groups.world_size,
            unreadable=tuple(self.unreadable),
            truncated=truncated,
            versions=versions,
            notes=(*self.notes, *self._told(groups, calls.notes)),
        )

    def _one(self, item: Input) -> None:
        rank = self._hints.rank(item)
        try:
            dump = dumps.read(item, self.words, self._bulk) if item.start else Dump(item, "", head={})
        except READ_ERRORS as error:
            self.unreadable.append(Unreadable(item.name, str(error) or type(error).__name__))
            return
        if dump.head is None:
            self._no_dump(dump)
            return
        told = dump.head.get("rank")
        if rank is None and isinstance(told, int) and not isinstance(told, bool):
            rank = told
        if rank is None or not 0 <= rank <= MOST_RANK:
            self.unreadable.append(Unreadable(item.name, _nameless(rank)))
            return
        self.read.append(item.name)
        if dump.error is not None:
            self.errors[rank] = dump
        else:
            self._all.append((rank, dump))
        if dump.problem is not None:
            self.notes.append(f"{item.name} {dump.problem}: {_used(len(dump.rows))}")

    def _choose(self) -> None:
        """One dump per rank. Of folders with dumps of the same ranks one is taken: two runs are never mixed by rank."""
        folders = by_folder([(rank, dump.item.name, _newest(dump)) for rank, dump in self._all])
        taken = {name for folder in chosen(folders) for name in folder.names}
        left = [folder for folder in folders if not taken.issuperset(folder.names)]
        if left:
            self._refuse_two_jobs([one for one in folders if one not in left], left)
            self._tell_left(left)
        for rank, dump in self._all:
            name = dump.item.name
            if name not in taken:
                self.read.remove(name)
            elif (other := self.dumps.get(rank)) is None or _newest(dump) > _newest(other):
                self._replaced += [] if other is None else [f"{other.item.name} (rank {rank}, {name} is newer)"]
                self.dumps[rank] = dump
            else:
                self._replaced.append(f"{name} (rank {rank}, {other.item.name} is newer)")
        self._all.clear()

    def _refuse_two_jobs(self, kept: list[Folder], left: list[Folder]) -> None:
        sizes = {dump.item.name: size for _, dump in self._all if (size := _world_told(dump)) is not None}
        if told := worlds([*kept, *left], sizes):
            some = ", ".join(f"of {number_of(size, 'rank')} in {where}" for size, where in told[:_SHOWN])
            raise RunError(f"dumps of {len(told)} jobs are here and one is analyzed at a time: {some}; name one")

    def _tell_left(self, left: list[Folder]) -> None:
        where = _some([f"{one.where} ({ranks_text(sorted(one.ranks))})" for one in left])
        self.notes.append(
            f"dumps of the same ranks lie in several folders, and those of one run are used: left out "
            f"{'is' if len(left) == 1 else 'are'} {where}; name one folder, or, if the ranks are others, tell where "
            "the rank is with --rank-pattern"
        )

    def _leave_out_other_runs(self) -> None:
        """Keep the dumps of one run: the most whose last calls lie close together, the latest of as many."""
        ends = sorted((newest, rank) for rank, dump in self.dumps.items() if (newest := _newest(dump)) != NONE)
        runs: list[list[tuple[int, int]]] = []
        for end in ends:
            if runs and end[0] - runs[-1][-1][0] <= APART_NS:
                runs[-1].append(end)
            else:
                runs.append([end])
        if len(runs) < 2:
            return
        kept = max(runs, key=lambda run: (len(run), run[-1][0]))
        others = [(newest, rank) for run in runs if run is not kept for newest, rank in run]
        for newest, rank in others:
            dump = self.dumps.pop(rank)
            self.read.remove(dump.item.name)
            apart = duration(kept[0][0] - newest if newest < kept[0][0] else newest - kept[-1][0])
            side = "before" if newest < kept[0][0] else "after"
            them = number_of(len(kept), "other dump")
            why = f"its last call is {apart} {side} those of {them}: it is taken for another run's"
            self.unreadable.append(Unreadable(dump.item.name, why))
        left_out = fold(rank for _, rank in others)
        self.notes.append(
            f"the dumps of {number_of(len(others), 'rank')} ({left_out}) are of another time than those of the other "
            f"{len(kept)} and left out: name the files of one run"
        )

    def _no_dump(self, dump: Dump) -> None:
        name = dump.item.name
        if dump.problem is None:
            self.ignored.append(name)
        elif dump.is_refused:
            why = f"refused: this pickle {dump.problem}; no Flight Recorder dump does, so nothing of it was loaded"
            self.unreadable.append(Unreadable(name, why))
        else:
            why = (
                f"it looks like a Flight Recorder dump ({dump.form}), but {dump.problem}; nothing before that is of use"
            )
            self.unreadable.append(Unreadable(name, why))

    def _groups(self) -> Groups:
        """The groups of all dumps, of which those are left out whose rank cannot be right."""
        groups = Groups(self.dumps, self.words)
        strangers = {rank: "that it tells" for rank in self.dumps if groups.is_stranger(rank)}
        strangers |= {
            rank: "that others tell, and it is empty"
            for rank, dump in self.dumps.items()
            if groups.world_size is not None and rank >= groups.world_size and not dump.form
        }
        for rank, which in strangers.items():
            dump = self.dumps.pop(rank)
            self.read.remove(dump.item.name)
            why = f"by its name it is of rank {rank}, which is no member of the group of all ranks {which}; "
            self.unreadable.append(Unreadable(dump.item.name, why + "tell where the rank is with --rank-pattern"))
        return Groups(self.dumps, self.words) if strangers else groups

    def _progress(self, groups: Groups) -> pl.DataFrame:
        rows = []
        for rank, dump in sorted(self.dumps.items()):
            counters = groups.counters(rank)
            is_told = any(status.started != NONE for status in counters.values())
            for key, status in sorted(counters.items()):
                mixed = key in groups.with_p2p or groups.backends[key] == "gloo"
                rows.append(
                    {name: None if value == NONE else value for name, value in status._asdict().items()}
                    | {"rank": rank, "group": key, "is_start_told": is_told, "source": dump.item.name}
                    | {"counts": "calls" if mixed else "collectives"}
                )
        return from_dicts(schema.PROGRESS, rows)

    def _facts(self) -> Iterator[dict[str, Any]]:
        for rank, dump in sorted(self.errors.items()):
            text = f"no dump of rank {rank} could be fetched: {dump.error}"[:_MOST_TEXT]
            fields = words_of({"error": (dump.error or "")[:_MOST_TEXT]})
            yield {"rank": rank, "kind": "dump_error", "text": text, "fields": fields, "source": dump.item.name}
        for rank, dump in sorted(self.dumps.items()):
            if not dump.form:
                text = f"the dump of rank {rank} is an empty file: its writer was ended first, or the disk was full"
                yield {"rank": rank, "kind": "dump_empty", "text": text, "source": dump.item.name}
        for rank, dump in sorted(self.dumps.items()):
            checks = (dump.head or {}).get("health_check_results")
            for check, found in checks.items() if isinstance(checks, dict) else ():
                if isinstance(found, dict):
                    status, output = str(found.get("status"))[:_MOST_TEXT], str(found.get("output"))[:_MOST_TEXT]
                    fields = words_of({"check": str(check)[:_MOST_TEXT], "status": status, "output": output})
                    text = f"health check of {check}: {status}"[:_MOST_TEXT]
                    yield {
                        "rank": rank,
                        "kind": "health_check",
                        "text": text,
                        "fields": fields,
                        "source": dump.item.name,
                    }

    def _told(self, groups: Groups, of_calls: Notes) -> Iterator[str]:
        if blank := [rank for rank, dump in sorted(self.dumps.items()) if not dump.form]:
            yield (
                f"the {'dump' if len(blank) == 1 else 'dumps'} of {ranks_text(blank)} "
                f"{'is an empty file' if len(blank) == 1 else 'are empty files'}: cut off before the first byte, which "
                "says less than a dump without calls"
            )
        if self._replaced:
            yield (
                f"{number_of(len(self._replaced), 'dump is', 'dumps are')} left out for a newer one of the same rank: "
                f"{_some(self._replaced)}; "
                "if they are of different ranks, tell where the rank is with --rank-pattern"
            )
        if groups.guessed:
            names = [groups.all[key].name or "the unnamed one" for key in sorted(groups.guessed)]
            yield (
                f"no dump tells the members of {number_of(len(names), 'group')} ({_some(names)}); the ranks that have "
                f"calls of {'it' if len(names) == 1 else 'them'} are taken for them, of the default group all up to "
                "the highest"
            )
        if groups.unplaced:
            counters = number_of(sum(groups.unplaced.values()), "counter")
            belong = "belongs" if counters.startswith("1 ") else "belong"
            yield f"{counters} of {number_of(len(groups.unplaced), 'rank')} {belong} to groups that are not told"
        if of_calls.issued_only:
            yield (
                f"the dumps of {number_of(of_calls.issued_only, 'rank')} tell when a call was issued, not how it ended "
                "(torchcomms); their calls are counted by group here, from the first that is kept"
            )
        if of_calls.dropped_ends:
            ends = number_of(of_calls.dropped_ends, "end is", "ends are")
            yield f"{ends} told of batches of sends and receives by what is in them"
        if of_calls.mirrored:
            entries = number_of(of_calls.mirrored, "entry of the c10d hook repeats", "entries of the c10d hook repeat")
            yield f"{entries} what the backend has, and {'is' if of_calls.mirrored == 1 else 'are'} left out"


def _unrecorded(dumps: Mapping[int, Dump], groups: Groups, ranks: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Calls that gloo has counted and not recorded: it numbers sends and receives and leaves them out."""
    if set(groups.backends) != {"gloo"}:
        return
    for row in ranks:
        rank, dump = row["rank"], dumps[row["rank"]]
        count = groups.enqueued(rank) - row["calls"] - row["calls_lost"]
        if count > 0 and row["calls"] and dump.problem is None:
            made = number_of(count, "send, receive or other call", "sends, receives or other calls")
            text = f"rank {rank} made {made} that gloo counts and does not record"
            yield {
                "rank": rank,
                "kind": "calls_unrecorded",
                "text": text,
                "fields": words_of({"calls": count}),
                "source": dump.item.name,
            }


def _listed(groups: Groups) -> pl.DataFrame:
    rows = [
        {"group": key, "name": of.name, "desc": of.desc, "backend": groups.backends[key], "ranks": of.ranks}
        for key, of in enumerate(groups.all)
    ]
    return from_dicts(schema.GROUPS, rows)


def _nameless(rank: int | None) -> str:
    what = "there is no number in its name" if rank is None else f"the number in its name, {rank}, is no rank"
    return f"it is a Flight Recorder dump of an unknown rank: {what}; tell where the rank is with --rank-pattern"


def _used(calls: int) -> str:
    return f"the {number_of(calls, 'call')} before that {'is' if calls == 1 else 'are'} used"


def _world_told(dump: Dump) -> int | None:
    """The number of members of the default group, as far as the head of a dump tells."""
    config = (dump.head or {}).get("pg_config")
    for group in config.values() if isinstance(config, dict) else ():
        if isinstance(group, dict) and group.get("desc") == DEFAULT:
            ranks = group.get("ranks")
            count = len(re.findall(r"\d+", ranks)) if isinstance(ranks, str) else len(ranks or ())
            return count or None
    return None


def _newest(dump: Dump) -> int:
    """The newest time in a dump; `NONE` where there is none."""
    times = dump.rows[:, [AT["created"], AT["started"], AT["completed"]]]
    return int(times.max()) if times.size else NONE


def _rank_row(rank: int, dump: Dump) -> dict[str, Any]:
    rows, numbers = dump.rows, dump.rows[:, AT["record_id"]]
    newest = _newest(dump)
    first = int(numbers[0]) if len(rows) else NONE
    lost = _lost(dump)
    host = (dump.head or {}).get("host_name")
    return {
        "rank": rank,
        "host": host if isinstance(host, str) else None,
        "data": "truncated" if dump.problem is not None else "present" if len(rows) else "empty",
        "calls": len(rows),
        "calls_lost": lost,
        "first_call": first + 1 if first != NONE else lost + 1 if len(rows) else None,
        "last_alive_ns": None if newest == NONE else newest,
        "source": dump.item.name,
    }


def _lost(dump: Dump) -> int:
    """Calls that were made and are not in the dump: overwritten, or left out where it holds those in flight."""
    rows, numbers = dump.rows, dump.rows[:, AT["record_id"]]
    if len(rows) and numbers.max() != NONE:
        return max(int(numbers.max()) + 1 - len(rows), 0)
    if len(rows):  # torch 2.2 and 2.3 number the calls of each group
        firsts = [int(rows[rows[:, AT["name"]] == name, AT["seq"]].min()) for name in np.unique(rows[:, AT["name"]])]
        return sum(max(first - 1, 0) for first in firsts)
    return 0


def _versions(dumps: Iterable[Dump]) -> tuple[str, ...]:
    found = set()
    for dump in dumps:
        if dump.form:
            version = f" {dump.version}" if dump.version else " of torch 2.2" if not dump.head else ""
            library = f", communication library {dump.library}" if dump.library else ""
            found.add(f"Flight Recorder{version[:40]}, {dump.form}{library[:60]}")
    return tuple(sorted(found))


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
