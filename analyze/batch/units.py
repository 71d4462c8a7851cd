"""What is known to be of one run, and by what files and folders are told to be of one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from roundk.analyze.batch import jobnames
from roundk.analyze.batch.kinds import Kind
from roundk.analyze.batch.run import File
from roundk.analyze.batch.tree import Folder

TOGETHER_NS: Final = 600 * 10**9
"""The hosts of a job that fails write their last lines within the timeouts of each other; a later job under the same
rendezvous' id writes them at least its own run time later."""
_ARCHIVE: Final = re.compile(r"\.(tar|tgz|tbz2?|txz|tzst|zip)(\.\w+)?$", re.IGNORECASE)
_MOSTLY: Final = 0.5
"""Of the ranks of folders that are called as hosts are: fewer that two of them hold are left-overs of earlier runs."""


@dataclass
class Unit:
    """What is known to be of one run.

    Attributes:
        name: Path relative to the root.
        paths: Folders and files that make it up.
        files: All files below them that count.
        ranks: Ranks in the names of its dumps.
        has_dumps: Whether it has any dump, run directory or archive: more than logs.
        is_sealed: Whether it is a run directory, which says itself what is of it.
        told: Job and attempt that names inside it tell.
    """

    name: str
    paths: list[str]
    files: list[File]
    ranks: frozenset[int] = frozenset()
    has_dumps: bool = False
    is_sealed: bool = False
    told: jobnames.Told = field(default_factory=jobnames.Told)

    @property
    def basename(self) -> str:
        """Last part of its name."""
        return self.name.rsplit("/", 1)[-1]


def archive_stem(name: str) -> str:
    """The name of an archive without its suffixes."""
    return _ARCHIVE.sub("", name)


def paths_of(folder: Folder) -> list[str]:
    """The folder, and those below that links lead to, which reading it does not follow."""
    paths = [folder.path]
    stack = list(folder.folders.values())
    while stack:
        child = stack.pop()
        if child.is_linked:
            paths.append(child.path)
        stack += child.folders.values()
    return paths


def merged(name: str, parts: list[Unit]) -> Unit:
    """Units as one."""
    told = next((part.told for part in parts if part.told.job), None) or next(
        (part.told for part in parts if part.told.attempt is not None), jobnames.Told()
    )
    return Unit(
        name,
        list(dict.fromkeys(path for part in parts for path in part.paths)),
        list({file.path: file for part in parts for file in part.files}.values()),
        frozenset().union(*(part.ranks for part in parts)),
        any(part.has_dumps for part in parts),
        any(part.is_sealed for part in parts),
        told,
    )


def overlap(ranks: Iterable[frozenset[int]]) -> bool:
    """Whether a rank is in two of the sets."""
    seen: set[int] = set()
    for one in ranks:
        if seen & one:
            return True
        seen |= one
    return False


def own_units(folder: Folder, kinds: dict[str, Kind]) -> tuple[list[Unit], list[Unit]]:
    """A folder's own files as units of one run each, and those that belong to one of several runs, untold to which."""
    dumps = _dumps(folder, [name for name, kind in kinds.items() if kind is Kind.DUMP])
    labels: dict[str | None, list[str]] = {}
    for name, kind in kinds.items():
        if kind in (Kind.LOG, Kind.OTHER):
            told = jobnames.of_file(name)
            label = told.label if kind is Kind.LOG or told.label in dumps else None
            stem = jobnames.stem(name)
            labels.setdefault(stem if stem in dumps else label, []).append(name)
    several = {label for label in [*dumps, *labels] if label is not None}
    if len(several) <= 1 and len(dumps) <= 1:
        names = [name for group in [*dumps.values(), *labels.values()] for name in group]
        unit = _unit(folder, folder.name, names, kinds)
        return ([unit] if names else []), []
    units, loose = [], []
    for label in sorted(several):
        names = [*dumps.get(label, []), *labels.get(label, [])]
        units.append(_unit(folder, f"{folder.name}/{label}".lstrip("/"), names, kinds))
    if None in dumps:
        names = dumps[None]
        found = jobnames.rank(names[0])
        prefix = re.sub(r"[-_.]*(rank)?[-_.]*$", "", found[0]) if found else names[0]
        units.append(_unit(folder, f"{folder.name}/{prefix or 'dumps'}".lstrip("/"), names, kinds))
    if None in labels:
        loose = [_unit(folder, folder.name, labels[None], kinds)]
    return units, loose


