"""Small helps that the readers of foreign text share: tables out of lists, and reading no more than fits."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import polars as pl
import pyarrow as pa

from roundk.analyze.phrases import NS_PER_S
from roundk.analyze.sources.inputs import DAMAGED, Input
from roundk.analyze.trace import frame

READ_ERRORS: Final = (*DAMAGED, ValueError, RuntimeError)
"""What opening, reading or decompressing a damaged file raises."""

MOST_INT: Final = (1 << 63) - 1

_CHUNK: Final = 1 << 20
_MOST_LINE: Final = 1 << 20
_TIME: Final = re.compile(
    r"(?<!\d)(20\d\d)-?([01]\d)-?([0-3]\d)[T_ \-.]?([0-2]\d)[-:]?([0-5]\d)[-:]?([0-6]\d)(?:[.,](\d{1,9}))?(Z?)(?!\d)"
)
_EPOCH: Final = re.compile(r"(?<![\d.])(1[5-9]\d{8})(?:\.?(\d{3}|\d{6}|\d{9}))?(?!\d)")


def table(columns: pa.Schema, data: Mapping[str, Any]) -> pl.DataFrame:
    """A frame of these columns; those that `data` does not name are null.

    Args:
        columns: One of `roundk.tracer.schema`.
        data: Values by column, all of one length; lists, or Arrow arrays.
    """
    length = max((len(values) for values in data.values()), default=0)
    arrays = [
        _array(data[field.name], field.type) if field.name in data else pa.nulls(length, field.type)
        for field in columns
    ]
    return frame(pa.Table.from_arrays(arrays, names=columns.names))


def _array(values: Any, kind: Any) -> Any:
    if not isinstance(values, pa.ChunkedArray | pa.Array):
        return pa.array(values, kind)
    if pa.types.is_dictionary(kind):
        return values.cast(kind.value_type).dictionary_encode().cast(kind)
    return values.cast(kind)


def from_dicts(columns: pa.Schema, rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """The same from rows, for tables of few of them."""
    return table(columns, {name: [row.get(name) for row in rows] for name in columns.names})


def read_bytes(item: Input, most: int) -> tuple[bytes, bool]:
    """The first `most` plain bytes of an input, and whether there are more.

    Raises:
        READ_ERRORS: it cannot be read or decompressed.
    """
    pieces: list[bytes] = []
    left = most + 1
    with item.open() as stream:
        while left > 0 and (piece := stream.read(min(left, _CHUNK))):
            pieces.append(piece)
            left -= len(piece)
    data = b"".join(pieces)
    return data[:most], len(data) > most


def lines(item: Input) -> Iterator[tuple[bytes, bool]]:
    """The lines of an input without their ends, each with whether it has one: the last may have been cut.

    A line beyond 1 MiB is given in pieces: no memory is spent on a file without line ends.

    Raises:
        READ_ERRORS: it cannot be read or decompressed (any further).
    """
    with item.open() as stream:
        while line := stream.readline(_MOST_LINE):
            yield line.rstrip(b"\r\n"), line.endswith(b"\n")


def count(value: object) -> int | None:
    """The value as a count that fits the tables; None for anything else, be it negative, a bool or garbage."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_INT:
        return value
    return None


def decimal(text: str) -> int | None:
    """The text as an integer that fits the tables (a sign is allowed); None for anything else."""
    text = text.strip()
    if not text.removeprefix("-").isascii() or not text.removeprefix("-").isdigit() or len(text) > 20:
        return None
    value = int(text)
    return value if -MOST_INT <= value <= MOST_INT else None


def words_of(fields: Mapping[str, Any]) -> str:
    """`facts.fields`: what was parsed, as a JSON object."""
    return json.dumps(dict(fields), ensure_ascii=False)


def named_time(name: str) -> tuple[int | None, bool]:
    """The time that a file name tells, and whether that is certain to be UTC.

    Names such as `20260102-030405`, `2026-01-02T03-04-05.250Z`, or seconds since 1970 do.

    Without a zone it is read as UTC: nothing there tells another, and distances between files stay right.
    """
    found = list(_TIME.finditer(name))
    if found:
        return _moment(found[-1]), bool(found[-1][8])
    epoch = _EPOCH.search(name)
    return (int(epoch[1]) * NS_PER_S + int((epoch[2] or "").ljust(9, "0")), True) if epoch else (None, False)


def told_time(text: str) -> int | None:
    """`2026-01-02 03:04:05` as Unix time, read as UTC; None where it is no time."""
    found = _TIME.search(text)
    return None if found is None else _moment(found)


def _moment(found: re.Match[str]) -> int | None:
    try:
        when = dt.datetime(*(int(found[i]) for i in range(1, 7)), tzinfo=dt.UTC)  # type: ignore[arg-type,misc]
    except ValueError:
        return None
    return int(when.timestamp()) * NS_PER_S + int((found[7] or "").ljust(9, "0"))
