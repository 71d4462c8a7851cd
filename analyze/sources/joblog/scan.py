"""Lines of a log that may say something, out of gigabytes that do not.

A block is searched for a fixed set of literals at once (Aho-Corasick with SIMD in polars, about a gigabyte per second
and core; one regular expression of Python's for the same set manages a fiftieth of that), and only lines with one are
looked at. Memory is bounded by the block, whatever the lines: a line without an end is looked at through windows
around what was found in it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Final, NamedTuple

import polars as pl
import pyarrow as pa

BLOCK: Final = 1 << 20
"""Bytes searched at once: larger blocks leave the cache, smaller ones pay more per call."""
AHEAD: Final = 1 << 12
"""Bytes of following lines that can be seen from every line: a wrapped message is joined from them."""
BEHIND: Final = 1 << 11
"""Bytes before a line that can be seen: the nearest time is looked for in them."""
_WINDOW: Final = 1 << 14
"""Longest part of a line that is looked at."""
_LEAD: Final = 256
MOST_LITERALS: Final = 64
"""Beyond this the search has no SIMD form, and takes three times as long."""


class Raw(NamedTuple):
    """A line as it stands in the file.

    Attributes:
        number: Line number, from 1.
        text: The line, or the part of it around what was found.
        is_hit: A literal was found in it; else it was asked for.
        lead: The beginning of the line of the file where `text` is only a part of it.
    """

    number: int
    text: str
    is_hit: bool
    lead: str


class Scanner:
    """Goes through a stream.

    Attributes:
        attentive: Set by whoever reads: give every line from here on, not only those with a literal.
        lines: Lines gone through so far.
    """

    def __init__(
        self, stream: IO[bytes], literals: Sequence[str], bulk: Callable[[bytes, pl.Series, int], None]
    ) -> None:
        """Start at the beginning.

        Args:
            stream: Plain bytes.
            literals: What to look for, `MOST_LITERALS` at most.
            bulk: Is given each block, and the same as text, with the number of its first line, before its lines are.
        """
        self._bulk = bulk
        self.attentive = False
        self.lines = 0
        self._stream = stream
        self._literals = list(literals)
        self._block = b""
        self._begin = self._end = 0

    def __iter__(self) -> Iterator[Raw]:
        """The lines, in order.

        Raises:
            OSError, EOFError, ValueError, zlib.error: it cannot be read or decompressed any further.
        """
        carry, is_open = b"", False
        while True:
            data = self._stream.read(BLOCK)
            self._block = carry + data
            limit = _whole(self._block) if data else len(self._block)
            yield from self._lines(limit)
            self.lines += self._block.count(b"\n", 0, limit)
            is_open = self._block[limit - 1 : limit] != b"\n" if limit else is_open
            if not data:
                self.lines += is_open
                return
            carry = self._block[limit:]

    def following(self) -> Iterator[str]:
        """The lines behind the one given last, as far as they can be seen."""
        return iter(_text(self._block[self._end : self._end + AHEAD]).split("\n")[1:])

    def before(self) -> str:
        """What stands before the line given last, as far as it can be seen."""
        return _text(self._block[max(0, self._begin - BEHIND) : self._begin])

    def _hits(self, limit: int) -> list[int]:
        if not limit:
            return []
        text = _series(self._block, limit)
        self._bulk(self._block, text, self.lines + 1)
        found = text.str.find_many(self._literals, leftmost=True)
        return found.explode().drop_nulls().to_list()

    def _lines(self, limit: int) -> Iterator[Raw]:
        block, position, counted, number, k = self._block, 0, 0, self.lines + 1, 0
        hits = self._hits(limit)
        while position < limit:
            while k < len(hits) and hits[k] < position:
                k += 1
            if self.attentive:
                begin, found = position, position
            elif k < len(hits):
                found = hits[k]
                begin = max(
                    position,
                    block.rfind(b"\n", position, found) + 1,
                    block.rfind(b"\r", position, found) + 1,
                    found - BEHIND,
                )
            else:
                return
            end, position = _line_end(block, begin, found, limit)
            number += block.count(b"\n", counted, begin)
            counted = begin
            self._begin, self._end = begin, end
            is_hit = k < len(hits) and begin <= hits[k] < max(end, begin + 1)
            line_begin = max(block.rfind(b"\n", 0, begin) + 1, begin - BEHIND)
            lead = _text(block[line_begin : min(begin, line_begin + _LEAD)]) if line_begin < begin else ""
            yield Raw(number, _text(block[begin:end]), is_hit, lead)


def _whole(block: bytes) -> int:
    """How much of a block is whole lines, with `AHEAD` bytes behind those where there are so many.

    A line that is longer than a block is cut: nothing waits for an end that may never come.
    """
    ends = block.rfind(b"\n", 0, max(0, len(block) - AHEAD)) + 1 or block.rfind(b"\n") + 1
    return ends or (len(block) if len(block) >= BLOCK else 0)


def _series(block: bytes, limit: int) -> pl.Series:
    """The block's lines as one string, without copying them where they are UTF-8."""
    offsets = pa.py_buffer(struct.pack("<qq", 0, limit))
    whole = pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, pa.py_buffer(block)])
    try:
        text = whole.cast(pa.large_string())
    except pa.ArrowInvalid:  # bytes beyond ASCII are in no literal, so any other letter does for them
        text = pa.array([block[:limit].translate(_ASCII).decode("ascii")], pa.large_string())
    return pl.Series(text)


_ASCII: Final = bytes(byte if byte < 128 else ord("?") for byte in range(256))


def _line_end(block: bytes, begin: int, found: int, limit: int) -> tuple[int, int]:
    """Where the line, or the part of it to look at, ends, and where the next one begins."""
    end = block.find(b"\n", found, limit)
    end = limit if end < 0 else end
    following = min(end + 1, limit)
    drawn_over = block.find(b"\r", found, end)
    if 0 <= drawn_over < end - 1:  # a progress bar; `\r\n` ends a line as `\n` does
        end, following = drawn_over, drawn_over + 1
    if end - begin > _WINDOW:
        end = following = max(found + 1, begin + _WINDOW)
    return end, following


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
