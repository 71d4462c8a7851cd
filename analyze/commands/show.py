"""`roundk show`: what is there to judge by, and nothing else."""

from __future__ import annotations

import io
import pathlib
import re
import shutil

import click

from roundk.analyze import sources
from roundk.analyze.commands import printing
from roundk.analyze.commands.options import not_empty
from roundk.analyze.commands.options import rank_pattern as rank_pattern_option
from roundk.analyze.output import inventory
from roundk.analyze.sources.inputs import Hints
from roundk.analyze.trace import Trace
from roundk.tracer.errors import RoundkError


@click.command("show")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", callback=not_empty)
@click.option(
    "--export",
    type=click.Path(file_okay=False, path_type=pathlib.Path),
    metavar="DIR",
    help="Write the tables there, as Parquet.",
)
@rank_pattern_option
def command(paths: tuple[str, ...], export: pathlib.Path | None, rank_pattern: re.Pattern[str] | None) -> None:
    """Show what was found: files by kind, ranks, versions, groups, times, and what cannot be read.

    PATH is what `roundk analyze` takes. Exit codes: 0; 2 usage, or nothing readable.
    """
    trace, parts = sources.load(paths, Hints(rank_pattern))
    text = inventory.render(trace, parts, width=shutil.get_terminal_size((80, 24)).columns)
    printing.write(printing.printable(text))
    if export is not None:
        _export(trace, export)


def _export(trace: Trace, folder: pathlib.Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in inventory.TABLES:
            told = io.BytesIO()  # polars takes no path that is not UTF-8, and tells no full disk of an open file
            getattr(trace, name).write_parquet(told)
            (folder / f"{name}.parquet").write_bytes(told.getbuffer())
    except OSError as error:
        raise RoundkError(f"{folder}: the tables cannot be written: {error.strerror or error}") from None
