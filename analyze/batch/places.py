"""Where the files of a run are when it is analysed: those of a store are fetched, those of a folder of many gathered.

The analysis reads local files, and takes ranks and hosts from names: what is fetched keeps its path below the folder
of the run.
"""

from __future__ import annotations

import errno
import os
import pathlib
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from roundk.analyze.batch import remote
from roundk.analyze.batch.run import File, Run

AT_ONCE: Final = 16
"""Objects that are fetched at a time: each takes tens of milliseconds, nearly all of it waiting."""
SHARE: Final = 0.5
"""Of the free space what a run may take; archives among its files are unpacked beside."""


@dataclass(frozen=True)
class Fetched:
    """What there is to analyse.

    Attributes:
        paths: Local paths for `sources.load`; empty: nothing, and `problems` say why.
        problems: What of the run's files is not among them.
    """

    paths: tuple[str, ...]
    problems: tuple[str, ...] = ()


def fetched(run: Run, scratch: pathlib.Path) -> Fetched:
    """The local paths of a run.

    Args:
        run: The run.
        scratch: An empty folder, to be kept until the run has been analysed.

    Raises:
        RunError: A package that its URLs need is missing.
    """
    if any(remote.is_url(path) for path in run.paths):
        return _downloaded(run, scratch)
    if run.has_others or (len(run.paths) > 1 and not any(pathlib.Path(path).is_dir() for path in run.paths)):
        return _gathered(run, scratch)
    return Fetched(run.paths)


def _gathered(run: Run, scratch: pathlib.Path) -> Fetched:
    """A folder of links to the files of a run that are some of a folder's: thousands of names take long one by one."""
    folder, problems = scratch / "files", []
    for file, below in _below(run):
        path = folder / below
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(pathlib.Path(file.path).absolute())
        except OSError as error:
            problems.append(f"{file.path}: {remote.said(error)}")
    return Fetched((str(folder),), tuple(problems))


def _below(run: Run) -> Iterator[tuple[File, str]]:
    """The files with their paths below the folder that has all that the run is named by: those may say a host."""
    files = {file.path for file in run.files}
    folders = [path.rsplit("/", 1)[0] if path in files else path for path in run.paths]
    common = os.path.commonpath([_slashes(folder) + "/" for folder in folders])
    for file in run.files:
        yield file, os.path.relpath(_slashes(file.path), common)


def _slashes(path: str) -> str:
    """A path as commonpath wants it: of a URL without the double slash behind the scheme."""
    scheme, separator, rest = path.partition("://")
    return f"{scheme}/{rest}" if separator and remote.is_url(path) else path


def _downloaded(run: Run, scratch: pathlib.Path) -> Fetched:
    need = sum(file.size for file in run.files)
    free = shutil.disk_usage(scratch).free
    if need > SHARE * free:
        return Fetched((), (_no_room(run, need, free, scratch),))
    store = remote.Store(run.root)
    fetch = _Fetch(store)
    folder = scratch / "files"
    with ThreadPoolExecutor(AT_ONCE) as pool:
        told = list(pool.map(lambda one: fetch.one(one[0], folder / one[1]), _below(run)))
    problems = [problem for problem in told if problem is not None]
    if fetch.untried:
        problems.append(f"{run.root}: {fetch.untried:,} objects were not asked for: {fetch.why}")
    got = len(told) - len(problems) if not fetch.untried else sum(1 for _ in _files(folder))
    return Fetched((str(folder),) if got else (), tuple(problems))


def _files(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def _no_room(run: Run, need: int, free: int, scratch: pathlib.Path) -> str:
    return (
        f"{run.root}: the files of the run have {need:,} bytes, more than half of the {free:,} that are free on the "
        f"disk of {scratch}; set TMPDIR to a larger one"
    )


class _Fetch:
    """Fetches the objects of one run."""

    def __init__(self, store: remote.Store) -> None:
        self._store = store
        self._patience = remote.Patience()
        self.why = ""
        self.untried = 0

    def one(self, file: File, path: pathlib.Path) -> str | None:
        """Fetch an object; the problem, if there is one."""
        if self.why:
            self.untried += 1
            return None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            remote.retried(lambda: self._store.download(file.path, path), self._patience)
        except remote.errors() as error:
            if self._patience.is_over:
                self.why = remote.BUSY.format(why=remote.said(error))
            elif isinstance(error, OSError) and error.errno == errno.ENOSPC:
                self.why = "the disk is full"
            return f"{file.path}: {_why(error)}"
        return None


def _why(error: BaseException) -> str:
    if isinstance(error, FileNotFoundError):
        return "it was there when the runs were listed, and is gone"
    if isinstance(error, PermissionError):
        return f"access is denied: {remote.said(error)}"
    if remote.passes(error):
        return f"not to be had in {remote.TRIES} tries: {remote.said(error)}"
    return remote.said(error)
