"""Entries of a Flight Recorder pickle decoded by the thousand: the same opcodes at the same places, other numbers.

Torch writes each name and each frame once and refers to it afterwards. So most entries of a dump consist of the same
opcodes as one before them: their *layout*. A layout is learned from an entry that the stack machine has read; where
the bytes from one entry's beginning to the next one's have all its opcodes at its offsets, they are such an entry, and
nothing else. What varies is then taken from all of them at once as columns; what repeats (names, sizes, stacks) is
given to the machine once for each distinct form. As layouts hold only opcodes that make plain values, nothing here is
believed that the machine would refuse.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from roundk.analyze.sources.flight_recorder.entries import AT, FIELDS, MOST, NO_ROW, NONE, Vocabulary, matrix
from roundk.analyze.sources.flight_recorder.layout import MOST_LENGTH, Layout, layout_of
from roundk.analyze.sources.flight_recorder.pickled import EMPTY_DICT, MARK, MOST_BYTES, Machine, Malformed, Texts

WINDOW: Final = 8 << 20
"""Bytes of a dump that are decoded at once: what bounds the memory for columns on the way."""
_MOST_WASTED: Final = 16
"""Layouts learned of one dump that fitted nothing else in it, before learning there stops."""
_MOST_LAYOUTS: Final = 512
_MOST_FORMS: Final = 1 << 14
_FACTORS: Final = np.random.default_rng(1).integers(1, 1 << 63, MOST_LENGTH // 8 + 1, dtype=np.uint64)
_ZERO: Final = np.zeros(1, np.int64)

_Array = np.ndarray[Any, Any]


class _Form(NamedTuple):
    """What some bytes of an entry stand for, the places of the memo that they refer to, and what was there."""

    meaning: Any
    stored: tuple[int, ...]
    values: tuple[Any, ...]


class Bulk:
    """Decodes entries by the layouts learned so far; one for all dumps of a job.

    Attributes:
        texts: Long texts that the dumps have in common.
    """

    def __init__(self, words: Vocabulary) -> None:
        self._words = words
        self.texts: Texts = {}
        self._layouts: dict[bytes, list[Layout]] = {}
        self._known: set[Any] = set()
        self._forms: dict[tuple[Layout, bytes], _Form] = {}
        self._sizes: dict[tuple[Layout, bytes], _Form] = {}

    def take(self, machine: Machine, depth: tuple[int, int], parts: list[_Array]) -> int:
        """Read entries up to the end of a window or of the list of entries.

        Args:
            machine: Stands at the beginning of an entry whose first key is a reference.
            depth: Marks and values below the entries.
            parts: Where the rows are put, in order; those before an entry that cannot be read, too.

        Returns:
            How many rows; the machine stands behind the last of them.

        Raises:
            PickleProblem: an entry cannot be read.
        """
        start, data = machine.pos, machine.data
        prefix = _prefix(data, start)
        if prefix is None:
            return 0
        whole = np.frombuffer(data, np.uint8)
        starts = _occurrences(whole, prefix, start, start + WINDOW)
        if len(starts) < 2:
            return 0
        found = _Pass(self, machine, depth, whole, starts, prefix)
        try:
            found.chain()
        finally:
            rows = found.rows()
            parts.append(rows)
        return len(rows)

    def of(self, prefix: bytes) -> list[Layout]:
        """The layouts of entries that begin so."""
        return self._layouts.setdefault(prefix, [])

    def learn(self, machine: Machine, start: int, prefix: bytes) -> Layout | None:
        """The layout of the entry that the machine has read from `start` on; None where it has none, or one known."""
        entry = machine.data[start : machine.pos]
        if len(entry) > MOST_LENGTH or len(self._known) >= _MOST_LAYOUTS:
            return None
        layout = layout_of(entry, machine.memo)
        if layout is None:
            return None
        if layout.identity in self._known:
            return None
        self._known.add(layout.identity)
        self.of(prefix).append(layout)
        return layout

    def columns(self, machine: Machine, layout: Layout, starts: _Array, entries: _Array) -> _Array:
        """The rows of the entries of one layout that begin at `starts`, given as words."""
        kinds, firsts, forms = _distinct(entries, layout.rest)
        told = zip(forms[firsts], starts[firsts].tolist(), strict=True)
        out = matrix([self._form(machine, layout, form.tobytes(), start) for form, start in told])[kinds]
        kinds, firsts, forms = _distinct(entries, layout.sized)
        told = zip(forms[firsts], starts[firsts].tolist(), strict=True)
        codes = [self._size(machine, layout, form.tobytes(), start) for form, start in told]
        out[:, AT["size"]] = np.array(codes, np.int64)[kinds]
        text = entries.view(np.uint8)
        out[:, AT["name"]] = self._names(machine, layout, text)
        for kind, places, columns in layout.numbers:
            out[:, columns] = np.take(text, places, axis=1).view(kind)
        counts, times = out[:, : AT["duration"]], out[:, AT["created"] : AT["duration"]]
        counts[(counts < 0) | (counts > MOST)] = NONE
        times[times == 0] = NONE
        out[:, layout.absent] = NONE
        if layout.duration is not None:
            raw = np.ascontiguousarray(text[:, layout.duration : layout.duration + 8]).view(">f8")[:, 0]
            good = np.isfinite(raw) & (raw >= 0) & (raw < 1e12)
            out[:, AT["duration"]] = np.where(good, np.where(good, raw, 0) * 1e6, NONE)
        return out

    def _names(self, machine: Machine, layout: Layout, entries: _Array) -> _Array:
        """The codes of the groups that entries name."""
        name, desc = (_number(entries, at, f"<u{width}") for at, width in layout.group)
        both = name << 32 | desc
        if (both == both[0]).all():
            pairs, which = both[:1], np.zeros(len(both), np.int64)
        else:
            pairs, which = np.unique(both, return_inverse=True)
        numbers = [(pair >> 32, pair & 0xFFFFFFFF) for pair in pairs.tolist()]
        if not all(one in machine.memo for pair in numbers for one in pair):
            raise Malformed("takes from its memo what was never stored there")
        stored = [(machine.memo[one], machine.memo[other]) for one, other in numbers]
        return np.array([self._words.name(pair) for pair in stored], np.int64)[which]

    def _form(self, machine: Machine, layout: Layout, form: bytes, start: int) -> tuple[int, ...]:
        """The row of an entry, of which the numbers may be another's; dumps of one job share most forms."""
        known = self._forms.get((layout, form))
        if known is not None and tuple(map(machine.memo.get, known.stored)) == known.values:
            found: tuple[int, ...] = known.meaning
            return found
        entry = machine.data[start : start + layout.length]
        row = self._words.row(Machine(entry + b".", machine.memo).value()) or NO_ROW
        if len(self._forms) < _MOST_FORMS:
            self._forms[layout, form] = _known(row, machine, entry, layout.references)
        return row

    def _size(self, machine: Machine, layout: Layout, form: bytes, start: int) -> int:
        """The code of what an entry says of its size."""
        known = self._sizes.get((layout, form))
        if known is not None and tuple(map(machine.memo.get, known.stored)) == known.values:
            return int(known.meaning)
        entry = machine.data[start : start + layout.length]
        fields = entry[slice(*layout.sizes)]
        code = self._words.size(Machine(b"}(" + fields + b"u.", machine.memo).value())
        if len(self._sizes) < _MOST_FORMS:
            self._sizes[layout, form] = _known(code, machine, entry, layout.size_references)
        return code

    def row(self, entry: Any) -> tuple[int, ...]:
        """An entry that the machine has read, as a row."""
        return self._words.row(entry) or NO_ROW


