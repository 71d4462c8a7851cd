"""`roundk explain`: what the names of a verdict mean."""

from __future__ import annotations

import difflib
import shutil

import click

from roundk.analyze import explain
from roundk.analyze.commands import printing
from roundk.analyze.output import meaning
from roundk.tracer.errors import RoundkError

_CLOSE = 0.5
"""Likeness from which a name is offered for one that is unknown."""


@click.command("explain")
@click.argument("name", required=False, metavar="[STRUCTURE|DETAIL|CAUSE]")
def command(name: str | None) -> None:
    """Say what a name in a verdict means, what it needs, what it can be mistaken for, and what to do.

    Without a name: all of them, a line each. Upper and lower case are the same.

    Exit codes: 0; 2 there is no such name.
    """
    width = shutil.get_terminal_size((80, 24)).columns
    if name is None:
        printing.write(printing.painted(lambda paint: meaning.listing(width=width, paint=paint)))
        return
    found = explain.find(name)
    if not found:
        raise RoundkError(_unknown(name))
    printing.write(printing.painted(lambda paint: meaning.render(found, width=width, paint=paint)))


def _unknown(name: str) -> str:
    known = list(dict.fromkeys(entry.name for entry in explain.entries()))
    close = difflib.get_close_matches(name.upper().replace("-", "_"), known, n=3, cutoff=_CLOSE)
    offered = f"did you mean {' or '.join(close)}? " if close else ""
    return f"{name}: no name of a verdict; {offered}`roundk explain` lists all"
