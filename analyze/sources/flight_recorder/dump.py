"""One Flight Recorder dump: what its head says, and its entries as a matrix of numbers, as far as it can be read.

Schemas: a bare list of entries (torch 2.2); "1.4" with `pg_config` by number (2.3); "2.1" by name (2.4); "2.4" with
`pg_status` (2.5 to 2.7); "2.9" with `nccl_version` and threads (2.8); "2.10" with `comm_lib_version` (2.9 to 2.14).
Fields decide, not the version. As a pickle or as JSON, which has no stacks, 0 for a time that is not known, counters as
text, and no `entries` where there are none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from roundk.analyze.sources.flight_recorder import json
from roundk.analyze.sources.flight_recorder.bulk import Bulk
from roundk.analyze.sources.flight_recorder.entries import AT, FIELDS, NONE, Vocabulary, matrix
from roundk.analyze.sources.flight_recorder.pickled import Cut, PickleProblem, Refused
from roundk.analyze.sources.flight_recorder.reader import Reader
from roundk.analyze.sources.inputs import Input
from roundk.analyze.sources.rows import read_bytes

MOST_PICKLE: Final = 1 << 30
"""Bytes of a pickle that are read: twenty times what a ring of 200,000 calls with stacks takes."""
_FLUSH: Final = 4096
_KEYS: Final = frozenset({"entries", "pg_config", "pg_status", "nccl_comm_state", "ray_train_dump_error"})


@dataclass
class Dump:
    """What one file says.

    Attributes:
        item: The file.
        form: pickle | JSON.
        head: Everything beside the entries, by key; None: not a Flight Recorder dump.
        rows: One row per entry, columns `entries.FIELDS`; entries without a call are left out.
        problem: Why it could not be read to its end, as a clause with the file for its subject; None: it was.
        is_cut: It ends before its end.
        is_refused: It would have run something.
    """

    item: Input
    form: str
    head: dict[Any, Any] | None = None
    rows: np.ndarray[Any, Any] = field(default_factory=lambda: matrix([]))
    problem: str | None = None
    is_cut: bool = False
    is_refused: bool = False

    @property
    def version(self) -> str:
        """Version of the schema; '' where it has none, as before torch 2.3."""
        return _text((self.head or {}).get("version"))

    @property
    def library(self) -> str:
        """Version of the communication library; '' for gloo and where it is not told."""
        head = self.head or {}
        return _text(head.get("comm_lib_version", head.get("nccl_version")))

    @property
    def error(self) -> str | None:
        """Why Ray Train could not fetch the rank's dump, which it writes in the dump's place."""
        found = (self.head or {}).get("ray_train_dump_error")
        return None if found is None else _text(found) or "no reason given"


def read(item: Input, words: Vocabulary, bulk: Bulk) -> Dump:
    """Read a dump as far as it can be read.

    Raises:
        rows.READ_ERRORS: its bytes cannot be read.
    """
    start = item.start[:64].lstrip(b"\xef\xbb\xbf \t\r\n")
    if start[:1] in (b"{", b"["):
        return _of_json(item, words)
    data, is_more = read_bytes(item, MOST_PICKLE)
    if is_more:
        return Dump(item, "pickle", problem=f"has more than {MOST_PICKLE >> 20} MiB, which no dump has")
    return _of_pickle(item, data, words, bulk)


def _of_json(item: Input, words: Vocabulary) -> Dump:
    parts: list[np.ndarray[Any, Any]] = []
    pending: list[tuple[int, ...]] = []
    dump = Dump(item, "JSON")

    others = 0

    def add(entry: Any) -> None:
        nonlocal others
        row = words.row(entry)
        if row is None:
            others += 1
            return
        pending.append(row)
        if len(pending) >= _FLUSH:
            parts.append(matrix(pending))
            pending.clear()

    with item.open() as stream:
        head, dump.problem, dump.is_cut = json.read(stream, add)
    return _finished(dump, head, [*parts, matrix(pending)], others)


def _of_pickle(item: Input, data: bytes, words: Vocabulary, bulk: Bulk) -> Dump:
    dump = Dump(item, "pickle")
    reader = Reader(data, words, bulk)
    try:
        reader.run()
    except PickleProblem as problem:
        dump.problem, dump.is_cut, dump.is_refused = (
            str(problem),
            isinstance(problem, Cut),
            isinstance(problem, Refused),
        )
        if dump.is_refused:
            return dump
    head = reader.head()
    return _finished(dump, head, reader.parts(), reader.others)


def _finished(dump: Dump, head: Any, parts: list[np.ndarray[Any, Any]], others: int) -> Dump:
    dump.rows = _joined([_calls(rows) for rows in parts])
    if isinstance(head, dict) and (len(dump.rows) or not _KEYS.isdisjoint(head) or (dump.is_cut and "version" in head)):
        dump.head = {key: value for key, value in head.items() if key != "entries"}
    elif isinstance(head, list) and (len(dump.rows) or not others):
        dump.head = {}
    return dump


def _calls(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The rows that are calls; a copy only where some are not."""
    is_call = rows[:, AT["op"]] != NONE
    return rows if is_call.all() else rows[is_call]


def _joined(parts: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """All rows, in memory of Arrow's: when they are let go its tables can have that, and not what C would give."""
    count = sum(map(len, parts))
    if not count:
        return matrix([])
    memory = pa.allocate_buffer(count * len(FIELDS) * 8)
    return np.concatenate(parts, out=np.frombuffer(memory, np.int64).reshape(count, len(FIELDS)))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
