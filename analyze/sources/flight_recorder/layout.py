"""The layout of an entry in a Flight Recorder pickle: where its opcodes are, and which bytes make which field.

Source: getCollectiveTrace in FlightRecorderDetail.hpp, torch 2.8 to 2.14, for the order of the fields.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from roundk.analyze.sources.flight_recorder.entries import AT
from roundk.analyze.sources.flight_recorder.pickled import MARK, SETITEMS

MOST_LENGTH: Final = 4096
"""Bytes of an entry that has a layout."""

_Array = np.ndarray[Any, Any]

_WIDTHS: Final = {
    ord("K"): 1,
    ord("M"): 2,
    ord("J"): 4,
    ord("h"): 1,
    ord("j"): 4,
    ord("G"): 8,
    ord("N"): 0,
    0x88: 0,
    0x89: 0,
}
"""Bytes behind the opcodes of single values; LONG1 has a length byte of its own."""
_LONG1: Final = 0x8A
_INTEGERS: Final = {ord("K"): "<u1", ord("M"): "<u2", ord("J"): "<i4", _LONG1: "<i8"}

_COUNTED: Final = {
    "record_id": "record_id",
    "pg_id": "pg_id",
    "collective_seq_id": "seq",
    "p2p_seq_id": "p2p_seq",
    "time_created_ns": "created",
    "time_discovered_started_ns": "started",
    "time_discovered_completed_ns": "completed",
}
"""Fields of an entry that are taken as columns, and what they are called there."""
_IGNORED: Final = frozenset({"op_id", "timeout_ms"})
_SIZED: Final = ("input_sizes", "input_dtypes", "output_sizes", "output_dtypes")
"""Fields that lie together and tell the size of a call."""


@dataclass(frozen=True, eq=False)
class Layout:
    """Where an entry's opcodes are, and its fields.

    Masks are as words of 8 bytes, 255 at the offsets that they cover and 0 elsewhere, also behind the entry.

    Attributes:
        length: Bytes of the entry.
        mask: Covers all opcodes and the references to keys.
        wanted: What is there; 0 elsewhere.
        numbers: Numpy type, offsets of all bytes, and places among `entries.FIELDS` of the numbers of each type.
        absent: Places of the numbers whose value is None.
        duration: Offset of the duration; None: it has none.
        sizes: Offsets of the first and behind the last byte of the fields that tell the size.
        sized: Covers them.
        size_references: Offsets and widths of the numbers of stored values there.
        rest: Covers all other bytes that vary.
        references: Offsets and widths of the numbers of stored values there.
        group: The same of the name and the description of the group.
        keys: Numbers of the stored keys that it refers to, and the keys.
    """

    length: int
    mask: _Array
    wanted: _Array
    numbers: tuple[tuple[str, _Array, _Array], ...]
    absent: _Array
    duration: int | None
    sizes: tuple[int, int]
    sized: _Array
    size_references: tuple[tuple[int, int], ...]
    rest: _Array
    references: tuple[tuple[int, int], ...]
    group: tuple[tuple[int, int], tuple[int, int]]
    keys: tuple[tuple[int, str], ...]

    def suits(self, memo: dict[int, Any]) -> bool:
        """Whether the keys have these numbers in a dump: another version of torch stores them in another order."""
        return all(memo.get(number) == key for number, key in self.keys)

    @property
    def identity(self) -> tuple[bytes, bytes, tuple[tuple[int, str], ...]]:
        """What tells it from other layouts."""
        return self.mask.tobytes(), self.wanted.tobytes(), self.keys


def layout_of(entry: bytes, memo: dict[int, Any]) -> Layout | None:
    """Where the opcodes and fields of an entry are; None where it has other opcodes or fields than usual.

    Only the opcodes decide: the entry was read already, so that the stack is known to be in order.
    """
    fixed = [0, 1]
    begins: list[list[int]] = [[]]
    at, behind = 2, 0
    while at < len(entry):
        op = entry[at]
        fixed.append(at)
        size = 1 + _WIDTHS.get(op, 0)
        if op == _LONG1:
            if entry[at + 1] != 8:
                return None
            fixed.append(at + 1)
            size = 10
        if op in _WIDTHS or op == _LONG1 or op == ord("]"):
            begins[-1].append(at)
        elif op == MARK:
            begins.append([])
        elif op == ord("e") and len(begins) > 1:
            begins.pop()
        elif op == 0x86 and len(begins[-1]) >= 2:
            begins[-1].pop()
        elif op == SETITEMS and len(begins) == 1:
            behind = at
        else:
            return None
        at += size
    if behind != len(entry) - 1 or len(begins[0]) % 2:
        return None
    return _fields(entry, memo, begins[0], fixed)


def _fields(entry: bytes, memo: dict[int, Any], begins: list[int], fixed: list[int]) -> Layout | None:
    ends = [*begins[2::2], len(entry) - 1]
    spans: dict[str, tuple[int, int]] = {}
    numbers_of: dict[str, int] = {}
    keys: dict[str, tuple[int, int]] = {}
    for key_at, value_at, end in zip(begins[::2], begins[1::2], ends, strict=True):
        number = int.from_bytes(entry[key_at + 1 : value_at], "little")
        name = memo.get(number)
        if entry[key_at] not in b"hj" or not isinstance(name, str) or name in spans:
            return None
        spans[name] = (value_at, end)
        keys[name] = key_at, value_at
        numbers_of[name] = number
    order = list(spans)
    sized = [order.index(name) for name in _SIZED if name in spans]
    if len(sized) != len(_SIZED) or sized != list(range(sized[0], sized[0] + len(_SIZED))):
        return None
    numbers = _numbers(entry, spans)
    group = _pair(entry, *spans.get("process_group", (0, 0)))
    duration = spans.get("duration_ms", (None, 0))[0]
    if numbers is None or group is None or (duration is not None and entry[duration] != ord("G")):
        return None
    opcodes, fixed = fixed, [*fixed, *(at for begin, end in keys.values() for at in range(begin, end))]
    sizes = keys[_SIZED[0]][0], spans[_SIZED[-1]][1]
    taken = {*fixed, *range(*sizes)}
    for name in (*_COUNTED, *_IGNORED, "duration_ms", "process_group"):
        taken.update(range(*spans.get(name, (0, 0))))
    rest = {at for at in range(len(entry)) if at not in taken}
    references = [(at + 1, _WIDTHS[entry[at]]) for at in opcodes if entry[at] in b"hj"]
    mask = _mask(fixed, len(entry))
    return Layout(
        length=len(entry),
        mask=mask,
        wanted=np.frombuffer(entry.ljust(8 * len(mask), b"\0"), np.uint64) & mask,
        numbers=tuple(_by_kind(numbers, kind) for kind in sorted({kind for _, _, kind in numbers} - {""})),
        absent=np.array([AT[column] for column, _, kind in numbers if not kind], np.int64),
        duration=None if duration is None else duration + 1,
        sizes=sizes,
        sized=_mask(range(*sizes), len(entry)),
        size_references=tuple(one for one in references if one[0] in range(*sizes)),
        rest=_mask(rest, len(entry)),
        references=tuple(one for one in references if one[0] in rest),
        group=group,
        keys=tuple((number, name) for name, number in numbers_of.items()),
    )


def _mask(offsets: Iterable[int], length: int) -> _Array:
    covered = np.zeros(-(-length // 8) * 8, np.uint8)
    covered[list(offsets)] = 0xFF
    return covered.view(np.uint64)


def _numbers(entry: bytes, spans: dict[str, tuple[int, int]]) -> list[tuple[str, int, str]] | None:
    """Column, offset and numpy type of the numbers, '' for None; None where one is neither."""
    found = []
    for name, column in _COUNTED.items():
        if name not in spans:
            continue
        at = spans[name][0]
        if entry[at] != ord("N") and entry[at] not in _INTEGERS:
            return None
        found.append((column, at + (2 if entry[at] == _LONG1 else 1), _INTEGERS.get(entry[at], "")))
    return found


def _by_kind(numbers: list[tuple[str, int, str]], kind: str) -> tuple[str, _Array, _Array]:
    width = np.dtype(kind).itemsize
    of_kind = [(column, at) for column, at, one in numbers if one == kind]
    places = [at + offset for _, at in of_kind for offset in range(width)]
    return kind, np.array(places, np.int64), np.array([AT[column] for column, _ in of_kind], np.int64)


def _pair(entry: bytes, begin: int, end: int) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Offsets and widths of the two references that make a tuple; None where something else is there."""
    found = []
    at = begin
    while at < end - 1 and entry[at] in b"hj":
        found.append((at + 1, _WIDTHS[entry[at]]))
        at += 1 + _WIDTHS[entry[at]]
    return (found[0], found[1]) if len(found) == 2 and entry[at:end] == b"\x86" else None
