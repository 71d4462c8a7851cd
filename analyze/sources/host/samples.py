"""Counter samples while host evidence is read: few bytes each, since a time series has millions."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import polars as pl

from roundk.analyze.sources.rows import decimal, from_dicts, table, words_of
from roundk.analyze.trace import empty
from roundk.tracer import schema

MOST: Final = 50_000_000
"""Samples after which the rest is left out, with a note: 3 GB of tables."""

NETDEV: Final = "netdev"
IB: Final = "ib"
TCP: Final = "tcp"
NVLINK: Final = "nvlink"
GPU: Final = "gpu"

UNREADABLE: Final = frozenset(
    {
        "",
        "N/A",
        "[N/A]",
        "n/a",
        "Not Supported",
        "[Not Supported]",
        "Unknown Error",
        "[Unknown Error]",
        "ERR!",
        "<error>",
        "Invalid argument",
        "Input/output error",
        "Permission denied",
        "Operation not supported",
        "Operation not permitted",
        "Connection timed out",
        "Resource temporarily unavailable",
    }
)
"""What stands in the place of a value that could not be read, which is not a zero."""

_NULL: Final = -(1 << 63)
_WORDS: Final = ("host", "kind", "device", "counter", "word", "source")
_BLANK_FROM: Final = 0x7FFF_FFFF_FFFF_FFF0
"""DCGM's blank values of 64 bits (`dcgm_structs.h`): not supported, not found, no permission."""
_MOST_WORD: Final = 200


@dataclass
class Context:
    """What a line stands under: the time and host of the file or of a header line in it."""

    source: str
    time_ns: int | None = None
    host: str | None = None


@dataclass
class Samples:
    """The samples and facts so far.

    Attributes:
        number: Samples taken.
        facts: Rows for `schema.FACTS`.
        is_full: Samples were left out.
    """

    number: int = 0
    facts: list[dict[str, Any]] = field(default_factory=list)
    is_full: bool = False
    _codes: dict[str, int] = field(default_factory=dict)
    _words: dict[str, array[int]] = field(default_factory=lambda: {name: array("i") for name in _WORDS})
    _integers: dict[str, array[int]] = field(
        default_factory=lambda: {name: array("q") for name in ("time_ns", "port", "value")}
    )
    _is_read: bytearray = field(default_factory=bytearray)

    def add(self, at: Context, kind: str, device: str, counter: str, told: str, *, port: int | None = None) -> None:
        """Take one sample.

        Args:
            at: Its time, host and file.
            kind: One of the kinds above.
            device: What it belongs to.
            counter: Its name.
            told: Its value as it stands there.
            port: Port or link.
        """
        if self.number >= MOST:
            self.is_full = True
            return
        told = told.strip()
        value = decimal(told)
        if value is not None and value >= _BLANK_FROM:
            told, value = "", None
        is_read = told not in UNREADABLE
        word = told[:_MOST_WORD] if is_read and value is None else None
        for name, text in zip(_WORDS, (at.host, kind, device, counter, word, at.source), strict=True):
            code = -1 if text is None else self._codes.setdefault(text, len(self._codes))
            self._words[name].append(code)
        for name, integer in (("time_ns", at.time_ns), ("port", port), ("value", value)):
            self._integers[name].append(_NULL if integer is None else integer)
        self._is_read.append(is_read)
        self.number += 1

    def fact(self, at: Context, kind: str, text: str, fields: dict[str, Any], line: int | None = None) -> None:
        """Take one fact."""
        self.facts.append(
            {
                "time_ns": at.time_ns,
                "host": at.host,
                "rank": None,
                "kind": kind,
                "text": text,
                "fields": words_of(fields),
                "source": at.source if line is None else f"{at.source}:{line}",
            }
        )

    def counters(self) -> pl.DataFrame:
        """`schema.COUNTERS`."""
        if not self.number:
            return table(schema.COUNTERS, {})
        names = pl.Series(list(self._codes), dtype=pl.String)
        # Sorting whole numbers is cheaper than sorting words: each word gets its place among all words.
        order = names.rank("ordinal")
        codes = {name: _integers(name, self._words[name], np.int32) for name in _WORDS}
        integers = {name: _integers(name, values, np.int64) for name, values in self._integers.items()}
        keys = pl.DataFrame(
            [order.gather(codes[name]).alias(name) for name in ("host", "device", "counter")]
            + [integers[name] for name in ("port", "time_ns")]
        )
        by = pl.arg_sort_by("host", "device", "port", "counter", "time_ns", maintain_order=True)
        rows = keys.select(by).to_series()
        is_read = pl.Series("is_read", np.frombuffer(self._is_read, dtype=np.uint8)).cast(pl.Boolean)
        columns = {name: names.gather(own.gather(rows)) for name, own in codes.items()}
        columns |= {name: own.gather(rows) for name, own in integers.items()}
        columns["is_read"] = is_read.gather(rows)
        columns["error_ns"] = pl.repeat(None, len(rows), eager=True)  # none of these forms tells
        kinds = empty(schema.COUNTERS).schema
        return pl.DataFrame([columns[name].alias(name).cast(kind) for name, kind in kinds.items()])

    def fact_table(self) -> pl.DataFrame:
        """`schema.FACTS`."""
        return from_dicts(schema.FACTS, self.facts).sort("time_ns", nulls_last=True, maintain_order=True)


def _integers(name: str, values: array[int], kind: Any) -> pl.Series:
    """A column as polars has it; the least number, and -1 among codes, stand for null."""
    column = pl.Series(name, np.frombuffer(values, dtype=kind))
    return column.set(column < 0 if kind is np.int32 else column == _NULL, None)
