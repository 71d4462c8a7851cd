"""One run among many: what it is called, which files are its own, which job and attempt it belongs to."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass


@dataclass(frozen=True)
class File:
    """A file or object of a run.

    Attributes:
        path: Local path, or URL (`s3://bucket/key`).
        size: Bytes.
        version: What changes when the content does: modification time in ns, or the store's ETag.
    """

    path: str
    size: int
    version: str


@dataclass(frozen=True)
class Run:
    """What is analysed as one.

    Attributes:
        name: Path relative to the root it was found below, `/` between parts; unique in a batch.
        root: The root as the user named it.
        paths: What `roundk analyze` is given: folders or files (local paths or URLs).
        files: Everything below `paths`.
        job: Id of the job that the run is an attempt of, where a name or a file tells one.
        attempt: Number of the attempt, as told there; None: not told.
        has_others: Whether more lies below `paths` than is of the run: what a batch wrote there.
    """

    name: str
    root: str
    paths: tuple[str, ...]
    files: tuple[File, ...]
    job: str | None = None
    attempt: int | None = None
    has_others: bool = False

    @property
    def fingerprint(self) -> str:
        """Hexadecimal digest of names, sizes and versions of the files: another one, and the run is analysed anew."""
        told = json.dumps(sorted((file.path, file.size, file.version) for file in self.files))
        return hashlib.sha256(told.encode(errors="surrogateescape")).hexdigest()[:32]
