"""What a file is to a batch, by its name where that is enough, else by what the sources recognise in its beginning."""

from __future__ import annotations

import bz2
import enum
import functools
import io
import lzma
import pathlib
import re
import zlib
from typing import Final

import pyarrow as pa

from roundk.analyze.batch import jobnames, remote
from roundk.analyze.batch.tree import Folder, Tree
from roundk.analyze.sources import SOURCES, flight_recorder, host, inputs, joblog, ncclx, table
from roundk.analyze.sources.inputs import Input


class Kind(enum.Enum):
    """What a file is."""

    DUMP = "a rank's dump"
    LOG = "a log"
    OTHER = "other evidence"
    ARCHIVE = "an archive"
    NOTHING = "nothing that is read"


ARCHIVES: Final = re.compile(r".*\.(tar|tgz|tbz2?|txz|tzst|zip|tar\.(gz|bz2|xz|zst))", re.IGNORECASE)
"""Names of archives, whole or damaged."""
_NOTHING: Final = re.compile(
    r".*\.(pth|ckpt|safetensors|bin|npy|npz|h5|hdf5|onnx|engine|whl|jar|so|a|o|pyc|exe|png|jpe?g|gif|svg|pdf|mp4|"
    r"py|pyx|sh|bash|zsh|md|rst|ya?ml|toml|ini|cfg|conf|ipynb|c|cc|cpp|cu|cuh|h|hpp|html?|css|js|ts|tex|lock|sif|sqsh|"
    r"model|vocab|spm|idx|lst|patch|diff|sbatch|slurm|pbs|nsys-rep|qdrep|sqlite|db|distcp|metadata|part)|"
    r"events\.out\.tfevents\..*|core(\.\d+)?|(readme|license|licence|makefile|dockerfile|notes?|todo|changelog)(\.txt)?",
    re.IGNORECASE,
)
"""Checkpoints, code, documents, settings: other tools' files, some of which are text as logs are."""
_LOGS: Final = re.compile(
    r".*\.(log|out|err|stdout|stderr)(\.\d{1,3})?(\.(gz|bz2|xz|zst))?|.*\.[oe]\d{2,10}|(stdout|stderr|log|dmesg)(\.txt)?",
    re.IGNORECASE,
)
_JOB: Final = re.compile(
    rb"NCCL (?:INFO|WARN)|ProcessGroup(?:NCCL|Gloo)|Traceback \(most recent call last\)|torch\.distributed|torchrun|"
    rb"\[rank\d+\]|slurmstepd|srun: |NVRM: Xid|[Ww]atchdog|oom-kill|Out of memory|RuntimeError|CUDA error|"
    rb"\b(?:loss|step|iteration|epoch)\b[^\n]{0,80}\d|\[(?:INFO|WARNING|ERROR)\]|\b(?:INFO|WARNING|ERROR)\b[ :\]]"
)
"""What tells a job's log without a log's name from somebody's notes: enough of it is in the first 64 KiB."""
_DUMP: Final = re.compile(
    rb"pg_config|pg_status|collective_seq_id|profiling_name|comm_lib_version|nccl_version|nccl_comm"
)
"""Keys of a Flight Recorder dump, one of which is in its beginning; any other pickle holds a data set, or a model."""
_DUMPS: Final = re.compile(r"trace|dump|rank|flight|(?:^|[-_.])fr(?:[-_.]|$)", re.IGNORECASE)
"""Names of dumps, be they damaged."""
_TRIED: Final = 3
"""Files of one pattern whose beginning is read, until one is recognised: of thousands of dumps some may be damaged."""


