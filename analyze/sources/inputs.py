"""What the user named, as files to read: directories, globs, prefixes, archives, compressed files, standard input.

Archives are unpacked into a scratch folder, within what its disk has to spare; a compressed file is read as a stream.
What a file is, the sources say by its first bytes.
"""

from __future__ import annotations

import bz2
import functools
import glob
import gzip
import lzma
import os
import pathlib
import re
import shutil
import signal
import stat
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Final, cast

import pyarrow as pa

from roundk.analyze.sources import archived, rundir
from roundk.analyze.trace import Unreadable
from roundk.tracer import files
from roundk.tracer.errors import RunError

HEAD: Final = 1 << 16
"""Bytes of an input that the sources are shown to recognise it by."""
START: Final = 512
"""Bytes that are enough to tell formats with a mark at their beginning; the header of a tar is as long."""
STANDARD_INPUT: Final = "-"

_CHUNK: Final = 1 << 20
_MOST: Final = 500_000
"""Files to look at; a directory with more is not one job's."""
_SUFFIXES: Final = re.compile(r"(\.(json|jsonl|pickle|pkl|pt|log|txt|out|err|gz|bz2|xz|zst))+$")
_TENSOR: Final = re.compile(r"/data/\d+$|\.npy$")
"""Source: torch/serialization.py, `_save`: the bytes of each storage are a record `data/<number>`."""
_ESCAPED: Final = re.compile(r"\\x[0-9a-f]{2}")
"""A byte that is no UTF-8, in a name (`roundk.tracer.files.name_of`)."""
_IN_RUN: Final = re.compile(r"rank-(?P<rank>\d+)-.*\.fr|.*\.log")
"""Files of a run directory (`roundk.tracer.rundir`) that hold what others write: torch's Flight Recorder, logs."""
DAMAGED: Final = (OSError, EOFError, zlib.error, lzma.LZMAError)
"""What reading a file, or decompressing it, raises."""
_UNREADABLE_ARCHIVE: Final = (*DAMAGED, tarfile.TarError, zipfile.BadZipFile, RuntimeError, NotImplementedError)
"""What unpacking raises; RuntimeError is zipfile's on a file with a password."""


@dataclass(frozen=True)
class Input:
    """One file to read, possibly out of an archive or compressed.

    Attributes:
        name: Its path relative to what the user named; of an archive's member `archive!member`.
        path: Where its bytes lie.
        decompress: Opens a compressed file as a stream of its plain bytes; None: it is not compressed.
        rank: Rank that it is of, where its place in a run directory says so.
    """

    name: str
    path: pathlib.Path
    decompress: Callable[[pathlib.Path], IO[bytes]] | None = None
    rank: int | None = None

    def open(self) -> IO[bytes]:
        """A stream of its plain bytes.

        Raises:
            OSError: it cannot be opened.
        """
        return files.opened(self.path) if self.decompress is None else self.decompress(self.path)

    @functools.cached_property
    def start(self) -> bytes:
        """Its first plain bytes, `START` at most: of thousands of dumps more need not be kept.

        Raises:
            OSError, EOFError, zlib.error, lzma.LZMAError: it cannot be read or decompressed; see `DAMAGED`.
        """
        with self.open() as stream:
            return stream.read(START)

    @functools.cached_property
    def head(self) -> bytes:
        """Its first plain bytes, `HEAD` at most.

        Raises:
            OSError, EOFError, zlib.error, lzma.LZMAError: it cannot be read or decompressed; see `DAMAGED`.
        """
        with self.open() as stream:
            return stream.read(HEAD)

    @property
    def size(self) -> int:
        """Bytes as it lies, compressed where it is."""
        return self.path.stat().st_size

    @property
    def basename(self) -> str:
        """Last part of the name, without the suffixes of formats and compressions."""
        return _SUFFIXES.sub("", self.name.replace("!", "/").rsplit("/", 1)[-1])


@dataclass(frozen=True)
class Hints:
    """What the user, or other inputs, say about the inputs.

    Attributes:
        rank_pattern: Finds the rank in an input's name, by its first group; None: the last integer of the base name.
        near_ns: A time at which the job ran, by what was read before, for logs whose lines have no year.
    """

    rank_pattern: re.Pattern[str] | None = None
    near_ns: int | None = None

    def rank(self, item: Input) -> int | None:
        """The rank that an input of one rank is of; None where nothing tells."""
        if item.rank is not None:
            return item.rank
        if self.rank_pattern is not None:
            found = self.rank_pattern.search(item.name)
            return int(found[1]) if found and re.fullmatch(r"[0-9]{1,9}", found[1] or "") else None
        numbers = re.findall(r"\d+", _ESCAPED.sub("", item.basename))
        return int(numbers[-1]) if numbers else None


@dataclass(frozen=True)
class RunPlace:
    """Where a run directory was found.

    Attributes:
        path: Where it is, as the user may name it.
        name: As that of an `Input`.
        below: What paths of its files begin with in the report.
        is_packed: It is unpacked from an archive.
    """

    path: str
    name: str
    below: str = ""
    is_packed: bool = False


