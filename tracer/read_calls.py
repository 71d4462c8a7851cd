"""From one process's segments to columns of calls, still with the process's own ids of groups, signatures and sites."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from roundk.tracer import files, schema, template, words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_WORDS = tuple(schema.RING_WORDS)


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
    parts, cut = [], []
    for path in paths:
        try:
            part, missing = _read_segment(path)
        except (pa.ArrowException, OSError, KeyError) as error:
            cut.append((path, why_not(error)))
            continue
        parts.append(part)
        if missing is not None:
            cut.append((path, f"{missing} bytes are missing at its end"))
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


def _read_segment(path: str) -> tuple[dict[str, np.ndarray[Any, Any]], int | None]:
    """The committed rows of a segment, and how many bytes are missing (None: none)."""
    size = pathlib.Path(path).stat().st_size
    try:
        table: Any = pa.ipc.open_file(files.mapped(pathlib.Path(path))).read_all()
        missing = None
    except pa.ArrowInvalid:
        whole = completed(path, template.SEGMENTS)
        missing = len(whole) - size
        table = pa.ipc.open_file(pa.py_buffer(whole)).read_all()
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


def why_not(error: Exception) -> str:
    """Why a segment cannot be read, by what reading it raised: Arrow has errors of the system's kind for damage."""
    of_system = error.strerror if isinstance(error, OSError) else None
    return of_system or f"not a whole Arrow segment: {error}".splitlines()[0]


def completed(path: str, templates: Mapping[int, template.Template]) -> bytes:
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
