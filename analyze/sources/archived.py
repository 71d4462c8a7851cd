"""Run directories in archives: which of the unpacked files are of one, and these put under their own names.

An archive's names are not trusted: nothing gets a place outside of the given folder.
"""

from __future__ import annotations

import fnmatch
import pathlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from roundk.tracer import reader

_HOST_FILE: Final = re.compile("|".join(fnmatch.translate(pattern) for pattern in reader.HOST_FILES))
_Place = tuple[str, ...]
"""Parts of a path in an archive."""


@dataclass
class Packed:
    """A run directory of an archive.

    Attributes:
        name: Its path in the archive; empty: the archive is the run directory.
        path: Where its files lie now.
        files: Where its files lie, with their names in the archive.
        problems: Names of those that could not be put there, and why.
    """

    name: str
    path: pathlib.Path
    files: dict[pathlib.Path, str] = field(default_factory=dict)
    problems: dict[str, OSError] = field(default_factory=dict)


def runs(members: Sequence[tuple[str, pathlib.Path]], folder: pathlib.Path) -> list[Packed]:
    """The run directories that an archive holds.

    Args:
        members: Names of its files in the archive, and where they are unpacked; those of a run are moved.
        folder: Where to; it is made.
    """
    places = {name: place for name, _ in members if (place := _place(name))}
    roots = _roots({places[name]: path for name, path in members if name in places})
    found: dict[_Place, Packed] = {}
    for name, path in members:
        place = places.get(name, ())
        root = next((place[:depth] for depth in range(len(place)) if place[:depth] in roots), None)
        if root is None:
            continue
        run = found.setdefault(root, Packed("/".join(root), folder / str(len(found))))
        target = run.path.joinpath(*place[len(root) :])
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)  # of several with one name the last one counts, as where they are unpacked
        except OSError as error:  # a name that is too long here, or of a file and of a folder
            run.problems[name] = error
        else:
            run.files[target] = name
    return list(found.values())


def _place(name: str) -> _Place | None:
    """Where a member lies in the archive, which may say so from the root on; None: that can't be told."""
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    return None if ".." in parts or "\0" in name else parts


def _roots(own: dict[_Place, pathlib.Path]) -> set[_Place]:
    """The folders that are run directories, as `reader.is_run` tells it of those on a disk."""
    told = {place[:-1]: reader.says_run(path) for place, path in own.items() if place[-1] == reader.RUN_FILE}
    by_hosts = {place[:-2] for place in own if len(place) > 1 and _is_host_file(place)}
    return {root for root, is_run in told.items() if is_run} | {root for root in by_hosts if told.get(root) is None}


def _is_host_file(place: _Place) -> bool:
    return _HOST_FILE.fullmatch(place[-1]) is not None and not place[-2].startswith(".")
