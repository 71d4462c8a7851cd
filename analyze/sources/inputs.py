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
import stat
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Final, cast

import pyarrow as pa

from roundk.analyze.sources import rundir
from roundk.analyze.trace import Unreadable
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
        return self.path.open("rb") if self.decompress is None else self.decompress(self.path)

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
        numbers = re.findall(r"\d+", item.basename)
        return int(numbers[-1]) if numbers else None


@dataclass
class Found:
    """What is there.

    Attributes:
        root: What paths in the report are relative to.
        inputs: The files outside of run directories, and those inside that other sources than ours read.
        runs: Run directories of our own recorder, each with what it was found below.
        unreadable: What cannot be read.
    """

    root: pathlib.Path
    inputs: list[Input] = field(default_factory=list)
    runs: dict[pathlib.Path, pathlib.Path] = field(default_factory=dict)
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
    if os.path.lexists(path):
        return [path]
    # Of the user's own pattern, which may be absolute: pathlib's glob wants a folder to start from.
    matches = sorted(glob.glob(name)) or sorted(glob.glob(glob.escape(name) + "*"))  # noqa: PTH207
    if not matches:
        raise RunError(f"{name}: there is no such file or directory, and nothing whose path begins so")
    return [pathlib.Path(match) for match in matches]


def _root(paths: list[pathlib.Path]) -> pathlib.Path:
    if len(paths) == 1:
        return paths[0] if paths[0].is_dir() else paths[0].parent
    if not paths:
        return pathlib.Path()
    try:
        return pathlib.Path(os.path.commonpath([path if path.is_dir() else path.parent for path in paths]))
    except ValueError:  # absolute and relative ones
        return pathlib.Path(os.path.commonpath([path.absolute().parent for path in paths]))


class _Walk:
    """Goes through the paths that were named."""

    def __init__(self, found: Found, scratch: pathlib.Path) -> None:
        self._found = found
        self._scratch = scratch
        self._are_runs: dict[pathlib.Path, bool] = {}

    def take(self, path: pathlib.Path) -> None:
        for run in rundir.find(path, self._are_runs):
            self._found.runs.setdefault(run, path)
        inside = [run for run in self._found.runs if path != run and path.is_relative_to(run)]
        if path.is_dir():
            self._folder(path)
        elif not inside:
            self._file(path, self._name(path))

    def _name(self, path: pathlib.Path) -> str:
        root = self._found.root
        for one, base in ((path, root), (path.absolute(), root.absolute())):
            if one != base and one.is_relative_to(base):
                return one.relative_to(base).as_posix()
        return path.as_posix()

    def _folder(self, folder: pathlib.Path) -> None:
        def failed(error: OSError) -> None:
            self._refuse(self._name(pathlib.Path(error.filename)), error)

        runs = list(self._found.runs)
        for place, folders, files in os.walk(folder, onerror=failed):
            folders.sort()
            in_run = any(pathlib.Path(place).is_relative_to(run) for run in runs)
            for file in sorted(files):
                path = pathlib.Path(place, file)
                if not in_run:
                    self._file(path, self._name(path))
                elif foreign := _IN_RUN.fullmatch(file):
                    rank = foreign["rank"]
                    self._found.inputs.append(Input(self._name(path), path, rank=int(rank) if rank else None))
                if len(self._found.inputs) > _MOST:
                    raise RunError(f"{folder}: more than {_MOST:,} files are here; name the directory of one job")

    def _file(self, path: pathlib.Path, name: str) -> None:
        try:
            if not stat.S_ISREG(path.stat().st_mode):
                self._found.unreadable.append(Unreadable(name, "it is not a regular file"))
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
        folder = self._scratch / f"{len(self._found.inputs)}-{len(self._found.unreadable)}"
        folder.mkdir()
        try:
            for number, (member, stream) in enumerate(members):
                path, name = folder / str(number), f"{item.name}!{member}"
                with stream, path.open("wb") as file:
                    while chunk := stream.read(_CHUNK):
                        room.take(len(chunk))
                        file.write(chunk)
                inner = _plain(Input(name, path))
                if _is_archive(inner):
                    self._refuse(name, OSError("an archive inside an archive; unpack it and name what is in it"))
                else:
                    self._found.inputs.append(inner)
        except _UNREADABLE_ARCHIVE as error:
            self._refuse(item.name, error)

    def _refuse(self, name: str, error: BaseException) -> None:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
        self._found.unreadable.append(Unreadable(name, why))


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
    return cast("IO[bytes]", pa.input_stream(path, compression="zstd"))


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
