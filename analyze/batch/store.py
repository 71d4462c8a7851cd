"""The folder of a batch: a file per finished run, so that a batch goes on where it was ended, and the table."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any, Final

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from roundk.analyze.batch.judge_run import Result, version
from roundk.analyze.batch.run import Run
from roundk.analyze.batch.table import RUNS
from roundk.analyze.batch.tree import DONE, OF_A_BATCH, TABLE
from roundk.analyze.trace import frame
from roundk.tracer.errors import RoundkError

_FORM: Final = 1
"""Version of the files in `done/`."""
_READABLE: Final = 80
"""Characters of a run's name that are kept in that of its file: names of files end at 255 bytes."""


class Store:
    """The folder of a batch, that of one batch at a time."""

    def __init__(self, folder: pathlib.Path) -> None:
        """See `opened`."""
        self.folder = folder
        self.problems: list[str] = []
        """Results that could not be kept, as something else stands in their place."""

    @property
    def table(self) -> pathlib.Path:
        """Where the table is."""
        return self.folder / TABLE

    def kept(self, run: Run) -> list[dict[str, Any]] | None:
        """The rows of a run that is finished, its files as they were then; None: it must be judged."""
        try:
            told = json.loads(self._file(run).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None  # there is none, or it was cut short
        if not isinstance(told, dict) or told.get("of") != _identity(run):
            return None
        rows = told.get("rows")
        return rows if isinstance(rows, list) and rows and all(_is_row(row) for row in rows) else None

    def keep(self, run: Run, result: Result) -> None:
        """Note what came of a run, where the same files would give it again.

        Raises:
            RoundkError: It cannot be written.
        """
        if not result.is_final:
            return
        path = self._file(run)
        if path.is_dir():
            self.problems.append(f"{path}: a folder stands where the result is kept; it will be judged again")
        else:
            written(path, json.dumps({"of": _identity(run), "rows": result.rows}).encode())

    def finish(self, rows: Iterable[Mapping[str, Any]]) -> pl.DataFrame:
        """Write the table, in place of an older one.

        Raises:
            RoundkError: It cannot be written.
        """
        ordered = sorted(rows, key=lambda row: (row["run"], row["verdict"]))
        table = pa.Table.from_pylist(ordered, schema=RUNS)
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        written(self.table, sink.getvalue().to_pybytes())
        return frame(table)

    def _file(self, run: Run) -> pathlib.Path:
        digest = hashlib.sha256(run.name.encode(errors="surrogateescape")).hexdigest()[:12]
        readable = re.sub(r"[^A-Za-z0-9._-]+", "_", run.name)[-_READABLE:]
        return self.folder / DONE / f"{readable}-{digest}.json"


@contextlib.contextmanager
def opened(folder: pathlib.Path) -> Iterator[Store]:
    """The folder of a batch, made if need be, and nobody else's meanwhile.

    Raises:
        RoundkError: It cannot be made or written, or another batch works in it.
    """
    try:
        (folder / DONE).mkdir(parents=True, exist_ok=True)
        lock = (folder / OF_A_BATCH).open("a+", encoding="utf-8")
    except OSError as error:
        raise RoundkError(f"{folder}: the folder of the batch cannot be made: {error.strerror or error}") from None
    with lock:
        _lock(folder, lock)
        if (folder / TABLE).is_dir():
            raise RoundkError(
                f"{folder / TABLE}: a folder stands where the table is written; move it, or name another --out"
            )
        yield Store(folder)


def _lock(folder: pathlib.Path, lock: IO[str]) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        who = lock.read(200).strip() or "not told which"
        raise RoundkError(
            f"{folder}: another batch works here ({who}); wait for it, or name another folder by --out"
        ) from None
    except OSError as error:
        raise RoundkError(
            f"{folder}: its file system has no locks ({error.strerror}); name a folder elsewhere by --out"
        ) from None
    lock.seek(0)
    lock.truncate()
    lock.write(f"process {os.getpid()} on {socket.gethostname()}\n")
    lock.flush()


def _identity(run: Run) -> dict[str, Any]:
    """What must be as it was for a result to count; limits do not matter, as what they ended is not kept."""
    return {
        "form": _FORM,
        "columns": RUNS.names,
        "roundk": version(),
        "run": run.name,
        "root": run.root,
        "job": run.job,
        "attempt": run.attempt,
        "fingerprint": run.fingerprint,
    }


def _is_row(row: object) -> bool:
    return isinstance(row, dict) and list(row) == RUNS.names


def written(path: pathlib.Path, content: bytes) -> None:
    """Write a file so that it is there whole, or else as it was.

    Args:
        path: The file; of a link its target is written, and what is no file (a pipe) is written to as it is.
        content: All of it.

    Raises:
        RoundkError: It cannot be written.
    """
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)
            return
        whole = path.resolve()
        part = whole.with_name(f"{whole.name}.part")
        try:
            part.write_bytes(content)
            part.replace(whole)
        finally:
            part.unlink(missing_ok=True)  # it is there only where something failed
    except OSError as error:
        raise RoundkError(f"{path}: it cannot be written: {error.strerror or error}") from None
