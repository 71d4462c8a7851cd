"""A Flight Recorder pickle from its head to its end: entries are taken out of their list as they come up."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from roundk.analyze.sources.flight_recorder.bulk import Bulk
from roundk.analyze.sources.flight_recorder.entries import Vocabulary, matrix
from roundk.analyze.sources.flight_recorder.pickled import APPENDS, MOST_BYTES, Machine

_FLUSH: Final = 4096
"""Rows that are kept as Python objects."""
LEAST_BYTES: Final = 8 << 10
"""Bytes from which on entries are read by the thousand: of some fifty, columns cost more than they save."""
_FEW: Final = 4
"""Entries that must have a common form for the next attempt to follow at once."""


class Reader:
    """Reads one pickle.

    What it has read is there whether or not it came to the end.

    Attributes:
        others: How many of the entries are no calls.
    """

    def __init__(self, data: bytes, words: Vocabulary, bulk: Bulk) -> None:
        self._machine = Machine(data, texts=bulk.texts)
        self._words = words
        self._bulk = bulk
        self._parts: list[np.ndarray[Any, Any]] = []
        self._pending: list[tuple[int, ...]] = []
        self.others = 0

    def run(self) -> None:
        """Read to the end.

        Raises:
            PickleProblem: it cannot be read any further.
        """
        machine = self._machine
        while True:
            machine.run(to_list=True)
            if machine.done:
                return
            self._entries()
            machine.limit = machine.pos + MOST_BYTES

    def head(self) -> Any:
        """The outermost value, as far as it was read, without the entries."""
        machine = self._machine
        levels = [*machine.marks, machine.stack]
        if not levels[0]:
            return None
        outer = levels[0][-1]
        if isinstance(outer, dict) and len(levels) > 1:
            keys = levels[1][::2]
            outer.update(
                (key, value) for key, value in zip(keys, levels[1][1::2], strict=False) if isinstance(key, str)
            )
        if isinstance(outer, list):
            self._keep(outer)
        elif isinstance(outer, dict) and isinstance(entries := outer.get("entries"), list):
            self._keep(entries)
        return outer

    def parts(self) -> list[np.ndarray[Any, Any]]:
        """The rows of the entries, in order."""
        self._flush()
        return self._parts

    def _entries(self) -> None:
        """The machine stands behind the mark in front of the entries; afterwards, behind what takes them into the list.

        A form that many entries share is looked for more and more seldom where there is none.
        """
        machine = self._machine
        depth = (len(machine.marks), len(machine.stack))
        one_more = (depth[0], depth[1] + 1)
        skip, patience = 0, _FEW
        is_many = len(machine.data) - machine.pos >= LEAST_BYTES
        while len(machine.marks) == depth[0] and not machine.done:
            if machine.data[machine.pos : machine.pos + 1] == bytes((APPENDS,)):
                return
            if is_many and not skip:
                self._flush()
                taken = self._bulk.take(machine, depth, self._parts)
                skip, patience = (1, _FEW) if taken >= patience else (patience, 2 * patience)
                continue
            skip -= 1
            machine.limit = machine.pos + MOST_BYTES
            machine.run(depth)
            if (len(machine.marks), len(machine.stack)) == one_more:
                self._keep(machine.stack)
                if len(self._pending) >= _FLUSH:
                    self._flush()

    def _keep(self, entries: list[Any]) -> None:
        rows = [row for entry in entries if (row := self._words.row(entry)) is not None]
        self._pending.extend(rows)
        self.others += len(entries) - len(rows)
        entries.clear()

    def _flush(self) -> None:
        self._parts.append(matrix(self._pending))
        self._pending.clear()
