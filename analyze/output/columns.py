"""Rows of text in columns that fit a terminal."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from roundk.analyze.output.safe import printable

_GAP: Final = 2
_UNBROKEN: Final = "\N{NO-BREAK SPACE}"
_UNIT: Final = re.compile(r"(?<=\d) (?=(?:µs|ms|s|min|h|d|%|[kMG]?B/s|Gb/s|Mb/s)\b|%)")
"""Between a number and its unit no line ends."""
_MOST: Final = 40
"""The others are not made wider: of the kernel's names of network devices and of most hosts' none is longer."""
_CUT: Final = "..."
_LEAST: Final = 16
"""The last column is not made narrower than this: it goes under the row instead."""


def columns(
    rows: Sequence[Sequence[str]], width: int, *, right: Collection[int] = (), indent: int = 2, gap: int = _GAP
) -> list[str]:
    """The rows as lines; a column in which nothing stands is left out, the last one is wrapped where it is too long.

    What is in a cell stays in its line: a line break in a name is written out, and the end of a very long one left out.

    Args:
        rows: Cells, as many in each row.
        width: Columns of the terminal.
        right: Numbers of the columns whose text stands at the right.
        indent: Spaces before each row.
        gap: Spaces between columns.
    """
    used = [at for at in range(len(rows[0])) if any(row[at] for row in rows[1:])] if len(rows) > 1 else []
    if not used:
        return []
    rows = [[_one_line(cell, most=_MOST if at != used[-1] else None) for at, cell in enumerate(row)] for row in rows]
    wide = {at: max(len(row[at]) for row in rows) for at in used}
    before = indent + sum(wide[at] + gap for at in used[:-1])
    last = used[-1]
    room = width - before
    lines = []
    for row in rows:
        cells = [row[at].rjust(wide[at]) if at in right else row[at].ljust(wide[at]) for at in used[:-1]]
        start = " " * indent + "".join(f"{cell}{' ' * gap}" for cell in cells)
        if last in right or len(row[last]) <= room:
            lines.append(f"{start}{row[last].rjust(wide[last]) if last in right else row[last]}".rstrip())
        elif room >= _LEAST:
            lines += paragraph(row[last], width, first=start, following=" " * before)
        else:
            lines.append(start.rstrip())
            lines += paragraph(row[last], width, first=" " * 6, following=" " * 6)
    return lines


def _one_line(cell: str, *, most: int | None) -> str:
    text = printable(cell).replace("\n", "\\n")
    return text if most is None or len(text) <= most else text[: most - len(_CUT)] + _CUT


def paragraph(text: str, width: int, *, first: str = "", following: str = "") -> list[str]:
    """A text as lines, numbers together with their units.

    Args:
        text: The text.
        width: Columns of the terminal.
        first: What stands before its first line.
        following: What stands before the others.
    """
    lines = textwrap.wrap(
        _UNIT.sub(_UNBROKEN, text),
        width,
        initial_indent=first,
        subsequent_indent=following,
        break_on_hyphens=False,
    )
    return [line.replace(_UNBROKEN, " ") for line in lines]


def some(texts: Iterable[str], limit: int) -> str:
    """The first few of some words, and how many more there are."""
    listed = list(texts)
    more = f" and {len(listed) - limit:,} more" if len(listed) > limit else ""
    return ", ".join(listed[:limit]) + more
