"""`roundk batch`: judge many failed runs, and say what they have in common."""

from __future__ import annotations

import pathlib
import shutil
import sys
from typing import Final

import click
import polars as pl

from roundk.analyze.batch import discover, engine, fleet, store, topology
from roundk.analyze.batch.process import MEMORY_LIMIT_MB, TIME_LIMIT_S, Limits
from roundk.analyze.batch.progress import Progress
from roundk.analyze.batch.run import Run
from roundk.analyze.commands import printing
from roundk.analyze.output import fleet as text
from roundk.analyze.output import fleethtml, fleetjson
from roundk.tracer.errors import RoundkError

_EXIT_INTERRUPTED: Final = 130
"""128 + SIGINT, as shells count."""
_SHOWN: Final = 10
"""Problems of finding the runs that are told."""


@click.command("batch")
@click.argument("roots", nargs=-1, required=True, metavar="ROOT...")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=pathlib.Path),
    default="roundk-batch",
    show_default=True,
    metavar="DIR",
    help="Folder for the table (runs.parquet) and for what is finished, so that a batch goes on where it ended.",
)
@click.option("--run-glob", metavar="GLOB", help="Which folders or files below ROOT are one run each, as `*/logs`.")
@click.option(
    "--topology",
    "topology_file",
    type=click.Path(dir_okay=False, path_type=pathlib.Path),
    metavar="FILE",
    help="Which host is in which rack, on which rail and plane (CSV).",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Form of the report.",
)
@click.option(
    "--html",
    "page",
    type=click.Path(dir_okay=False, path_type=pathlib.Path),
    metavar="FILE",
    help="Write the report there as a page, too.",
)
@click.option(
    "--jobs", type=click.IntRange(min=1), help="Runs at a time, on this machine.  [default: one per processor]"
)
@click.option(
    "--time-limit-s",
    type=click.FloatRange(min=0, min_open=True),
    default=TIME_LIMIT_S,
    show_default=True,
    help="Seconds that one run may take.",
)
@click.option(
    "--memory-limit-mb",
    type=click.IntRange(min=1),
    default=MEMORY_LIMIT_MB,
    show_default=True,
    help="MiB of memory that one run may take.",
)
@click.option(
    "--engine",
    "where",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Judge the runs on this machine, or on a Ray cluster.",
)
@click.option("--ray-address", metavar="ADDRESS", help="Ray cluster.  [default: $RAY_ADDRESS, or the one started here]")
def command(  # noqa: PLR0913, PLR0917  a parameter per option
    roots: tuple[str, ...],
    out: pathlib.Path,
    run_glob: str | None,
    topology_file: pathlib.Path | None,
    form: str,
    page: pathlib.Path | None,
    jobs: int | None,
    time_limit_s: float,
    memory_limit_mb: int,
    where: str,
    ray_address: str | None,
) -> None:
    """Judge many failed runs, and say what they have in common: causes, hosts, links.

    ROOT is a folder, or s3:// or gs:// URL, below which the runs are found by what they hold. Each is judged in a
    process of its own; one that breaks, takes too long or too much memory becomes a row of the table with the reason.

    A run that is finished is not judged again unless its files change; one that was ended by a limit is.

    Exit codes: 0 the batch is done, whatever its runs say; 2 usage, nothing found, or the folder cannot be written;
    130 interrupted.
    """
    if ray_address is not None and where != "ray":
        raise click.UsageError("--ray-address needs --engine ray")
    # All that can be wrong with what the user named is told before hours of work, and not after.
    layout = None if topology_file is None else topology.read(topology_file)
    below = discover.discover(roots, run_glob=run_glob)
    _tell(below.problems)
    with store.opened(out) as kept:
        at_a_time = jobs or engine.cpus()
        limits = Limits(time_limit_s, memory_limit_mb, engine.threads_of(at_a_time))
        chosen = _engine(where, ray_address, at_a_time, limits, out)
        frame = _judged(below.runs, kept, chosen)
    found = fleet.fleet(frame, layout)
    if form == "json":
        printing.write(fleetjson.render(found))
    else:
        columns = shutil.get_terminal_size((80, 24)).columns
        printing.write(printing.painted(lambda paint: text.render(found, width=columns, paint=paint)))
    if page is not None:
        _write(page, fleethtml.render(found))


def _engine(where: str, address: str | None, jobs: int, limits: Limits, out: pathlib.Path) -> engine.Engine:
    if where == "local":
        return engine.Local(jobs, limits, out)
    from roundk.analyze.batch.ray_engine import OnRay

    return OnRay(address, limits)


def _judged(runs: list[Run], kept: store.Store, chosen: engine.Engine) -> pl.DataFrame:
    progress = Progress(len(runs), columns=shutil.get_terminal_size((80, 24)).columns)
    try:
        frame = engine.batch(runs, kept, chosen, progress)
    except KeyboardInterrupt:
        click.echo(f"roundk: interrupted; {progress.counts}. The same command goes on from here.", err=True)
        sys.exit(_EXIT_INTERRUPTED)
    click.echo(f"roundk: {progress.counts}; the table is in {printing.printable(str(kept.table))}", err=True)
    return frame


def _tell(problems: list[str]) -> None:
    for problem in problems[:_SHOWN]:
        click.echo(f"roundk: {printing.printable(problem)}", err=True)
    if (more := len(problems) - _SHOWN) > 0:
        click.echo(f"roundk: and {more:,} more like these", err=True)


def _write(path: pathlib.Path, told: str) -> None:
    try:
        path.write_text(told, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise RoundkError(f"{path}: the page cannot be written: {error.strerror or error}") from None
    click.echo(f"roundk: the page is in {printing.printable(str(path))}", err=True)
