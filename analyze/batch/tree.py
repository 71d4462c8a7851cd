"""What lies below a root, listed once: a local directory with its links, or all objects below a URL."""

from __future__ import annotations

import os
import pathlib
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from roundk.analyze.batch import remote
from roundk.analyze.batch.run import File
from roundk.tracer.errors import RunError

DEEPEST: Final = 100
"""Levels of folders below a root; trees of runs have ten."""
SKIPPED: Final = frozenset({"__pycache__", "node_modules", "lost+found", "site-packages"})
"""Folders that hold no runs, and often very many files; hidden ones beside."""
OF_A_BATCH: Final = "roundk-batch.lock"
"""Stands in the folder that a batch writes its table to."""
TABLE: Final = "runs.parquet"
DONE: Final = "done"
_KEPT: Final = re.compile(r".*-[0-9a-f]{12}\.json")
"""Names of the files in `done/`; the folder may have been there before, with somebody's runs."""
_PART: Final = ".part"
ENTERED: Final = frozenset({".cache"})
"""Hidden folders that are looked into: torch dumps into `~/.cache/torch` unless it is told where."""


@dataclass
class Folder:
    """One folder.

    Attributes:
        path: Local path, or URL without a slash at its end.
        name: Path relative to the root, `/` between parts; empty: the root.
        files: Its own files by their names.
        folders: Its folders by their names.
        is_linked: Whether a symbolic link leads to it, which reading its parent does not follow.
    """

    path: str
    name: str
    files: dict[str, File] = field(default_factory=dict)
    folders: dict[str, Folder] = field(default_factory=dict)
    is_linked: bool = False

    @property
    def basename(self) -> str:
        """Last part of its name."""
        return self.name.rsplit("/", 1)[-1]

    def below(self) -> Iterable[File]:
        """Its files and those of all folders below, by name."""
        for name in sorted(self.files):
            yield self.files[name]
        for name in sorted(self.folders):
            yield from self.folders[name].below()


@dataclass
class Tree:
    """What is below one root.

    Attributes:
        root: The root as it was named.
        top: Its folder; of a root that is one file: a folder with that file alone.
        is_file: Whether the root is one file.
        store: Reads it, where the root is a URL.
        problems: What could not be listed.
        is_covered: Whether some of it is listed below another root already.
        batches: Folders that a batch wrote to.
        patience: How long the store may go without an answer.
    """

    root: str
    top: Folder
    is_file: bool = False
    store: remote.Store | None = None
    problems: list[str] = field(default_factory=list)
    is_covered: bool = False
    batches: list[str] = field(default_factory=list)
    patience: remote.Patience = field(default_factory=remote.Patience)

    def head(self, file: File, size: int) -> bytes:
        """The first bytes of a file.

        Raises:
            RunError: The store does not answer, or throttles: what is not seen now might be a run.
            One of `remote.errors()`: it cannot be read.
        """
        if self.store is not None:
            store = self.store
            try:
                return remote.retried(lambda: store.head(file.path, size), self.patience)
            except remote.errors() as error:
                if remote.passes(error):
                    raise RunError(f"{file.path}: {remote.BUSY.format(why=remote.said(error))}") from error
                raise
        with pathlib.Path(file.path).open("rb") as stream:
            return stream.read(size)


def listed(roots: Iterable[str]) -> list[Tree]:
    """List what is below each root; where one lies in another, below the outer one.

    Raises:
        RunError: A root does not exist, cannot be listed, or holds nothing.
    """
    names = list(dict.fromkeys(roots))
    urls = [name for name in names if remote.is_url(name)]
    local = {name: os.path.realpath(remote.local(name)) for name in names if not remote.is_url(name)}
    walk = _Walk(list(local.values()))
    # The outer one first, so that the order in which they were named does not matter.
    trees = [walk.tree(name) for name in sorted(local, key=lambda name: local[name].rstrip("/").count("/"))]
    walk.follow()
    trees += [_remote(url) for url in urls if not any(_has(other, url) for other in urls)]
    for tree in trees:
        _without_batches(tree, tree.top)
        if next(iter(tree.top.below()), None) is None and not tree.is_covered:
            why = f": {'; '.join(tree.problems[:3])}" if tree.problems else ""
            raise RunError(f"{tree.root}: no file is below it{why}; name a directory with runs, an archive, or a URL")
    return trees


def base(root: str) -> str:
    """The last part of what a root is called."""
    path = remote.local(root).rstrip("/")
    if not remote.is_url(root):
        path = str(pathlib.Path(path or "/").resolve())
    return path.rsplit("/", 1)[-1] or "root"


