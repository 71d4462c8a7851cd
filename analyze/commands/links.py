"""`roundk links`: what a job's links did, beside its stuck and slow rounds."""

from __future__ import annotations

import pathlib
import shutil
import time

import click

from roundk.analyze import diagnose, sources
from roundk.analyze.case import build
from roundk.analyze.commands import printing
from roundk.analyze.commands.options import not_empty
from roundk.analyze.links.view import view
from roundk.analyze.output import links as text
from roundk.analyze.output import linksjson


@click.command("links")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", callback=not_empty)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Form of the output.",
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=pathlib.Path),
    metavar="FILE",
    help="Draw the throughput of the ports over time, with their events, there (.png, .svg, .pdf).",
)
def command(paths: tuple[str, ...], form: str, plot: pathlib.Path | None) -> None:
    """Show when ports went down and came back, and which counters moved, in the run and in its stuck and slow rounds.

    PATH is what `roundk analyze` takes: the directory of `roundk run`, or the output of ibstat, perfquery, ip -s link,
    ethtool -S, /proc/net/netstat, DCGM and others beside the dumps and logs of the job.

    Exit codes: 0; 2 usage, nothing readable, or nothing of links in it.
    """
    trace, _ = sources.load(paths)
    case = build(trace, now_ns=time.time_ns(), stall_ns=diagnose.STALL_NS)
    report = diagnose.report(case)
    links = view(case, report)
    if form == "json":
        printing.write(linksjson.render(links, report))
    else:
        columns = shutil.get_terminal_size((80, 24)).columns
        printing.write(printing.painted(lambda paint: text.render(links, report, width=columns, paint=paint)))
    if plot is not None:
        from roundk.analyze.links.plot import draw  # matplotlib takes longer to load than all the rest

        draw(links, report, plot)
