"""What a sample needs of a run directory: the recorder's files end with the room that it allocates ahead.

Of the settings and versions that ranks and launchers record, what tells of the machine is left out: kernel and drivers,
search paths of libraries, and whatever has a path outside the neutral folder.
"""

from __future__ import annotations

import json
import pathlib
import re
import shutil
from typing import Any

import numpy as np
import pyarrow as pa

_WRITTEN = ("commit", "state")
"""The column that is not 0 in a row that is written: of calls, of link samples."""
_NOT_NEEDED = ("site-*", "*.fr")
"""The start-up code that `roundk run` gives to a job; Flight Recorder dumps, which repeat what the segments hold."""

_OF_JOB = ("GLOO_", "NCCL_", "TORCH_", "OMP_")
"""Beginnings of the settings that a sample keeps: of torch and below, which the job or its launcher sets."""
_PATH = re.compile(r"(?:^|[\s:=,])(/[^\s:,]*)")
_NEUTRAL = "/tmp/demo/"  # noqa: S108
"""Where samples are recorded."""


def trim(run: pathlib.Path) -> None:
    """Leave out of a run directory the rows and lines that nothing was written to, and what the analysis has twice."""
    for pattern in _NOT_NEEDED:
        for path in run.glob(f"*/{pattern}"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in run.glob("*/*.arrow"):
        _trim_segment(path)
    for path in run.glob("*/*.jsonl"):
        lines = path.read_bytes().rstrip(b"\0 \n").split(b"\n")
        path.write_bytes(b"\n".join(map(_neutral, lines)) + b"\n")


def _neutral(text: bytes) -> bytes:
    """A line of a side file without what tells of the machine."""
    if b'"settings"' not in text and b'"versions"' not in text:
        return text
    line = json.loads(text)
    if line["kind"] == "environment":
        line["settings"] = {name: value for name, value in line["settings"].items() if _is_of_job(name, value)}
        line["left_out"] = 0
    elif line["kind"] == "start":
        line.pop("versions", None)
    return json.dumps(line, separators=(",", ":")).encode()


def _is_of_job(name: str, value: Any) -> bool:
    return name.startswith(_OF_JOB) and all(path.startswith(_NEUTRAL) for path in _PATH.findall(str(value)))


def _trim_segment(path: pathlib.Path) -> None:
    table = pa.ipc.open_file(pa.py_buffer(path.read_bytes())).read_all()
    name = next(name for name in _WRITTEN if name in table.column_names)
    written = np.flatnonzero(table[name].to_numpy())
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table.slice(0, int(written[-1]) + 1 if len(written) else 0))
