"""`roundk batch`: judge many failed runs, and say what they have in common."""

from __future__ import annotations

import math
import os
import pathlib
import shutil
from typing import Any, Final

import click
import polars as pl

from roundk.analyze.batch import discover, engine, fleet, store, topology, tree
from roundk.analyze.batch.process import MEMORY_LIMIT_MB, TIME_LIMIT_S, Limits
from roundk.analyze.batch.progress import Progress
from roundk.analyze.batch.run import Run
from roundk.analyze.commands import ending, printing
from roundk.analyze.commands.options import not_empty
from roundk.analyze.output import fleet as text
from roundk.analyze.output import fleethtml, fleetjson

_SHOWN: Final = 10
"""Problems of finding the runs that are told; the report has all."""
_GOES_ON: Final = "The same command goes on from here."
_BEFORE: Final = f"nothing is judged yet. {_GOES_ON}"


class _Named(click.Path):
    """A path, and not the current folder for an empty text, which an unset variable leaves."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        not_empty(ctx, param, value)
        path = pathlib.Path(os.fsdecode(super().convert(value, param, ctx)))
        if path.is_symlink() and not path.exists():
            self.fail(f"{value}: a link to {path.readlink()}, which is not there", param, ctx)
        return path


def _finite(ctx: click.Context, param: click.Parameter, value: float) -> float:
    if not math.isfinite(value):
        raise click.BadParameter(f"{value} is no number of seconds", ctx, param)
    return value


@click.command("batch")
@click.argument("roots", nargs=-1, required=True, metavar="ROOT...", callback=not_empty)
@click.option(
    "--out",
    type=_Named(file_okay=False, path_type=pathlib.Path),
    default="roundk-batch",
    show_default=True,
    metavar="DIR",
    help="Folder of the batch: the table of the last one (runs.parquet), and each finished run (done/), so that the "
    "same command goes on where it ended.",
)
@click.option(
    "--run-glob",
    metavar="GLOB",
    callback=not_empty,
    help="Which folders or files below ROOT are one run each, as `*/logs`.",
)
@click.option(
    "--topology",
    "topology_file",
    type=_Named(dir_okay=False, path_type=pathlib.Path),
    metavar="FILE",
    help="Which host is in which rack, on which rail and plane (CSV or Parquet).",
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
    type=_Named(dir_okay=False, path_type=pathlib.Path),
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
    callback=_finite,
    help="Seconds that one run may take, fetching included.",
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
@click.option(
    "--ray-address",
    metavar="ADDRESS",
    callback=not_empty,
    help="Ray cluster.  [default: $RAY_ADDRESS, or the one started here]",
)
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

    A run that is finished is not judged again unless its files change; one that was ended by a limit is. Other roots
    with the same --out replace the table: it holds the runs of the last batch.

    Exit codes: 0 the batch is done, whatever its runs say; 2 usage, nothing found, or the folder cannot be written;
    130 interrupted by Ctrl-C, 143 ended by SIGTERM, 129 by SIGHUP: the same command goes on.
    """
    if ray_address is not None and where != "ray":
        raise click.UsageError("--ray-address needs --engine ray")
    if page is not None:
        _check_page(page, out, [*map(pathlib.Path, roots), *([topology_file] if topology_file else [])])
    with ending.told(_BEFORE) as end:
        # All that can be wrong with what the user named is told before hours of work, and not after.
        layout = None if topology_file is None else topology.read(topology_file)
        at_a_time = jobs or engine.cpus()
        chosen = _engine(where, ray_address, at_a_time, Limits(time_limit_s, memory_limit_mb), out)
        below = discover.discover(roots, run_glob=run_glob)
        _tell(below.problems)
        with store.opened(out) as kept:
            frame = _judged(below.runs, kept, chosen, end)
        found = fleet.fleet(frame, layout, below.problems)
        if page is not None:
            _write(page, fleethtml.render(found))
        if form == "json":
            printing.write(fleetjson.render(found))
        else:
            columns = shutil.get_terminal_size((80, 24)).columns
            printing.write(printing.painted(lambda paint: text.render(found, width=columns, paint=paint)))


def _check_page(page: pathlib.Path, out: pathlib.Path, inputs: list[pathlib.Path]) -> None:
    whole, folder = page.resolve(), out.resolve()
    ours = [folder / name for name in (tree.TABLE, tree.OF_A_BATCH, tree.DONE)]
    if whole in ours or folder / tree.DONE in whole.parents:
        raise click.BadParameter(f"{page}: the batch keeps its own files there; name another", param_hint="'--html'")
    if any(one.resolve() == whole for one in inputs):
        raise click.BadParameter(f"{page}: that is read, and would be replaced; name another", param_hint="'--html'")
    if whole.parent != folder and not whole.parent.is_dir():
        raise click.BadParameter(f"{page}: there is no folder {page.parent}", param_hint="'--html'")
    if whole.parent.is_dir() and not os.access(page if page.exists() and not page.is_file() else whole.parent, os.W_OK):
        raise click.BadParameter(f"{page}: it cannot be written", param_hint="'--html'")


def _engine(where: str, address: str | None, jobs: int, limits: Limits, out: pathlib.Path) -> engine.Engine:
    if where == "local":
        return engine.Local(jobs, Limits(limits.time_s, limits.memory_mb, engine.threads_of(jobs)), out)
    from roundk.analyze.batch import ray_engine

    ray_engine.needed()
    return ray_engine.OnRay(address, limits)


def _judged(runs: list[Run], kept: store.Store, chosen: engine.Engine, end: ending.Told) -> pl.DataFrame:
    progress = Progress(len(runs), columns=shutil.get_terminal_size((80, 24)).columns)
    end.say = lambda: f"{progress.counts}. {_GOES_ON}"
    frame = engine.batch(runs, kept, chosen, progress)
    _tell(kept.problems)
    click.echo(f"roundk: {progress.counts}; the table is in {printing.printable(str(kept.table))}", err=True)
    return frame


def _tell(problems: list[str]) -> None:
    for problem in problems[:_SHOWN]:
        click.echo(f"roundk: {printing.printable(problem)}", err=True)
    if (more := len(problems) - _SHOWN) > 0:
        click.echo(f"roundk: and {more:,} more like these", err=True)


def _write(path: pathlib.Path, told: str) -> None:
    store.written(path, told.encode("utf-8", "backslashreplace"))
    click.echo(f"roundk: the page is in {printing.printable(str(path))}", err=True)
