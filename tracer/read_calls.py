"""From one process's segments to columns of calls, still with the process's own ids of groups, signatures and sites."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from roundk.tracer import files, schema, template, words

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_WORDS = tuple(schema.RING_WORDS)
_Part = TypeVar("_Part")


class Calls(NamedTuple):
    """What one process's rows say.

    Attributes:
        columns: The calls: numpy arrays of one length by ring column, strings where dictionaries; sorted by `commit`.
        steps: Numbers (from 0) and end times of the training steps; shape (steps, 2).
        commits: `commit` of every row, calls or not, in order.
        cut: Segments that were shorter than they say, with why.
        lost: Rows that are committed but whose other columns were cut off.
    """

    columns: dict[str, np.ndarray[Any, Any]]
    steps: np.ndarray[Any, Any]
    commits: np.ndarray[Any, Any]
    cut: tuple[tuple[str, str], ...]
    lost: int


def read(paths: Sequence[str]) -> Calls:
    """Read the segments of one process.

    Columns that a file of another schema version lacks are given as zeros.
    """
    parts, cut = gathered(paths, _read_segment)
    columns = {name: np.concatenate([part[name] for part in parts]) for name in schema.RING.names} if parts else _none()
    order = np.argsort(columns["commit"], kind="stable")
    columns = {name: column[order] for name, column in columns.items()}
    is_step = columns["op"] == words.STEP
    is_call = (columns["seq"] > 0) & (columns["group"] > 0)
    return Calls(
        {name: column[is_call] for name, column in columns.items()},
        np.stack([columns["seq"][is_step] - 1, columns["end_ns"][is_step]], axis=1),
        columns["commit"],
        tuple(cut),
        int(np.count_nonzero(~is_call & ~is_step)),
    )


def _none() -> dict[str, np.ndarray[Any, Any]]:
    return {name: np.zeros(0, dtype=object if name in _WORDS else np.int64) for name in schema.RING.names}


def gathered(
    paths: Sequence[str], read_segment: Callable[[str], tuple[_Part, int]]
) -> tuple[list[_Part], list[tuple[str, str]]]:
    """What segments hold, and of those that are not whole, why.

    Args:
        paths: The segments.
        read_segment: Reads one; gives what it holds, and how many bytes are missing.
    """
    parts, cut = [], []
    for path in paths:
        try:
            part, missing = read_segment(path)
        except (pa.ArrowException, OSError, KeyError) as error:
            cut.append((path, _why_not(error)))
            continue
        parts.append(part)
        if missing:
            cut.append((path, f"{missing} bytes are missing at its end"))
    return parts, cut


def table_of(path: str, templates: Mapping[int, template.Template]) -> tuple[Any, int]:
    """The table of a segment, and how many bytes are missing of one that is cut short.

    Raises:
        ArrowException, OSError, KeyError: it cannot be read.
    """
    try:
        return pa.ipc.open_file(files.mapped(pathlib.Path(path))).read_all(), 0
    except pa.ArrowInvalid:
        whole = _completed(path, templates)
        missing = len(whole) - pathlib.Path(path).stat().st_size
        return pa.ipc.open_file(pa.py_buffer(whole)).read_all(), missing


def _read_segment(path: str) -> tuple[dict[str, np.ndarray[Any, Any]], int]:
    """The committed rows of a segment, and how many bytes are missing."""
    table, missing = table_of(path, template.SEGMENTS)
    committed = np.flatnonzero(table["commit"].to_numpy() > 0)
    table = table.take(pa.array(committed))
    rows = len(committed)
    columns = {}
    for name in schema.RING.names:
        if name not in table.column_names:
            columns[name] = np.zeros(rows, dtype=np.int64) if name not in _WORDS else np.full(rows, "", dtype=object)
        elif name in _WORDS:
            columns[name] = table[name].cast(pa.utf8()).to_numpy(zero_copy_only=False)
        else:
            columns[name] = table[name].to_numpy()
    return columns, missing


def _why_not(error: Exception) -> str:
    """Why a segment cannot be read, by what reading it raised: Arrow has errors of the system's kind for damage."""
    of_system = error.strerror if isinstance(error, OSError) else None
    return of_system or f"not a whole Arrow segment: {error}".splitlines()[0]


def _completed(path: str, templates: Mapping[int, template.Template]) -> bytes:
    """A segment that was cut short, filled up with zeros and the end that its template has.

    Args:
        path: The file.
        templates: Those of its kind, by number of rows.

    Raises:
        KeyError: it does not begin like any template.
    """
    with files.opened(pathlib.Path(path)) as file:
        data = file.read()
    for parts in templates.values():
        if data.startswith(parts.head) and len(data) < parts.size:
            body_end = parts.size - len(parts.tail)
            return data[:body_end].ljust(body_end, b"\0") + parts.tail
    raise KeyError("it does not begin like a segment of this roundk")
