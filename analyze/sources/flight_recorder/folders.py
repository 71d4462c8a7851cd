"""Dumps of several runs in several folders: which files belong together, and which run is looked at.

One run's dumps may lie in a folder, or in one folder per host or per rank. Where a rank has dumps in two folders, these
are of two runs (or two jobs), told apart by the part of their path in which they differ first: `attempt0/node1` and
`attempt1/node1`, `node1/attempt0` and `node1/attempt1`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_WHOLE: Final = 0.5
"""Share of the ranks of the largest folder from which another one may be a run of its own, and not a stray file."""


@dataclass(frozen=True)
class Folder:
    """Dumps that belong together.

    Attributes:
        where: The folder, as a name for it; `.` for the one that was named itself.
        names: Its files.
        ranks: Their ranks.
        newest: The newest time in them.
    """

    where: str
    names: frozenset[str]
    ranks: frozenset[int]
    newest: int


def by_folder(dumps: Sequence[tuple[int, str, int]]) -> list[Folder]:
    """The dumps (rank, file, newest time) by run; one folder of all where no rank has dumps in two folders."""
    paths = [_path(name) for _, name, _ in dumps]
    homes: dict[int, set[tuple[str, ...]]] = {}
    for (rank, _, _), path in zip(dumps, paths, strict=True):
        homes.setdefault(rank, set()).add(path)
    levels = [_common(rank_paths) for rank_paths in homes.values() if len(rank_paths) > 1]
    if not levels:
        return [_folder(".", dumps)] if dumps else []
    level = min(levels)
    found: dict[str, list[tuple[int, str, int]]] = {}
    for dump, path in zip(dumps, paths, strict=True):
        found.setdefault(path[level] if len(path) > level else ".", []).append(dump)
    return [_folder(where, members) for where, members in found.items()]


def chosen(folders: Sequence[Folder]) -> list[Folder]:
    """The newest run, and whatever has none of its ranks: a run may have a folder per host."""
    if not folders:
        return []
    least = _WHOLE * max(len(folder.ranks) for folder in folders)
    runs = [folder for folder in folders if len(folder.ranks) >= least]
    first = max(runs, key=lambda folder: (folder.newest, len(folder.ranks)))
    latest: dict[int, int] = {}
    for folder in folders:
        for rank in folder.ranks:
            latest[rank] = max(latest.get(rank, folder.newest), folder.newest)
    taken, ranks = [first], set(first.ranks)
    for folder in sorted(folders, key=lambda folder: (-folder.newest, folder.where)):
        # Of other hosts' folders, too, the newest one: an older one is of the run that is left out.
        is_last = all(latest[rank] <= folder.newest for rank in folder.ranks)
        if folder is not first and is_last and ranks.isdisjoint(folder.ranks):
            taken.append(folder)
            ranks |= folder.ranks
    return taken


def worlds(folders: Sequence[Folder], sizes: Mapping[str, int]) -> list[tuple[int, str]]:
    """The sizes of the jobs that folders are of, each with the folder that tells it first; none where all agree.

    Args:
        folders: The folders.
        sizes: Members of the default group by file.
    """
    told: dict[int, str] = {}
    for folder in folders:
        for name in sorted(folder.names):
            if name in sizes:
                told.setdefault(sizes[name], folder.where)
    return sorted(told.items()) if len(told) > 1 else []


def _path(name: str) -> tuple[str, ...]:
    """The folders in which a file lies, archives among them."""
    return tuple(name.replace("!", "/").split("/")[:-1])


def _common(paths: set[tuple[str, ...]]) -> int:
    """How many folders some paths have in common, from the first."""
    first, last = min(paths), max(paths)
    return next((k for k, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))


def _folder(where: str, dumps: Sequence[tuple[int, str, int]]) -> Folder:
    ranks = frozenset(rank for rank, _, _ in dumps)
    return Folder(where, frozenset(name for _, name, _ in dumps), ranks, max(newest for _, _, newest in dumps))