class _Pass:
    """One window of one dump."""

    def __init__(
        self, bulk: Bulk, machine: Machine, depth: tuple[int, int], whole: _Array, starts: _Array, prefix: bytes
    ) -> None:
        self.bulk = bulk
        self.machine = machine
        self.depth = depth
        self.whole = whole
        self.starts = starts
        self.lengths = np.diff(starts, append=starts[-1])
        self.prefix = prefix
        self.fits = np.zeros(len(starts), bool)
        self.found: list[tuple[Layout, _Array, _Array]] = []
        self.taken = np.zeros(len(starts), bool)
        self.by_machine: list[tuple[int, tuple[int, ...]]] = []
        self.reached = 0
        self.after = machine.pos

    def chain(self) -> None:
        """Go from entry to entry; read what has no layout, and learn its layout.

        Raises:
            PickleProblem: an entry cannot be read.
        """
        for layout in self.bulk.of(self.prefix):
            if layout.suits(self.machine.memo):
                self._match(layout, 0)
        wasted, last = 0, len(self.starts) - 1
        machine, starts = self.machine, self.starts
        misfits = self._misfits(0)
        while True:
            stop = next(place for place in misfits if place >= self.reached)
            self.taken[self.reached : stop] = True
            self.reached = stop
            machine.pos = self.after = int(starts[stop])
            if stop == last:  # where it ends is not known from where the next one begins
                return
            machine.limit = machine.pos + MOST_BYTES
            machine.run(self.depth)
            self.after = machine.pos
            if (len(machine.marks), len(machine.stack)) != (self.depth[0], self.depth[1] + 1):
                return  # no entry, whatever it was
            self.by_machine.append((stop, self.bulk.row(machine.stack.pop())))
            self.reached = int(np.searchsorted(starts, machine.pos))
            if self.reached > last or starts[self.reached] != machine.pos:
                return
            if wasted == _MOST_WASTED:
                continue
            learned = self.bulk.learn(machine, int(starts[stop]), self.prefix)
            if learned is not None and self._match(learned, self.reached):
                misfits = self._misfits(self.reached)
            elif learned is not None:
                wasted += 1

    def _misfits(self, begin: int) -> Iterator[int]:
        """The entries from `begin` on that have no layout so far, and the last one, in order."""
        return iter([*(np.flatnonzero(~self.fits[begin:-1]) + begin).tolist(), len(self.fits) - 1])

    def _match(self, layout: Layout, begin: int) -> int:
        """Mark the entries from `begin` on that have this layout; how many there are."""
        is_open = (self.lengths[begin:] == layout.length) & ~self.fits[begin:]
        is_open &= self.starts[begin:] <= len(self.whole) - 8 * len(layout.mask)
        places = np.flatnonzero(is_open) + begin
        if not len(places):
            return 0
        entries = _taken(self.whole, self.starts[places], 8 * len(layout.mask)).view(np.uint64)
        is_one = ((entries & layout.mask) == layout.wanted).all(axis=1)
        if not is_one.all():
            places, entries = places[is_one], entries[is_one]
        self.fits[places] = True
        self.found.append((layout, places, entries))
        return len(places)

    def rows(self) -> _Array:
        """The rows of what was passed, in order."""
        alone = np.array([place for place, _ in self.by_machine], np.int64)
        is_row = self.taken.copy()
        is_row[alone] = True
        order = np.cumsum(is_row) - 1
        rows = np.empty((int(order[-1]) + 1, len(FIELDS)), np.int64)
        rows[order[alone]] = matrix([row for _, row in self.by_machine])
        for layout, found, words in self.found:
            is_taken = self.taken[found]
            places, entries = (found, words) if is_taken.all() else (found[is_taken], words[is_taken])
            if len(places):
                rows[order[places]] = self.bulk.columns(self.machine, layout, self.starts[places], entries)
        self.machine.pos = self.after
        return rows