def _dumps(folder: Folder, names: list[str]) -> dict[str | None, list[str]]:
    """The dumps of a folder by what tells their runs apart; by nothing (None) where their ranks are different ones."""
    groups: dict[str | None, list[str]] = {}
    ranks: dict[str | None, set[int]] = {}
    for name in names:
        found = jobnames.rank(name)
        label = jobnames.of_dump(found[0]).label if found else None
        groups.setdefault(label, []).append(name)
        if found:
            ranks.setdefault(label, set()).add(found[1])
    if len(groups) == 1 or overlap(frozenset(one) for one in ranks.values()):
        return groups
    logged = {jobnames.of_file(name).job for name in folder.files}
    if all(label is not None and jobnames.of_dump(label).job in logged for label in groups):
        return groups
    return {None: names} if names else {}


def _unit(folder: Folder, name: str, names: list[str], kinds: dict[str, Kind]) -> Unit:
    files = [folder.files[one] for one in sorted(names)]
    dumps = [one for one in names if kinds[one] is Kind.DUMP]
    ranks = frozenset(found[1] for one in dumps if (found := jobnames.rank(one)))
    tells = [jobnames.of_file(one) for one in names if kinds[one] is not Kind.DUMP]
    by_dumps = {jobnames.of_dump(found[0]) for one in dumps if (found := jobnames.rank(one))}
    if len(by_dumps) == 1:  # else what differs is a host's or a process's number
        tells += by_dumps
    told = next((one for one in tells if one.job), None) or next(
        (one for one in tells if one.attempt is not None), jobnames.Told()
    )
    return Unit(name, [file.path for file in files], files, ranks, bool(dumps), told=told)


def of_one_run(
    folder: Folder, maybe: dict[str, Unit], mine: frozenset[int], *, has_dumps: bool, is_alone: bool
) -> bool:
    """Whether folders, called neither as runs nor as parts of one, are of one run: its hosts', or ranks'."""
    dumping = [unit for unit in maybe.values() if unit.has_dumps]
    named = all(jobnames.is_host(name) for name in maybe) or _are_local_ranks(folder, maybe)
    if not dumping:
        return named or has_dumps
    if len(maybe) == 1:
        return (named or not is_alone) and not (mine & dumping[0].ranks)
    known = [unit.ranks for unit in dumping if unit.ranks]
    if len(known) < len(dumping):
        return named
    held = [*known, mine] if mine else known
    if not overlap(held):
        return named or len(dumping) == len(maybe) or has_dumps
    every = frozenset().union(*held)
    twice = sum(len(one) for one in held) - len(every)
    return named and twice < _MOSTLY * len(every)


def _are_local_ranks(folder: Folder, maybe: dict[str, Unit]) -> bool:
    """Whether folders are called 0, 1, 2, ... as torchrun calls those of an attempt's ranks on one host."""
    if not all(name.isdecimal() for name in maybe):
        return False
    is_attempt = jobnames.of_folder(folder.basename).attempt is not None
    files = {name for one in maybe for name in folder.folders[one].files}
    return is_attempt or files <= {"stdout.log", "stderr.log", "error.json"}


def last_attempt(runs: list[Unit]) -> Unit | None:
    """The last of the attempts of one job that left logs; None: they are something else."""
    if any(run.has_dumps or run.told.attempt is None for run in runs) or len({run.told.job for run in runs}) != 1:
        return None
    return max(runs, key=lambda run: run.told.attempt or 0)


def at_one_time(units: list[Unit]) -> list[list[Unit]]:
    """Units that were written to until about the same time; each alone where that is not told."""
    groups: list[list[Unit]] = []
    for unit in sorted(units, key=_end_ns):
        if groups and 0 < _end_ns(unit) <= _end_ns(groups[-1][0]) + TOGETHER_NS:
            groups[-1].append(unit)
        else:
            groups.append([unit])
    return groups


def _end_ns(unit: Unit) -> int:
    """When the last of its files was written; 0: not told, as by a store."""
    return max((int(file.version) for file in unit.files if file.version.isdecimal()), default=0)
