"""What a parser makes of a line, and how numbers and names in it are read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from roundk.analyze.sources import rows
from roundk.analyze.sources.joblog import clock

MOST_TEXT: Final = 500
"""Characters kept of a message: enough for the sentence, not for the tensor that somebody printed."""
MOST_RANK: Final = 1 << 24
"""Larger ranks are no ranks: no job has sixteen million processes, and damaged lines have."""
MOST_LISTED: Final = 1024
"""Members kept of a list of ranks in a line."""


class Group(NamedTuple):
    """A process group as a log names it.

    Attributes:
        name: Its name, the GUID of later versions.
        desc: Its description, '' where none is printed.
    """

    name: str
    desc: str = ""

    @property
    def is_default(self) -> bool:
        """Whether it is the default group, in which ranks are global: the first that was made."""
        return self.desc == "default_pg" or (self.name == "0" and not self.desc)


@dataclass(slots=True)
class Event:
    """Something a line says.

    Attributes:
        kind: The fact's kind.
        text: The fact in a few words.
        fields: What was parsed.
        group: Process group the line names.
        group_rank: Rank in that group, or in one it does not name, of the process that printed the line.
        rank: Global rank of whom it is about, where the line says so itself.
        host: Host it is about, where the line says so itself.
        pid: Process it is about, where the line says so itself.
        at: When it happened, where that is not the line's time.
        is_about_other: It is about another process than the one that printed it, or about none.
    """

    kind: str
    text: str
    fields: dict[str, object] = field(default_factory=dict)
    group: Group | None = None
    group_rank: int | None = None
    rank: int | None = None
    host: str | None = None
    pid: int | None = None
    at: clock.Stamp | None = None
    is_about_other: bool = False


Parser = Callable[[str], Iterator[Event]]
"""Reads one line without prefixes; gives what it says, or nothing."""


def number(digits: str | None) -> int | None:
    """Digits of a line as a number that fits the tables; None where there are none, or too many, or -1 for none."""
    value = rows.decimal(digits) if digits else None
    return value if value is not None and value >= 0 else None


def rank_number(digits: str | None) -> int | None:
    """The same for a rank."""
    value = number(digits)
    return value if value is not None and value < MOST_RANK else None


def short(text: str) -> str:
    """A message, cut where it is long."""
    text = text.strip()
    return text if len(text) <= MOST_TEXT else text[: MOST_TEXT - 3] + "..."


def ranks(text: str) -> list[int]:
    """The numbers of `0, 3, 5` or `8-15,17`, `MOST_LISTED` at most."""
    found: list[int] = []
    for first, last in re.findall(r"(\d{1,8})(?:-(\d{1,8}))?", text):
        end = min(int(last or first), int(first) + MOST_LISTED, MOST_RANK - 1)
        found.extend(range(int(first), end + 1))
        if len(found) >= MOST_LISTED:
            break
    return found[:MOST_LISTED]


def present(**fields: object) -> dict[str, object]:
    """The fields that a line told: those of a pattern's optional parts are None where it did not."""
    return {name: value for name, value in fields.items() if value is not None}
