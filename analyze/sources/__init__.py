"""Where traces come from: one module per form of input, found by content and not by name."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

from roundk.analyze.sources import rundir
from roundk.analyze.trace import Trace
from roundk.tracer.errors import RunError


def load(paths: Sequence[pathlib.Path]) -> Trace:
    """Read what the user named.

    Args:
        paths: A run directory, or a directory that holds exactly one.

    Raises:
        RunError: Nothing there can be read, or there is more than one run.
    """
    runs: dict[pathlib.Path, pathlib.Path] = {}
    for path in paths:
        if not path.exists():
            raise RunError(f"{path}: there is no such file or directory")
        found = rundir.find(path)
        if not found:
            raise RunError(f"{path}: no recorded run is here; name the directory that `roundk run --dir` wrote")
        for run in found:
            runs.setdefault(run, path)
    if len(runs) > 1:
        names = ", ".join(str(run) for run in list(runs)[:5]) + (", ..." if len(runs) > 5 else "")
        raise RunError(f"{len(runs)} runs are here and one is analyzed at a time: {names}; name one of them")
    run, named = next(iter(runs.items()))
    return rundir.load(run, named)