class _Walk:
    """Lists local roots; a folder that two ways lead to is listed once, and by its own name rather than by a link."""

    def __init__(self, roots: list[str]) -> None:
        self._roots = roots
        self._seen: dict[tuple[int, int], Tree] = {}
        self._links: list[tuple[Tree, Folder, str, int]] = []

    def tree(self, root: str) -> Tree:
        path = remote.local(root)
        try:
            status = pathlib.Path(path).stat()
        except OSError as error:
            raise RunError(f"{root}: {remote.said(error)}; name a directory with runs below it") from error
        if stat.S_ISREG(status.st_mode):
            name = pathlib.Path(path).name
            file = File(path, status.st_size, str(status.st_mtime_ns))
            return Tree(root, Folder(str(pathlib.Path(path).parent), "", {name: file}), is_file=True)
        tree = Tree(root, Folder(path.rstrip("/") or "/", ""))
        self._folder(tree, tree.top, 0)
        return tree

    def follow(self) -> None:
        """Follow the links to folders that lie outside of all roots."""
        while self._links:
            tree, parent, name, depth = self._links.pop(0)
            path = f"{parent.path}/{name}"
            target = os.path.realpath(path)
            # Below a root it is found by its own name; above one it would bring in everything beside.
            if not any(is_within(target, root) or is_within(root, target) for root in self._roots):
                self._into(tree, parent, name, depth, is_linked=True)

    def _folder(self, tree: Tree, folder: Folder, depth: int) -> None:
        try:
            status = pathlib.Path(folder.path).stat()
            identity = (status.st_dev, status.st_ino)
            if identity in self._seen:
                tree.is_covered = tree.is_covered or self._seen[identity] is not tree
                return
            self._seen[identity] = tree
            with os.scandir(folder.path) as entries:
                for entry in entries:
                    self._entry(tree, folder, entry, depth)
        except OSError as error:
            tree.problems.append(f"{folder.path}: it cannot be listed: {remote.said(error)}")

    def _entry(self, tree: Tree, folder: Folder, entry: os.DirEntry[str], depth: int) -> None:
        try:
            if entry.is_dir():
                if _is_skipped(entry.name):
                    return
                if entry.is_symlink():
                    self._links.append((tree, folder, entry.name, depth))
                else:
                    self._into(tree, folder, entry.name, depth)
            elif entry.is_file():
                status = entry.stat()
                folder.files[entry.name] = File(entry.path, status.st_size, str(status.st_mtime_ns))
        except OSError as error:  # it went meanwhile, or its link leads in a circle
            tree.problems.append(f"{entry.path}: {remote.said(error)}")

    def _into(self, tree: Tree, parent: Folder, name: str, depth: int, *, is_linked: bool = False) -> None:
        path = f"{parent.path.rstrip('/')}/{name}"
        if depth >= DEEPEST:
            tree.problems.append(f"{path}: more than {DEEPEST} folders deep; it is left out")
            return
        child = Folder(path, f"{parent.name}/{name}".lstrip("/"), is_linked=is_linked)
        self._folder(tree, child, depth + 1)
        if child.files or child.folders:
            parent.folders[name] = child


def _without_batches(tree: Tree, folder: Folder) -> None:
    """Leave out what an earlier batch wrote: it is no run, and would make a changed one of what it lies in."""
    for name, child in list(folder.folders.items()):
        _without_batches(tree, child)
        if not child.files and not child.folders:
            del folder.folders[name]
    if OF_A_BATCH not in folder.files or tree.is_file:
        return
    tree.batches.append(folder.path)
    for name in (OF_A_BATCH, TABLE, f"{TABLE}{_PART}"):
        folder.files.pop(name, None)
    if (done := folder.folders.get(DONE)) is not None:
        done.files = {name: file for name, file in done.files.items() if not _KEPT.fullmatch(name.removesuffix(_PART))}
        if not done.files and not done.folders:
            del folder.folders[DONE]


def _has(outer: str, inner: str) -> bool:
    """Whether what is below one URL is listed below another."""
    below = inner.rstrip("/").removeprefix(outer.rstrip("/") + "/")
    return below != inner.rstrip("/") and not any(map(_is_skipped, below.split("/")))


def _is_skipped(name: str) -> bool:
    return (name.startswith(".") and name not in ENTERED) or name in SKIPPED


def is_within(path: str, folder: str) -> bool:
    """Whether a path is a folder, or lies below it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _remote(root: str) -> Tree:
    store = remote.Store(root)
    tree = Tree(root, Folder(store.url, ""), store=store)
    try:
        for name, file in store.listed(tree.patience):
            *folders, last = name.split("/")
            if any(_is_skipped(one) for one in folders):
                continue
            if len(folders) > DEEPEST:
                tree.problems.append(f"{file.path}: more than {DEEPEST} folders deep; it is left out")
                continue
            folder = tree.top
            for one in folders:
                below = f"{folder.name}/{one}".lstrip("/")
                folder = folder.folders.setdefault(one, Folder(f"{tree.top.path}/{below}", below))
            folder.files[last] = file
            tree.is_file = tree.is_file or file.path.rstrip("/") == store.url
    except remote.errors(ValueError) as error:
        raise RunError(f"{root}: it cannot be listed: {_why(error)}") from error
    if tree.is_file:
        tree.top.path = tree.top.path.rsplit("/", 1)[0]
    return tree


def _why(error: BaseException) -> str:
    if isinstance(error, FileNotFoundError):
        return "there is no such bucket or folder; check the name, and AWS_ENDPOINT_URL for a store of your own"
    if isinstance(error, PermissionError):
        return f"access is denied ({remote.said(error)}); check the credentials in the environment"
    if remote.passes(error):
        return remote.BUSY.format(why=remote.said(error))
    return remote.said(error)
