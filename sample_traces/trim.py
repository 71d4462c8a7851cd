"""What a sample needs of a run directory: the recorder's files end with the room that it allocates ahead."""

from __future__ import annotations

import pathlib
import shutil

import numpy as np
import pyarrow as pa

_WRITTEN = ("commit", "state")
"""The column that is not 0 in a row that is written: of calls, of link samples."""
_NOT_NEEDED = ("site-*", "*.fr")
"""The start-up code that `roundk run` gives to a job; Flight Recorder dumps, which repeat what the segments hold."""


def trim(run: pathlib.Path) -> None:
    """Leave out of a run directory the rows and lines that nothing was written to, and what the analysis has twice."""
    for pattern in _NOT_NEEDED:
        for path in run.glob(f"*/{pattern}"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in run.glob("*/*.arrow"):
        _trim_segment(path)
    for path in run.glob("*/*.jsonl"):
        path.write_bytes(path.read_bytes().rstrip(b"\0 \n") + b"\n")


def _trim_segment(path: pathlib.Path) -> None:
    table = pa.ipc.open_file(pa.py_buffer(path.read_bytes())).read_all()
    name = next(name for name in _WRITTEN if name in table.column_names)
    written = np.flatnonzero(table[name].to_numpy())
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table.slice(0, int(written[-1]) + 1 if len(written) else 0))
