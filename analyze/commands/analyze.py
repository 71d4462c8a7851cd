"""`roundk analyze`: name the rank that hangs or slows a run, and say why."""

from __future__ import annotations

import pathlib
import re
import shutil
import sys
import time

import click

from roundk.analyze import diagnose, sources
from roundk.analyze.case import build
from roundk.analyze.commands import printing
from roundk.analyze.commands.options import rank_pattern as rank_pattern_option
from roundk.analyze.output import json, text
from roundk.analyze.phrases import NS_PER_S
from roundk.analyze.sources.inputs import Hints
from roundk.analyze.verdict import Report
from roundk.tracer.errors import RoundkError


@click.command("analyze")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Form.")
@click.option(
    "--plot", type=click.Path(dir_okay=False, path_type=pathlib.Path), help="Draw the rounds around the onset."
)
@click.option(
    "--stall-s",
    type=click.FloatRange(min=0, min_open=True),
    default=diagnose.STALL_NS / NS_PER_S,
    show_default=True,
    help="Age from which an open round of a running job counts as stuck.",
)
@rank_pattern_option
def command(
    paths: tuple[str, ...],
    form: str,
    plot: pathlib.Path | None,
    stall_s: float,
    rank_pattern: re.Pattern[str] | None,
) -> None:
    """Name the rank that hangs or slows a run, and say why.

    PATH is what the run left behind, in any mix: the directory that `roundk run` wrote, PyTorch Flight Recorder
    dumps, job logs, NCCL RAS reports, comm dumps, host counters; files, directories, globs, beginnings of paths
    (/tmp/nccl_trace_rank_), archives, or - for a log on standard input. `roundk show` lists what was found.

    Exit codes: 0 healthy or in progress; 1 something is wrong and the report says what; 2 usage, nothing readable,
    or the report cannot be written; 3 something is wrong and it cannot be said what.
    """
    trace, _ = sources.load(paths, Hints(rank_pattern))
    case = build(trace, now_ns=time.time_ns(), stall_ns=round(stall_s * NS_PER_S))
    report = diagnose.report(case)
    printing.write(json.render(report) if form == "json" else _text(report))
    if plot is not None:
        from roundk.analyze.plot import draw  # matplotlib takes longer to load than all the rest

        try:
            draw(case, report, plot)
        except RoundkError as error:
            # The report is out, and its exit code tells more than that of a picture.
            click.echo(f"roundk: {error}", err=True)
    sys.exit(report.exit_code)


def _text(report: Report) -> str:
    columns = shutil.get_terminal_size((80, 24)).columns
    return printing.painted(lambda paint: text.render(report, width=columns, paint=paint))