def _known(meaning: Any, machine: Machine, entry: bytes, references: tuple[tuple[int, int], ...]) -> _Form:
    stored = tuple(int.from_bytes(entry[at : at + width], "little") for at, width in references)
    return _Form(meaning, stored, tuple(map(machine.memo.get, stored)))


def _number(entries: _Array, at: int, kind: str) -> _Array:
    """The number at an offset of each row."""
    width = np.dtype(kind).itemsize
    return np.ascontiguousarray(entries[:, at : at + width]).view(kind)[:, 0].astype(np.int64)


def _prefix(data: bytes, start: int) -> bytes | None:
    """The first bytes of an entry up to its first key, where that is a reference."""
    head = data[start : start + 7]
    if head[:2] != bytes((EMPTY_DICT, MARK)) or len(head) < 7 or head[2] not in b"hj":
        return None
    return head[:4] if head[2] == ord("h") else head


def _occurrences(whole: _Array, prefix: bytes, start: int, end: int) -> _Array:
    """Where these bytes are, from `start` on and before `end`."""
    window = whole[start : end + len(prefix)]
    at = np.flatnonzero(window[: len(window) - len(prefix) + 1] == prefix[0])
    for offset, byte in enumerate(prefix[1:], 1):
        at = at[window[at + offset] == byte]
    return at + start


def _taken(whole: _Array, starts: _Array, length: int) -> _Array:
    """So many bytes from each of these places on."""
    windows = np.ndarray((len(whole) - length + 1, length), np.uint8, whole.data, strides=(1, 1))
    taken: _Array = windows[starts]
    return taken


def _distinct(entries: _Array, mask: _Array) -> tuple[_Array, _Array, _Array]:
    """Which form the bytes under a mask have in each row, the first row of each form, and these bytes.

    Rows are told apart by a random sum of their words, and then compared with the first of their form.
    """
    words = entries & mask
    if (words == words[0]).all():
        return np.zeros(len(entries), np.int64), _ZERO, words
    sums = words @ _FACTORS[: words.shape[1]]
    _, firsts, kinds = np.unique(sums, return_index=True, return_inverse=True)
    if not (words == words[firsts[kinds]]).all():
        _, firsts, kinds = np.unique(words, axis=0, return_index=True, return_inverse=True)
    return kinds, firsts, words
