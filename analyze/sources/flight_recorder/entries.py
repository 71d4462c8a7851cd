"""Entries of Flight Recorder dumps as rows of numbers, and the vocabulary that the numbers are codes of.

A job's dumps say the same few hundred things millions of times: groups, operations, sizes and stacks are told once here
and counted elsewhere.

Source: torch/csrc/distributed/c10d/TraceUtils.h of torch 2.2 to 2.4, FlightRecorderDetail.hpp of 2.8 to 2.14.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from roundk.analyze.sources import ops
from roundk.analyze.stacks import Frame

NONE: Final = -1
"""Stands for a number that an entry does not have: all that it does have are counts and times."""
MOST: Final = (1 << 62) - 1
_NS_PER_US: Final = 1_000
_NS_PER_MS: Final = 1_000_000
_MOST_MS: Final = 1e12

FIELDS: Final = (
    "record_id",
    "pg_id",
    "seq",
    "p2p_seq",
    "created",
    "started",
    "completed",
    "duration",
    "thread",
    "name",
    "op",
    "size",
    "site",
    "state",
    "is_retired",
    "is_p2p",
)
"""Columns of a row. Times in ns, `NONE` where there is none; from `name` to `site` codes of the vocabulary."""
AT: Final = {name: at for at, name in enumerate(FIELDS)}
NO_ROW: Final = (NONE,) * len(FIELDS)
"""Stands for what is no call."""

SCHEDULED, STARTED, COMPLETED = 0, 1, 2
_STATES: Final = {"scheduled": SCHEDULED, "started": STARTED, "completed": COMPLETED}

_MOST_FRAMES: Final = 128
_MOST_SAME: Final = 1024
_MOST_LINE: Final = (1 << 31) - 1
_MOST_TENSORS: Final = 4096
_MOST_SHAPES: Final = 2_000
"""Characters of a text of shapes."""


class Size(NamedTuple):
    """What a call moves."""

    shapes: str | None
    numel: int
    bytes_in: int | None
    bytes_out: int | None
    dtype: str | None


class Site(NamedTuple):
    """Where a call was made: the innermost frame outside torch, and all frames, innermost first."""

    file: str
    line: int
    function: str
    stack: tuple[str, ...]


class Vocabulary:
    """What the dumps of one job talk about; codes count from 0 in the order of coming up.

    Attributes:
        names: Name and description of the groups that entries name.
        ops: Profiling names.
        sizes: What calls move.
        sites: Where they were made.
    """

    def __init__(self) -> None:
        self.names: dict[tuple[str, str], int] = {}
        self.ops: dict[str, int] = {}
        self.sizes: dict[Size, int] = {}
        self.sites: list[Site] = []
        self._sizes: dict[Any, int] = {}
        self._same: dict[tuple[int, ...], tuple[list[Any], int]] = {}
        self._frames: dict[int, tuple[Any, tuple[str, int, str]]] = {}
        self._users: dict[tuple[Frame, ...], int] = {}
        self._sites: dict[tuple[tuple[str, int, str], ...], int] = {}

    def row(self, entry: Any) -> tuple[int, ...] | None:
        """An entry as a row; None where it says nothing of a call."""
        if not isinstance(entry, dict):
            return None
        get: Callable[[str], Any] = entry.get
        op = get("profiling_name")
        if not isinstance(op, str):
            return None
        pg_id = number(get("pg_id"))
        seq = get("collective_seq_id")
        created = number(get("time_created_ns"))
        if created == NONE and (micros := number(get("time_created_us"))) != NONE:  # torch 2.2
            created = micros * _NS_PER_US
        return (
            number(get("record_id")),
            pg_id,
            number(get("seq_id") if seq is None else seq),  # one counter before torch 2.4
            number(get("p2p_seq_id")),
            created or NONE,  # JSON has 0 where a pickle has None
            number(get("time_discovered_started_ns")) or NONE,
            number(get("time_discovered_completed_ns")) or NONE,
            _duration(get("duration_ms")),
            number(get("thread_id")),
            self.name(get("process_group"), pg_id),
            _code(self.ops, op),
            self.size(entry),
            self.site(get("frames")),
            _STATES.get(get("state"), SCHEDULED) if isinstance(get("state"), str) else SCHEDULED,
            int(get("retired") is True),
            int(get("is_p2p") is True),
        )

    def name(self, pair: Any, pg_id: int = NONE) -> int:
        """The code of a group's name and description; before torch 2.4 it had its number in the process only."""
        named = _pair(pair) or (str(pg_id) if pg_id != NONE else "", "")
        return _code(self.names, named)

    def size(self, entry: Mapping[Any, Any]) -> int:
        """The code of what a call moves."""
        get = entry.get
        key = (
            _shapes(get("input_sizes")),
            _strings(get("input_dtypes")),
            _shapes(get("output_sizes")),
            _strings(get("output_dtypes")),
            _split(get("input_split_sizes")),
            _split(get("output_split_sizes")),
        )
        code = self._sizes.get(key)
        if code is None:
            code = self._sizes[key] = _code(self.sizes, _size(*key))
        return code

    def site(self, frames: Any) -> int:
        """The code of a stack; `NONE` where there is none, or none of it is outside torch."""
        if not isinstance(frames, list):
            return NONE
        same = tuple(map(id, frames))
        known = self._same.get(same)
        if known is not None:
            return known[1]
        if len(self._same) >= _MOST_SAME:
            self._same.clear()
        code = self._stack(frames)
        self._same[same] = frames, code  # what is kept keeps its id
        return code

    def _stack(self, frames: list[Any]) -> int:
        key = tuple(map(self._frame, frames[:_MOST_FRAMES]))
        code = self._sites.get(key)
        if code is None:
            code = self._sites[key] = self._site([Frame(*frame) for frame in key])
        return code

    def _frame(self, value: Any) -> tuple[str, int, str]:
        known = self._frames.get(id(value))
        if known is None:
            if len(self._frames) >= _MOST_SAME:
                self._frames.clear()
            known = self._frames[id(value)] = value, _frame(value)
        return known[1]

    def _site(self, frames: list[Frame]) -> int:
        """Frames of torch and of the interpreter tell no sites apart: a call may be dispatched in several ways."""
        users = tuple(frame for frame in frames if frame.is_users and frame.file)
        if not users:
            return NONE
        if users not in self._users:
            self._users[users] = len(self.sites)
            stack = tuple(f"{frame.file}:{frame.line} {frame.function}" for frame in frames)
            self.sites.append(Site(users[0].file, users[0].line, users[0].function, stack))
        return self._users[users]


