"""How commands print: what came from files cannot steer the terminal, and a full disk is an error in words."""

from __future__ import annotations

import contextlib
import os
import sys
import unicodedata

import click

from roundk.tracer.errors import RoundkError

_STEERING = frozenset({"Cc", "Cf", "Cs"})
"""Categories of control characters, of invisible ones that turn text around, and of half characters."""


def printable(text: str) -> str:
    """The text with what a terminal would obey, or could not show, written out by its number."""
    if text.isascii() and text.replace("\n", "").isprintable():
        return text
    return "".join(
        char if char == "\n" or unicodedata.category(char) not in _STEERING else ascii(char)[1:-1] for char in text
    )


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