@dataclass
class Found:
    """What is there.

    Attributes:
        root: What paths in the report are relative to.
        inputs: The files outside of run directories, and those inside that other sources than ours read.
        runs: Run directories of our own recorder, each with where it was found.
        unreadable: What cannot be read.
    """

    root: pathlib.Path
    inputs: list[Input] = field(default_factory=list)
    runs: dict[pathlib.Path, RunPlace] = field(default_factory=dict)
    unreadable: list[Unreadable] = field(default_factory=list)


def find(names: Sequence[str], scratch: pathlib.Path) -> Found:
    """Everything below what the user named.

    Args:
        names: Paths, globs, prefixes of paths, or `-`.
        scratch: An empty folder for what must be unpacked, to be removed when the inputs have been read.

    Raises:
        RunError: A name stands for nothing.
    """
    paths: dict[pathlib.Path, None] = {}
    spooled = None
    for name in names:
        if name == STANDARD_INPUT:
            spooled = scratch / "standard input"
            signal.siginterrupt(signal.SIGINT, True)  # polars' handler has it go on: Ctrl-C would wait for the writer
            with spooled.open("wb") as file:
                shutil.copyfileobj(sys.stdin.buffer, file, _CHUNK)
        else:
            paths.update(dict.fromkeys(_named(name)))
    found = Found(_root(list(paths)))
    walk = _Walk(found, scratch)
    for path in paths:
        walk.take(path)
    if spooled is not None:
        found.inputs.append(Input("standard input", spooled))
    return found


def _named(name: str) -> list[pathlib.Path]:
    path = pathlib.Path(name)
    try:
        path.lstat()
    except PermissionError as error:
        raise RunError(f"{name}: {error.strerror}") from None
    except OSError:
        pass
    else:
        return [path]
    # Of the user's own pattern, which may be absolute: pathlib's glob wants a folder to start from.
    matches = sorted(glob.glob(name)) or sorted(glob.glob(glob.escape(name) + "*"))  # noqa: PTH207
    if not matches and "://" in name:
        raise RunError(f"{name}: only `roundk batch` reads URLs; download what is there, and name the copy")
    if not matches:
        raise RunError(f"{name}: there is no such file or directory, and nothing whose path begins so")
    return [pathlib.Path(match) for match in matches]


def _root(paths: list[pathlib.Path]) -> pathlib.Path:
    if len(paths) == 1:
        return paths[0] if files.is_folder(paths[0]) else paths[0].parent
    if not paths:
        return pathlib.Path()
    try:
        return pathlib.Path(os.path.commonpath([path if files.is_folder(path) else path.parent for path in paths]))
    except ValueError:  # absolute and relative ones
        return pathlib.Path(os.path.commonpath([path.absolute().parent for path in paths]))


