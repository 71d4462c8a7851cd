"""SIGKILL at random moments of a writing process: `python tests/bench/kill_writer.py [KILLS]`.

The process stores rows flat out from several threads, going from segment to segment, and lines into a side file. Each
thread also notes its last committed call in a file of its own kind, which witnesses what must not be lost. After each
kill every file is opened with pyarrow and polars. Prints one line per number of threads.
"""

from __future__ import annotations

import json
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

import polars as pl
import pyarrow as pa

from roundk.tracer import words

KILLS = 1_000
_LONGEST_S = 0.15
"""A writer fills a segment every few milliseconds, so that moments up to here see many of them."""
_LINE_EVERY = 50

WRITER = f"""
import mmap, sys, threading, time
from roundk.tracer import ring, side

folder, threads = sys.argv[1], int(sys.argv[2])

def write(segments, lock, witness, thread):
    while True:
        segment = segments[-1]
        row = segment.take()
        if row >= segment.rows:
            with lock:
                if segments[-1] is segment:
                    number = len(segments)
                    base = segment.base + segment.rows
                    segments.append(ring.Segment.create(f"{{folder}}/s-{{number:06d}}.arrow", 4096, base))
            continue
        call = segment.base + row + 1
        if call % {_LINE_EVERY} == 0:
            lines.append({{"kind": "site", "id": call, "text": "x" * (call % 300)}})
        c = segment.columns
        c.enter_ns[row] = call * 7 + 1
        c.seq[row] = call * 3
        c.group[row] = call % 1000 + 1
        c.op[row] = call % 20
        c.commit[row] = call
        witness[thread] = call
        c.end_ns[row] = call * 7 + 2

with open(f"{{folder}}/witness", "w+b") as file:
    file.truncate(8 * threads)
    witness = memoryview(mmap.mmap(file.fileno(), 8 * threads)).cast("q")
lines = side.SideFile(f"{{folder}}/side.jsonl")
segments = [ring.Segment.create(f"{{folder}}/s-000000.arrow", 4096, 0)]
lock = threading.Lock()
print("started", flush=True)
for thread in range(threads):
    threading.Thread(target=write, args=(segments, lock, witness, thread)).start()
while True:
    time.sleep(0.01)
    lines.renew(time.time_ns())
    lines.reserve()
"""


class Found(NamedTuple):
    """What kills left: files opened, rows, of these torn, twice or without an end; calls lost; lines, of these cut."""

    files: int
    rows: int
    torn: int
    lost: int
    unended: int
    lines: int
    cut_lines: int


def kill_a_writer(folder: pathlib.Path, threads: int) -> None:
    """Start a writer into an empty folder and kill it at some moment."""
    command = [sys.executable, "-c", WRITER, str(folder), str(threads)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        time.sleep(random.uniform(0.0, _LONGEST_S))
        assert process.poll() is None, "the writer ended by itself"
        process.send_signal(signal.SIGKILL)


def look(folder: pathlib.Path, threads: int) -> Found:
    """Open everything that a killed writer left.

    Raises:
        pa.ArrowInvalid, pl.exceptions.ComputeError: a file does not open.
    """
    paths = sorted(folder.glob("*.arrow"))
    for path in paths:
        with pa.memory_map(str(path)) as source:
            pa.ipc.open_file(source).read_all().validate(full=True)
    rows = pl.concat([pl.scan_ipc(path) for path in paths]).filter(pl.col("commit") > 0)
    frame = rows.select("commit", "enter_ns", "end_ns", "seq", "group", pl.col("op").cast(pl.String)).collect()
    call = pl.col("commit")
    torn = frame.filter(
        (pl.col("enter_ns") != call * 7 + 1)
        | (pl.col("seq") != call * 3)
        | (pl.col("group") != call % 1000 + 1)
        | (pl.col("op") != (call % 20).replace_strict(dict(enumerate(words.OPS))))
        | ~pl.col("end_ns").is_in([0]) & (pl.col("end_ns") != call * 7 + 2)
    )
    lines, cut = _lines(folder / "side.jsonl")
    return Found(
        files=len(paths),
        rows=frame.height,
        torn=torn.height + frame.height - frame["commit"].n_unique(),
        lost=_lost(folder, threads, frame["commit"]),
        unended=frame.filter(pl.col("end_ns") == 0).height,
        lines=lines,
        cut_lines=cut,
    )


def _lost(folder: pathlib.Path, threads: int, commits: pl.Series) -> int:
    """Calls that should be there: each thread's last one, and all before the newest but one per thread in flight."""
    newest = struct.unpack(f"{threads}q", (folder / "witness").read_bytes())
    witnessed = sum(call not in commits for call in newest if call)
    gaps = int(commits.max() or 0) - len(commits)
    return witnessed + max(0, gaps - threads)


def _lines(path: pathlib.Path) -> tuple[int, int]:
    """Whole lines, and those that are not; a line that follows one which is cut counts as cut too."""
    raw = [line for line in path.read_bytes().split(b"\n") if line]
    for number, line in enumerate(raw):
        try:
            json.loads(line)
        except ValueError:
            return number, len(raw) - number
    return len(raw), 0


def total(founds: list[Found]) -> Found:
    """The sum of what several kills left."""
    return Found(*map(sum, zip(*founds, strict=True)))


def main(kills: int = KILLS) -> None:
    """Kill and print."""
    print("| threads | kills | files | rows | torn | lost | end not stored | side lines | cut lines |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for threads in (1, 4):
        founds = []
        for _ in range(kills):
            folder = pathlib.Path(tempfile.mkdtemp(prefix="kill-writer-"))
            kill_a_writer(folder, threads)
            founds.append(look(folder, threads))
            shutil.rmtree(folder)
        print("|", " | ".join(f"{value:,}" for value in (threads, len(founds), *total(founds))), "|", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
