"""Run directories of our own recorder."""

from __future__ import annotations

import os
import pathlib
from typing import Final

import polars as pl

from roundk.analyze.trace import Trace, Unreadable, frame
from roundk.tracer import files, reader

DEPTH: Final = 2
"""How many levels below the named directory a run is looked for."""

UP: Final = 2
"""How many levels above a named file or directory a run is looked for: RUN/HOST/FILE."""


def find(path: pathlib.Path, known: dict[pathlib.Path, bool]) -> list[pathlib.Path]:
    """The run directories that a path stands for: itself, one that it lies in, or those below it.

    Args:
        path: What the user named.
        known: Of which folders it is known already whether they are one; of many files, all ask the same.
    """
    here = pathlib.Path(os.path.realpath(path))  # pathlib's own raises where links go round
    for candidate in (here, *list(here.parents)[:UP]):
        if candidate not in known:
            known[candidate] = reader.is_run(candidate)
        if known[candidate]:
            return [path if candidate == here else candidate]
    level = [path] if files.is_folder(path) else []
    for _ in range(DEPTH):
        level = sorted(child for parent in level for child in _folders(parent))
        runs = [child for child in level if reader.is_run(child)]
        if runs:
            return runs
    return []


def _folders(folder: pathlib.Path) -> list[pathlib.Path]:
    try:
        return [child for child in folder.iterdir() if files.is_folder(child)]
    except OSError:  # who goes through its files tells that
        return []


def load(path: pathlib.Path, below: str = "") -> Trace:
    """Read a run directory.

    Args:
        path: The run directory.
        below: What paths of its files begin with in the report.

    Raises:
        RunError: Nothing in it can be read.
    """
    run = reader.read_run(path)
    source = pl.lit(below) + pl.col("source")
    ranks = frame(run.ranks).with_columns(source=source)
    hosts = ranks.filter(pl.col("host").is_not_null())["host"].n_unique()
    return Trace(
        root=path,
        calls=frame(run.calls),
        groups=frame(run.groups),
        ranks=ranks,
        sites=frame(run.sites),
        facts=frame(run.facts).with_columns(source=source),
        stacks=frame(run.stacks).with_columns(source=source),
        steps=frame(run.steps),
        counters=frame(run.counters).with_columns(source=source),
        world_size=run.world_size,
        command=run.command,
        started_ns=run.started_ns,
        ended_ns=run.ended_ns,
        exit_code=run.exit_code,
        last_alive_ns=run.last_alive_ns,
        clock_error_ns=0 if hosts == 1 else None,
        unreadable=tuple(Unreadable(below + problem.path, problem.why) for problem in run.unreadable),
        truncated=run.truncated,
        notes=run.notes,
        sources={"run_directory": 1},
    )
