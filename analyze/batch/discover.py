"""Finds the runs below roots: by what folders hold, and by the ranks and jobs in the names of what they hold.

A folder is taken from the bottom up. Its own files and each folder below give *units*, and what is of one run is put
together: folders called by a part of a run (`logs/`, `checkpoints/`), folders of the hosts of one run, which hold
different ranks, and files of one job's id. Folders that hold the same ranks are runs of their own. A log beside several
runs belongs to none of them that could be told, and is listed.

    runs/exp1/nccl_trace_rank_{0..7}  runs/exp2/nccl_trace_rank_{0..7}     two runs: the same ranks
    run/nodeA/nccl_trace_rank_{0..7}  run/nodeB/nccl_trace_rank_{8..15}    one run: others
    slurm-123.out  dump_123_rank_{0..7}  slurm-124.out                     two runs: jobs 123 and 124
    logs/ID_x7k2p9qa/attempt_{0,1}/{0..7}/stderr.log                       two runs: attempts 0 and 1 of job ID

What torchrun's attempts left in its log folder are runs of their own, as each has a verdict of its own. Dumps beside
that folder, which every attempt writes anew under the same names, are the last one's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from roundk.analyze.batch import jobnames, remote, tree
from roundk.analyze.batch.run import Run
from roundk.analyze.batch.search import Search
from roundk.analyze.batch.tree import Folder, Tree
from roundk.analyze.batch.units import Unit, paths_of
from roundk.tracer.errors import RunError

_SHOWN: Final = 3


@dataclass(frozen=True)
class Discovered:
    """What is below the roots.

    Attributes:
        runs: The runs, by name.
        problems: What could not be listed or read, or belongs to no run that could be told.
    """

    runs: list[Run]
    problems: list[str]


def discover(roots: Sequence[str], *, run_glob: str | None = None) -> Discovered:
    """Find the runs below roots.

    Args:
        roots: Local directories, files, archives, or URLs.
        run_glob: Pattern of paths relative to a root, `**` for any number of folders: each match is a run, whatever
            it holds. None: runs are told by what folders hold.

    Raises:
        RunError: A root does not exist, cannot be listed, or holds nothing that could be a run.
    """
    runs: list[Run] = []
    problems: list[str] = []
    trees = tree.listed(roots)
    # A file that is named beside the folder it lies in is found there; one that is no run's there is one of its own.
    for one in sorted(trees, key=lambda one: one.is_file):
        if one.is_file and _is_found(one, runs):
            continue
        units = Search(one).units() if run_glob is None else _matches(one, run_glob)
        problems += one.problems
        if not units and not one.is_covered:
            raise RunError(_nothing(one, run_glob))
        runs += [_run(one, unit) for unit in units]
    if not runs:
        raise RunError(_nothing(trees[0], run_glob))
    return Discovered(sorted(_unique(runs), key=lambda run: run.name), problems)


def _is_found(one: Tree, runs: Sequence[Run]) -> bool:
    """Whether the file that a root is belongs to a run that was found below another root."""
    folders: dict[str, str] = {}

    def real(path: str) -> str:
        folder, name = os.path.split(path)
        if folder not in folders:
            folders[folder] = folder if remote.is_url(path) else os.path.realpath(folder)
        return f"{folders[folder]}/{name}"

    path = real(next(iter(one.top.below())).path)
    return any(real(file.path) == path for run in runs for file in run.files)


def _nothing(one: Tree, run_glob: str | None) -> str:
    count = sum(1 for _ in one.top.below())
    if run_glob is not None:
        return (
            f"{one.root}: nothing below it matches --run-glob {run_glob!r}; a pattern is relative to the root, "
            "and `**` stands for any number of folders"
        )
    problems = f" ({'; '.join(one.problems[:_SHOWN])})" if one.problems else ""
    return (
        f"{one.root}: {count:,} files are below it, and none is anything that roundk reads{problems}; name a directory "
        "with run directories, Flight Recorder dumps or logs, or say with --run-glob what a run is (docs/inputs.md)"
    )


def _unique(runs: list[Run]) -> list[Run]:
    """The runs, each once and under a name of its own."""
    once = list({run.paths: run for run in runs}.values())
    for more in (tree.base, lambda root: root.rstrip("/")):
        names: dict[str, set[str]] = {}
        for run in once:
            names.setdefault(run.name, set()).add(run.root)
        once = [replace(run, name=f"{more(run.root)}/{run.name}") if len(names[run.name]) > 1 else run for run in once]
    seen: dict[str, int] = {}
    named = []
    for run in sorted(once, key=lambda run: (run.name, run.paths)):
        seen[run.name] = seen.get(run.name, 0) + 1
        named.append(run if seen[run.name] == 1 else replace(run, name=f"{run.name}#{seen[run.name]}"))
    return named


def _matches(one: Tree, run_glob: str) -> list[Unit]:
    """The outermost folders and files whose path matches."""
    matcher = _glob(run_glob.strip("/").removeprefix("./"))
    found: list[Unit] = []

    def look(folder: Folder) -> None:
        for name, file in sorted(folder.files.items()):
            path = f"{folder.name}/{name}".lstrip("/")
            if matcher(path):
                found.append(Unit(path, [file.path], [file], told=jobnames.of_file(name)))
        for name in sorted(folder.folders):
            child = folder.folders[name]
            if matcher(child.name):
                found.append(_matched(child, folder.basename or tree.base(one.root)))
            else:
                look(child)

    if one.is_file:
        file = next(iter(one.top.below()))
        return [Unit(file.path.rsplit("/", 1)[-1], [file.path], [file])]
    look(one.top)
    return found


def _matched(folder: Folder, above: str) -> Unit:
    told = jobnames.of_folder(folder.basename)
    if told.job is None and told.attempt is not None:
        told = replace(told, job=jobnames.of_attempts(above))
    return Unit(folder.name, paths_of(folder), list(folder.below()), told=told)


def _glob(pattern: str) -> Callable[[str], bool]:
    parts = [
        r"(?:[^/]+/)*" if part == "**/" else r".*" if part == "**" else r"[^/]*" if part == "*" else r"[^/]"
        if part == "?" else part.replace("[!", "[^") if part.startswith("[") else re.escape(part)
        for part in re.findall(r"\*\*/|\*\*|\*|\?|\[!?[^\]/]+\]|[^*?\[]+|\[", pattern)
    ]  # fmt: skip
    try:
        compiled = re.compile("".join(parts), re.DOTALL)
    except re.error as error:
        raise RunError(f"--run-glob {pattern!r}: not a pattern: {error}") from error
    return lambda path: compiled.fullmatch(path) is not None


def _run(one: Tree, unit: Unit) -> Run:
    """The run that a unit is."""
    return Run(
        name=unit.name or tree.base(one.root),
        root=one.root,
        paths=tuple(unit.paths),
        files=tuple(sorted(unit.files, key=lambda file: file.path)),
        job=unit.told.job,
        attempt=unit.told.attempt,
        has_others=any(tree.is_within(batch, path) for batch in one.batches for path in unit.paths),
    )