class Kinds:
    """Tells the kinds of the files of one tree."""

    def __init__(self, tree: Tree) -> None:
        """Begin with one tree; what cannot be read is added to its problems."""
        self._tree = tree
        self._remembered: dict[str, Kind] = {}

    def of(self, folder: Folder) -> dict[str, Kind]:
        """The kind of each file of a folder, by the file's name."""
        found: dict[str, Kind] = {}
        patterns: dict[str, list[str]] = {}
        for name in sorted(folder.files):
            kind = by_name(name)
            if kind is not None:
                found[name] = kind
            else:
                patterns.setdefault(jobnames.pattern(name), []).append(name)
        for pattern, names in patterns.items():
            kind = self._alike(folder, pattern, names)
            found.update(dict.fromkeys(names, kind))
        return found

    def _alike(self, folder: Folder, pattern: str, names: list[str]) -> Kind:
        # A request costs tens of milliseconds: in a store, folders whose names differ in numbers count as alike too.
        key = f"{jobnames.pattern(folder.name)}/{pattern}"
        if self._tree.store is not None and key in self._remembered:
            return self._remembered[key]
        full = [name for name in names if folder.files[name].size]
        spread = [full[at * (len(full) - 1) // (_TRIED - 1)] for at in range(_TRIED)] if full else []
        kind = Kind.NOTHING
        for name in dict.fromkeys(spread):
            kind = self._read(folder, name)
            if kind is not Kind.NOTHING:
                break
        self._remembered[key] = kind
        return kind

    def _read(self, folder: Folder, name: str) -> Kind:
        file = folder.files[name]
        try:
            head = self._tree.head(file, inputs.HEAD)
        except remote.errors() as error:
            self._tree.problems.append(f"{file.path}: it cannot be read: {remote.said(error)}")
            return Kind.NOTHING
        path = None if self._tree.store is not None else pathlib.Path(file.path)
        return by_content(f"{folder.name}/{name}".lstrip("/"), head, path)


@functools.lru_cache(1 << 16)
def by_name(name: str) -> Kind | None:
    """The kind of a file whose name alone tells; None: its content must be seen."""
    if name.startswith("."):
        return Kind.NOTHING
    if ARCHIVES.fullmatch(name):
        return Kind.ARCHIVE
    if jobnames.is_dump(name):
        return Kind.DUMP
    if _LOGS.fullmatch(name):
        return Kind.LOG
    if _NOTHING.fullmatch(name):
        return Kind.NOTHING
    return None


def by_content(name: str, head: bytes, path: pathlib.Path | None) -> Kind:
    """The kind of a file by its first bytes.

    Args:
        name: Path below the root: the place of a file of a copied /sys is its form.
        head: Its first bytes as they lie, compressed or not.
        path: The file, for forms that are recognised by their end; None: it is out of reach.
    """
    plain = _decompressed(head)
    if plain[257:262] == b"ustar":
        return Kind.ARCHIVE
    if plain.startswith(b"PK\x03\x04"):
        return Kind.NOTHING  # a checkpoint, a NumPy archive: what is an archive of traces is called one
    if plain.startswith((b"PAR1", b"ARROW1")):
        is_table = path is not None and table.recognises(Input(name, path))
        return Kind.OTHER if is_table else Kind.NOTHING
    return _by_source(Input(name, pathlib.Path(name), lambda _: io.BytesIO(plain)))


def _by_source(item: Input) -> Kind:
    if joblog.recognises(item) and _JOB.search(item.head):
        return Kind.LOG  # before the others, which look for much: it may be one of theirs too, and that is no matter
    if host.sysfs.place(item.name) is not None:
        return Kind.OTHER
    first = next((source for source in SOURCES if source.recognises(item)), None)
    if first is flight_recorder and item.start[:1] == b"\x80" and not _DUMP.search(item.head):
        return Kind.DUMP if _DUMPS.search(item.basename) else Kind.NOTHING
    if first in (flight_recorder, ncclx):
        return Kind.DUMP
    return Kind.NOTHING if first in (None, joblog) else Kind.OTHER


def _decompressed(head: bytes) -> bytes:
    """The plain beginning of a file, from its beginning as it lies; damaged: what there is."""
    try:
        if head.startswith(b"\x1f\x8b"):
            return zlib.decompressobj(wbits=31).decompress(head, inputs.HEAD)
        if head.startswith(b"BZh"):
            return bz2.BZ2Decompressor().decompress(head, inputs.HEAD)
        if head.startswith(b"\xfd7zXZ\x00"):
            return lzma.LZMADecompressor().decompress(head, inputs.HEAD)
        if head.startswith(b"\x28\xb5\x2f\xfd"):
            stream = pa.input_stream(pa.BufferReader(head), compression="zstd")
            return bytes(stream.read(inputs.START))
    except (OSError, EOFError, zlib.error, lzma.LZMAError):
        return b""
    return head
