"""What the names of a verdict mean, for a person at a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from roundk.analyze.explain import KINDS, Entry, entries
from roundk.analyze.output.text import MAX_WIDTH, MIN_WIDTH, Paint, plain


def render(found: Sequence[Entry], *, width: int = 80, paint: Paint = plain) -> str:
    """The whole of one name.

    Args:
        found: Its entries.
        width: Columns of the terminal.
        paint: How to colour a word.
    """
    width = min(max(width, MIN_WIDTH), MAX_WIDTH)
    return "\n\n".join(_entry(entry, width, paint) for entry in found)


def listing(*, width: int = 80, paint: Paint = plain) -> str:
    """All names, a line each.

    Args:
        width: Columns of the terminal.
        paint: How to colour a word.
    """
    width = min(max(width, MIN_WIDTH), MAX_WIDTH)
    lines: list[str] = []
    for kind, question in KINDS.items():
        named = [entry for entry in entries() if entry.kind == kind]
        wide = max(len(entry.name) for entry in named)
        lines += [f"{paint(kind.upper() + 'S', 'cyan')}  {question}"]
        for entry in named:
            lines += textwrap.wrap(
                entry.meaning.line,
                width,
                initial_indent=f"  {entry.name:<{wide}}  ",
                subsequent_indent=" " * (wide + 4),
                break_on_hyphens=False,
            )
        lines.append("")
    return "\n".join([*lines, "`roundk explain NAME` tells all about one."])


def _entry(entry: Entry, width: int, paint: Paint) -> str:
    told = entry.meaning
    lines = [
        f"{paint(entry.name, 'cyan')}  {entry.kind}",
        "",
        *_wrapped(f"{told.line[:1].upper()}{told.line[1:]}.", width, ""),
    ]
    for title, text in (
        ("What was seen", told.means),
        ("What it needs", told.needs),
        ("What it can be mistaken for", told.mistaken),
        ("What to do", told.then),
    ):
        if text:
            lines += ["", title, *_wrapped(text, width, "  ")]
    return "\n".join(lines)


def _wrapped(text: str, width: int, indent: str) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
