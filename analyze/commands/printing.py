"""How commands print: what came from files cannot steer the terminal, and a full disk is an error in words."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable

import click

from roundk.analyze.output.safe import printable
from roundk.tracer.errors import RoundkError

__all__ = ["painted", "printable", "write"]


def painted(render: Callable[[Callable[[str, str], str]], str]) -> str:
    """What `render(paint)` gives, printable; in colour where that is wanted. `paint(words, colour)` colours words."""
    if not _takes_colour():
        return printable(render(lambda words, _: words))
    ours: dict[str, None] = {}

    def paint(words: str, colour: str) -> str:
        styled = click.style(words, fg=colour, bold=True)
        ours[styled] = None
        return styled

    text = render(paint)
    pieces = re.split(f"({'|'.join(map(re.escape, ours))})", text) if ours else [text]
    return "".join(piece if piece in ours else printable(piece) for piece in pieces)


def _takes_colour() -> bool:
    """A terminal does, unless it can't or its user wants none (https://no-color.org: any value but an empty one)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def write(text: str) -> None:
    """Print a report.

    Raises:
        RoundkError: standard output takes no more.
    """
    try:
        click.echo(text)
        sys.stdout.flush()
    except OSError as error:
        # The interpreter would try to write the rest once more at its end, and complain.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise RoundkError(f"the report cannot be written to standard output: {error.strerror or error}") from None
