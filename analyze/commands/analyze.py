"""`roundk analyze`: name the rank that hangs or slows a run, and say why."""

from __future__ import annotations

import pathlib
import re
import shutil
import sys
import time

import click

from roundk.analyze import diagnose, sources
from roundk.analyze.case import Case, build
from roundk.analyze.commands import printing
from roundk.analyze.commands.options import not_empty
from roundk.analyze.commands.options import rank_pattern as rank_pattern_option
from roundk.analyze.output import html, json, markdown, text
from roundk.analyze.phrases import NS_PER_S
from roundk.analyze.picture import pictures
from roundk.analyze.sources.inputs import Hints
from roundk.analyze.verdict import Report
from roundk.tracer.errors import RoundkError

_FORMS = {
    ".html": "html",
    ".htm": "html",
    ".md": "markdown",
    ".markdown": "markdown",
    ".json": "json",
    ".txt": "text",
    ".log": "text",
    "": "text",
}
"""Forms by the ending of the file that the report goes to."""


@click.command("analyze")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", callback=not_empty)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "markdown", "html"]),
    help="Form of the report.  [default: what the ending of FILE says, else text]",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=pathlib.Path),
    metavar="FILE",
    help="Write the report there (.html, .md, .json, .txt) instead of printing it.",
)
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
    form: str | None,
    output: pathlib.Path | None,
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
    form = form or _form_of(output)
    if form == "html" and output is None and sys.stdout.isatty():
        raise click.UsageError("a page is of no use on a terminal: add `-o report.html`, and open that in a browser")
    trace, _ = sources.load(paths, Hints(rank_pattern))
    case = build(trace, now_ns=time.time_ns(), stall_ns=round(stall_s * NS_PER_S))
    report = diagnose.report(case)
    if output is None:
        printing.write(_told(case, report, form))
    else:
        _write(output, _told(case, report, form, to_file=True))
    if plot is not None:
        from roundk.analyze.plot import draw  # matplotlib takes longer to load than all the rest

        try:
            draw(case, report, plot)
        except RoundkError as error:
            # The report is out, and its exit code tells more than that of a picture.
            click.echo(f"roundk: {error}", err=True)
    sys.exit(report.exit_code)


def _form_of(output: pathlib.Path | None) -> str:
    ending = "" if output is None else output.suffix.lower()
    if ending not in _FORMS:
        known = ", ".join(filter(None, _FORMS))
        name = printing.printable(str(output))
        raise click.UsageError(
            f"{name}: no form of the report has this ending; it is {known}, or --format says the form"
        )
    return _FORMS[ending]


def _told(case: Case, report: Report, form: str, *, to_file: bool = False) -> str:
    if form == "json":
        return json.render(report)
    waits = pictures(case, report)
    if form == "html":
        return html.render(case, report, waits)
    if form == "markdown":
        return markdown.render(report, waits)
    if to_file:
        return printing.printable(text.render(report, waits))
    columns = shutil.get_terminal_size((80, 24)).columns
    return printing.painted(lambda paint: text.render(report, waits, width=columns, paint=paint))


def _write(path: pathlib.Path, told: str) -> None:
    try:
        path.write_text(f"{told}\n", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise RoundkError(f"{path}: the report cannot be written: {error.strerror or error}") from None
    click.echo(f"roundk: the report is in {printing.printable(str(path))}", err=True)