def number(value: Any) -> int:
    """A value as a count or a time; `NONE` for anything else. Digits count: fixtures and JSON have them as text."""
    if type(value) is int:
        return value if 0 <= value <= MOST else NONE
    if type(value) is str and value.isascii() and value.isdigit() and len(value) <= 20:
        return number(int(value))
    return NONE


def matrix(rows: Sequence[tuple[int, ...]]) -> np.ndarray[Any, Any]:
    """Rows as a matrix with the columns `FIELDS`."""
    return np.array(rows, dtype=np.int64).reshape(len(rows), len(FIELDS))


def distinct(rows: np.ndarray[Any, Any], *columns: str) -> list[tuple[int, ...]]:
    """The distinct values of some columns, in order.

    As one number each, since to sort rows costs ten times as much.
    """
    picked = [rows[:, AT[name]] + 1 for name in columns]  # `NONE` becomes 0
    widths = [int(column.max(initial=0)) + 1 for column in picked]
    if math.prod(widths) > MOST:
        found = np.unique(np.stack(picked, axis=1), axis=0)
    else:
        packed = np.unique(np.ravel_multi_index(picked, widths))
        found = np.stack(np.unravel_index(packed, widths), axis=1)
    return [tuple(row) for row in (found - 1).tolist()]


def _code(codes: dict[Any, int], value: Any) -> int:
    return codes.setdefault(value, len(codes))


def _pair(value: Any) -> tuple[str, str] | None:
    if isinstance(value, tuple | list) and len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], str):
        return value[0], "" if value[1] == "undefined" else value[1]
    return None


def _duration(value: Any) -> int:
    if isinstance(value, float | int) and math.isfinite(value) and 0 <= value < _MOST_MS:
        return int(value * _NS_PER_MS)
    return NONE


def _shapes(value: Any) -> tuple[tuple[int, ...], ...] | None:
    if not isinstance(value, list) or len(value) > _MOST_TENSORS:
        return None
    return tuple(_split(shape) or () for shape in value)


def _split(value: Any) -> tuple[int, ...] | None:
    if not isinstance(value, list) or len(value) > _MOST_TENSORS:
        return None
    return tuple(length if type(length) is int and 0 <= length <= MOST else 0 for length in value)


def _strings(value: Any) -> tuple[str, ...] | None:
    if isinstance(value, str):
        return (value,) if value else ()
    if not isinstance(value, list) or len(value) > _MOST_TENSORS:
        return None
    return tuple(text if isinstance(text, str) else "" for text in value)


_Shapes = tuple[tuple[int, ...], ...] | None
_Texts = tuple[str, ...] | None


def _size(
    inputs: _Shapes, in_types: _Texts, outputs: _Shapes, out_types: _Texts, *splits: tuple[int, ...] | None
) -> Size:
    types = in_types or out_types
    shapes = None
    if inputs is not None or outputs is not None:
        shapes = f"{_listed(inputs)} -> {_listed(outputs)}"
        if any(splits):  # since torch 2.15, for all_to_all
            shapes += " splits " + " -> ".join(str(list(split or ())) for split in splits)
        shapes = shapes[:_MOST_SHAPES]
    return Size(
        shapes,
        min(sum(map(math.prod, inputs or ())), MOST),
        _bytes(inputs, in_types),
        _bytes(outputs, out_types),
        ops.dtype(types[0])[0] or None if types else None,
    )


def _listed(shapes: _Shapes) -> str:
    return str([list(shape) for shape in shapes or ()])


def _bytes(shapes: _Shapes, types: _Texts) -> int | None:
    """Bytes of tensors; None where the bytes of an element are not known. One type may stand for all of them."""
    if not shapes:
        return None if shapes is None else 0
    if not types:
        return None
    total = 0
    for at, shape in enumerate(shapes):
        width = ops.dtype(types[min(at, len(types) - 1)])[1]
        if width is None:
            return None
        total += width * math.prod(shape)
    return min(total, MOST)


def _frame(value: Any) -> tuple[str, int, str]:
    if not isinstance(value, dict):
        return "", 0, ""
    file, function, line = value.get("filename"), value.get("name"), number(value.get("line"))
    return (
        file if isinstance(file, str) else "",
        line if 0 <= line <= _MOST_LINE else 0,
        function if isinstance(function, str) else "",
    )