class _Walk:
    """Goes through the paths that were named."""

    def __init__(self, found: Found, scratch: pathlib.Path) -> None:
        self._found = found
        self._scratch = scratch
        self._are_runs: dict[pathlib.Path, bool] = {}
        self._real_runs: set[str] = set()
        self._is_unpacked = False

    def take(self, path: pathlib.Path) -> None:
        runs = rundir.find(path, self._are_runs)
        self._is_unpacked = bool(runs)  # an archive beside may be of the same
        for run in runs:
            below = run.relative_to(path).as_posix() + "/" if run != path and run.is_relative_to(path) else ""
            self._found.runs.setdefault(run, RunPlace(str(run), self._name(run), files.name_of(below)))
            self._real_runs.add(os.path.realpath(run))
        if files.is_folder(path):
            self._folder(path)
        elif not self._lies_in_run(path):
            self._file(path, self._name(path))

    def _lies_in_run(self, path: pathlib.Path) -> bool:
        if not self._real_runs:
            return False
        real = pathlib.Path(os.path.realpath(path))
        return any(real.is_relative_to(run) for run in self._real_runs)

    def _name(self, path: pathlib.Path) -> str:
        root = self._found.root
        for one, base in ((path, root), (path.absolute(), root.absolute())):
            if one != base and one.is_relative_to(base):
                return files.name_of(one.relative_to(base).as_posix())
        return files.name_of(path.as_posix())

    def _folder(self, folder: pathlib.Path) -> None:
        def failed(error: OSError) -> None:
            path = pathlib.Path(error.filename)
            if self._real_runs.isdisjoint(map(os.path.realpath, (path, path.parent))):  # the reader of those tells it
                self._refuse(self._name(path), error, "cannot be listed: ")

        for place, folders, names in os.walk(folder, onerror=failed):
            folders.sort()
            in_run = self._lies_in_run(pathlib.Path(place))
            for file in sorted(names):
                path = pathlib.Path(place, file)
                if not in_run:
                    self._file(path, self._name(path))
                else:
                    self._in_run(path, self._name(path))
                if len(self._found.inputs) > _MOST:
                    raise RunError(f"{folder}: more than {_MOST:,} files are here; name the directory of one job")

    def _file(self, path: pathlib.Path, name: str) -> None:
        try:
            if not self._is_regular(path, name):
                return
            item = _plain(Input(name, path))
            if _is_archive(item):
                self._archive(item)
            else:
                self._found.inputs.append(item)
        except _UNREADABLE_ARCHIVE as error:
            self._refuse(name, error)

    def _archive(self, item: Input) -> None:
        """Unpack an archive; what a cut one still gives is taken."""
        room = _Room(self._scratch)
        members = _zip_members(item) if zipfile.is_zipfile(item.path) else _tar_members(item)
        folder = pathlib.Path(tempfile.mkdtemp(dir=self._scratch))
        unpacked: list[tuple[str, pathlib.Path]] = []
        try:
            for number, (member, stream) in enumerate(members):
                path = folder / str(number)
                with stream, path.open("wb") as file:
                    while chunk := stream.read(_CHUNK):
                        room.take(len(chunk))
                        file.write(chunk)
                unpacked.append((member, path))
        except _UNREADABLE_ARCHIVE as error:
            self._refuse(item.name, error)
        runs = [] if self._is_unpacked else archived.runs(unpacked, folder / "runs")
        for run in runs:
            self._packed(item, run)
        for member, path in unpacked:
            if path.exists():  # else it is a run's
                self._member(f"{item.name}!{files.name_of(member)}", path)

    def _member(self, name: str, path: pathlib.Path) -> None:
        try:
            item = _plain(Input(name, path))
            if _is_archive(item):
                self._refuse(name, OSError("an archive inside an archive; unpack it and name what is in it"))
            else:
                self._found.inputs.append(item)
        except DAMAGED as error:
            self._refuse(name, error)

    def _packed(self, item: Input, run: archived.Packed) -> None:
        """Take a run directory that an archive holds."""
        inside = f"!{name}" if (name := files.name_of(run.name)) else ""
        below = f"{item.name}{inside}/" if inside else f"{item.name}!"
        self._found.runs[run.path] = RunPlace(f"{item.path}{inside}", item.name + inside, below, is_packed=True)
        for path, member in run.files.items():
            self._in_run(path, f"{item.name}!{files.name_of(member)}")
        for member, error in run.problems.items():
            self._refuse(f"{item.name}!{files.name_of(member)}", error)

    def _in_run(self, path: pathlib.Path, name: str) -> None:
        """Take a file of a run directory, if another source than ours reads it."""
        foreign = _IN_RUN.fullmatch(path.name)
        if foreign is None:
            return
        rank = foreign["rank"]
        try:
            if self._is_regular(path, name):
                self._found.inputs.append(Input(name, path, rank=int(rank) if rank else None))
        except OSError as error:
            self._refuse(name, error)

    def _is_regular(self, path: pathlib.Path, name: str) -> bool:
        is_regular = stat.S_ISREG(path.stat().st_mode)
        if not is_regular:
            self._found.unreadable.append(Unreadable(name, files.NOT_REGULAR))
        return is_regular

    def _refuse(self, name: str, error: BaseException, what: str = "") -> None:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
        self._found.unreadable.append(Unreadable(name, what + why))


class _Room:
    """What may be unpacked: half of what the disk has left, so that no archive fills it."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._left = shutil.disk_usage(folder).free // 2

    def take(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise OSError(
                "unpacked, it takes more than half of the free space; unpack it elsewhere and name the folder"
            )


def _gzip(path: pathlib.Path) -> IO[bytes]:
    return cast("IO[bytes]", gzip.open(path))


def _zstd(path: pathlib.Path) -> IO[bytes]:
    # Opened by Python: Arrow takes no path that is not UTF-8.
    return cast("IO[bytes]", pa.CompressedInputStream(files.opened(path), "zstd"))


_COMPRESSIONS: Final[dict[bytes, Callable[[pathlib.Path], IO[bytes]]]] = {
    b"\x1f\x8b": _gzip,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
    b"\x28\xb5\x2f\xfd": _zstd,
}


def _plain(item: Input) -> Input:
    """The same input, read through its decompression where it is compressed."""
    magic = item.start[:6]
    unpack = next((unpack for start, unpack in _COMPRESSIONS.items() if magic.startswith(start)), None)
    if unpack is None:
        return item
    unpacked = Input(item.name, item.path, unpack)
    with unpacked.open() as stream:
        stream.read(HEAD)  # damage shows here, where it is told as the file's
    return unpacked


def _is_archive(item: Input) -> bool:
    if item.start[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        return item.decompress is None and zipfile.is_zipfile(item.path)
    return item.start[257:262] == b"ustar"


def _tar_members(item: Input) -> Iterator[tuple[str, IO[bytes]]]:
    with item.open() as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isreg() else None
            if content is not None:
                yield member.name.removeprefix("./"), content


def _zip_members(item: Input) -> Iterator[tuple[str, IO[bytes]]]:
    """Members of a zip, but for the tensors of what torch.save and numpy.savez write as one."""
    with zipfile.ZipFile(item.path) as archive:
        for member in archive.infolist():
            if not member.is_dir() and _TENSOR.search(member.filename) is None:
                yield member.filename, archive.open(member)
