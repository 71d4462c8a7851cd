"""A Flight Recorder dump as JSON, read entry by entry: memory stays small, and a cut file gives what it has."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable
from typing import IO, Any, Final

_CHUNK: Final = 1 << 20
_MOST_VALUE: Final = 16 << 20
"""Characters of one value beside the entries, or of one entry: the rank lists of 16,384 ranks take some megabytes."""
_SPACE: Final = re.compile(r"[ \t\r\n\ufeff]*")
_ESCAPED: Final = re.compile(r"\\u[dD][89a-fA-F]")
_LONE: Final = re.compile(r"[\ud800-\udfff]")
"""Half of a character: JSON can name one, and no text can hold it. Whole ones are joined when they are decoded."""
_decode: Final = json.JSONDecoder().raw_decode


class _Problem(Exception):  # noqa: N818 - an end of reading that does not leave this module
    """Reading cannot go on."""

    def __init__(self, why: str, *, is_cut: bool) -> None:
        super().__init__(why)
        self.is_cut = is_cut


def read(stream: IO[bytes], add: Callable[[Any], None]) -> tuple[Any, str | None, bool]:
    """Read a dump.

    Args:
        stream: Its bytes.
        add: Is given every entry, in order.

    Returns:
        Everything beside the entries; why it could not be read to its end, None where it was; whether it is cut.

    Raises:
        rows.READ_ERRORS: its bytes cannot be read.
    """
    text = _Text(stream)
    head: dict[str, Any] = {}
    try:
        if text.at("["):  # torch 2.2
            text.items(add)
            return [], None, False
        text.take("{")
        while not text.at("}"):
            key = text.value()
            text.take(":")
            if key == "entries" and text.at("["):
                text.items(add)
            elif isinstance(key, str):
                head[key] = text.value()
            if not text.at("}"):
                text.take(",")
    except _Problem as problem:
        return head, str(problem), problem.is_cut
    return head, None, False


class _Text:
    """A window on the text that moves on as it is read."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._text = ""
        self._pos = 0
        self._before = 0
        self._is_end = False

    def at(self, sign: str) -> bool:
        """Whether this character comes next, behind any space."""
        while True:
            self._pos = _SPACE.match(self._text, self._pos).end()  # type: ignore[union-attr]
            if self._pos < len(self._text):
                return self._text[self._pos] == sign
            if not self._more():
                raise self._cut()

    def take(self, sign: str) -> None:
        """Pass this character, which must come next."""
        if not self.at(sign):
            raise _Problem(
                f"has no `{sign}` at character {self._before + self._pos}, where JSON wants one", is_cut=False
            )
        self._pos += 1

    def value(self) -> Any:
        """Pass a value."""
        self.at("")
        while True:
            try:
                found, end = _decode(self._text, self._pos)
                if _ESCAPED.search(self._text, self._pos, end) is not None:
                    found = _without_halves(found)
            except json.JSONDecodeError:
                if self._more():
                    continue
                if self._is_end:
                    raise self._cut() from None
                why = f"has one value of more than {_MOST_VALUE >> 20} MiB at character {self._before + self._pos}"
                raise _Problem(why, is_cut=False) from None
            except (RecursionError, ValueError):  # too deep; a number of thousands of digits
                why = f"has at character {self._before + self._pos} a value that no dump has"
                raise _Problem(why, is_cut=False) from None
            if end < len(self._text) or not self._more():  # a number may go on
                self._pos = end
                return found

    def items(self, add: Callable[[Any], None]) -> None:
        """Pass a list."""
        self.take("[")
        while not self.at("]"):
            add(self.value())
            if not self.at("]"):
                self.take(",")
        self.take("]")

    def _more(self) -> bool:
        if self._is_end or len(self._text) - self._pos > _MOST_VALUE:
            return False
        # Twice what is held: a long value is not decoded anew for each piece of it.
        piece = self._stream.read(max(_CHUNK, len(self._text) - self._pos))
        self._is_end = not piece
        self._before += self._pos
        self._text = self._text[self._pos :] + self._decoder.decode(piece, final=self._is_end)
        self._pos = 0
        return True

    def _cut(self) -> _Problem:
        return _Problem(f"ends or is damaged at character {self._before + self._pos}", is_cut=True)


def _without_halves(value: Any) -> Any:
    """The value with a replacement character for each half of one."""
    if isinstance(value, str):
        return _LONE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_without_halves(one) for one in value]
    if isinstance(value, dict):
        return {_without_halves(key): _without_halves(one) for key, one in value.items()}
    return value
