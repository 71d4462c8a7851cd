"""Where samples of a host's links are kept: rows of changes in Arrow segments, and lines that name what they refer to.

Lines of the side file, by `kind`: `alive`; `start`; `counters` (ids `id`, `id` + 1, ... are the counters `names` of a
device or port); `word` (the text of a state); `look` (the counters that one round reads, as `[first id, number]`);
`netdev` and `ib_port` (went up or down); `used` (a port of the job's); `address` (of this host); `gap` (nothing was
read for long); `unreadable` (with why); `xid`; `deleted`; `lost`; `off`; `end`.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import os
import time
from typing import Any

from roundk.tracer import ring, rundir, template, words

MAX_BYTES = 64 * 1_048_576
"""Disk for one host's samples: 2.3 million changes, half a day of a host with eight busy ports."""
_MOST_LINES = 100_000
"""Lines of events to keep: a host on which devices come and go by the second must not fill the disk."""
_MOST_COUNTERS = 65_536
"""Distinct counters to keep, likewise."""
_INT64 = 2**63
_FIRST_ROWS, _LATER_ROWS = sorted(template.LINK_SEGMENTS)


class Store:
    """The files of one sampler.

    Attributes:
        generation: Number of the segment: what is unchanged must be stored anew in each, since the oldest is deleted.
    """

    def __init__(self, folder: str, max_bytes: int = MAX_BYTES) -> None:
        """Create the files in a host's folder.

        Raises:
            OSError: they cannot be made.
        """
        self._stem, self._file = rundir.links_file(folder)
        self._max_bytes = max_bytes
        self._files: collections.deque[tuple[str, int]] = collections.deque()
        self._words: dict[str, int] = {}
        self._ids: dict[tuple[str, str, int | None, str], int] = {}
        self._looks: dict[tuple[tuple[int, int], ...], int] = {}
        self._looked: dict[int, int] = {}
        self._lines = self._lost = 0
        self._rows = self._next = 0
        self.generation = 0
        self._begin_segment(_FIRST_ROWS)

    # Rows

    def sample(self, counter: int, begin_ns: int, end_ns: int, state: int, value: int) -> None:
        """Store what a counter was found to be between two times; a value of more than 64 bits as not to be read."""
        self._looked.clear()
        if not -_INT64 <= value < _INT64:
            state, value = words.UNREADABLE, errno.ERANGE
        self._row(begin_ns, end_ns, value, counter, state)

    def looked(self, look: int, begin_ns: int, *, in_time: bool) -> None:
        """Store that a round which began then has read all counters of a look.

        Args:
            look: Id by `look`.
            begin_ns: When it began.
            in_time: It followed the one before as it should: the time between was not a gap.
        """
        row = self._looked.get(look) if in_time else None
        if row is None:
            self._looked[look] = self._row(begin_ns, begin_ns, look, 0, words.LOOKED)
        else:
            self._end_ns[row] = begin_ns

    def _row(self, begin_ns: int, end_ns: int, value: int, counter: int, state: int) -> int:
        row = self._next
        if row >= self._rows:
            self._begin_segment(_LATER_ROWS)
            row = 0
        self._begin_ns[row] = begin_ns
        self._end_ns[row] = end_ns
        self._value[row] = value
        self._counter[row] = counter
        self._state[row] = state
        self._next = row + 1
        return row

    def _begin_segment(self, rows: int) -> None:
        parts = template.LINK_SEGMENTS[rows]
        while self._files and sum(size for _, size in self._files) + parts.size > self._max_bytes:
            path, _ = self._files.popleft()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            self.event("deleted", segment=os.path.basename(path))
        path = rundir.segment_path(self._stem, self.generation)
        columns = ring.created(path, rows, parts)
        self._begin_ns, self._end_ns, self._value, self._counter, self._state = columns
        self._files.append((path, parts.size))
        self._rows, self._next = rows, 0
        self.generation += 1
        self._looked.clear()

    # Lines

    def counters(self, kind: str, device: str, port: int | None, names: list[str], lag_ms: int = 0) -> list[int]:
        """The ids of counters of a device or port; 0 for those that are too many to keep.

        Args:
            kind: `netdev`, `ib`, `tcp` or `peer`.
            device: Its name; '' for the host's own; of a peer its address.
            port: Of an HCA.
            names: As the kernel spells them.
            lag_ms: How old a value may be as it is read.
        """
        new = [name for name in names if (kind, device, port, name) not in self._ids]
        if new and len(self._ids) + len(new) <= _MOST_COUNTERS:
            first = len(self._ids) + 1
            for number, name in enumerate(new, start=first):
                self._ids[kind, device, port, name] = number
            about = {"of": kind, "device": device, "port": port, "lag_ms": lag_ms}
            self._file.append({"kind": "counters", "id": first, **about, "names": new})
        return [self._ids.get((kind, device, port, name), 0) for name in names]

    def word(self, text: str) -> int:
        """The id of a state's text."""
        known = self._words.get(text)
        if known is None:
            known = self._words[text] = len(self._words) + 1
            self._file.append({"kind": "word", "id": known, "text": text})
        return known

    def look(self, counters: list[int]) -> int:
        """The id of a set of counters that are read together."""
        spans: list[list[int]] = []
        for number in sorted(set(counters)):
            if spans and sum(spans[-1]) == number:
                spans[-1][1] += 1
            else:
                spans.append([number, 1])
        key = tuple((first, count) for first, count in spans)
        known = self._looks.get(key)
        if known is None:
            known = self._looks[key] = len(self._looks) + 1
            self._file.append({"kind": "look", "id": known, "counters": spans})
        return known

    def event(self, kind: str, time_ns: int | None = None, **fields: Any) -> None:
        """Write a line about what happened, with its time."""
        if self._lines >= _MOST_LINES:
            self._lost += 1
            return
        self._lines += 1
        self._file.append({"kind": kind, "time_ns": time_ns or time.time_ns(), **fields})

    def renew(self) -> None:
        """Renew the sign of life."""
        self._file.renew(time.time_ns())

    def close(self, kind: str, **fields: Any) -> None:
        """Write the last line."""
        if self._lost:
            self._file.append({"kind": "lost", "time_ns": time.time_ns(), "lines": self._lost})
        self._file.append({"kind": kind, "time_ns": time.time_ns(), **fields})
        self.renew()
        self._file.close()
