"""`roundk diff`: what differs between a good and a failed run."""

from __future__ import annotations

import re
import shutil
import sys
import time

import click

from roundk.analyze import sources
from roundk.analyze.commands import printing
from roundk.analyze.commands.options import not_empty
from roundk.analyze.commands.options import rank_pattern as rank_pattern_option
from roundk.analyze.difference.compare import compare
from roundk.analyze.difference.run import Run, run_of
from roundk.analyze.output import diff
from roundk.analyze.sources.inputs import STANDARD_INPUT, Hints


@click.command("diff")
@click.argument("run_a", callback=not_empty)
@click.argument("run_b", callback=not_empty)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Form of the output.",
)
@rank_pattern_option
def command(run_a: str, run_b: str, form: str, rank_pattern: re.Pattern[str] | None) -> None:
    """Show what differs between two runs, as a good one and one that failed.

    Compared are transports, versions, settings, links, process groups, calls, step time, hosts and the command line,
    each where both runs tell it; what only one of them tells is listed apart. How the runs ended is shown and not
    compared. RUN_A and RUN_B are each one of what `roundk analyze` takes: the directory of `roundk run`, a folder with
    dumps and logs, an archive, a file, or a glob in quotes.

    Exit codes: 0 nothing differs of what was compared; 1 something differs; 2 usage, or a run cannot be read;
    130 interrupted.
    """
    if run_a == run_b == STANDARD_INPUT:
        raise click.UsageError("only one of the runs can come on standard input")
    hints = Hints(rank_pattern)
    a, b = _run(run_a, hints), _run(run_b, hints)
    found = compare(a, b)
    if form == "json":
        printing.write(diff.render_json(a, b, found))
    else:
        columns = shutil.get_terminal_size((80, 24)).columns
        printing.write(printing.painted(lambda paint: diff.render(a, b, found, width=columns, paint=paint)))
    sys.exit(1 if found.rows else 0)


def _run(name: str, hints: Hints) -> Run:
    trace, parts = sources.load([name], hints)
    return run_of(name, trace, parts, now_ns=time.time_ns())
