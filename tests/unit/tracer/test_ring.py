"""Segments: what is stored is what any Arrow reader sees, at every moment and after SIGKILL."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import polars as pl
import pyarrow as pa
import pytest

from roundk.tracer import make_template, ring, schema, template, words

WRITER = """
import sys, threading
from roundk.tracer import ring

def write(segments, lock):
    while True:
        segment = segments[-1]
        row = segment.take()
        if row >= segment.rows:
            with lock:
                if segments[-1] is segment:
                    number = len(segments)
                    base = segment.base + segment.rows
                    segments.append(ring.Segment.create(f"{sys.argv[1]}/s-{number:06d}.arrow", 4096, base))
            continue
        call = segment.base + row + 1
        c = segment.columns
        c.enter_ns[row] = call * 7 + 1
        c.seq[row] = call * 3
        c.group[row] = call % 1000 + 1
        c.op[row] = call % 20
        c.commit[row] = call
        c.end_ns[row] = call * 7 + 2

segments = [ring.Segment.create(f"{sys.argv[1]}/s-000000.arrow", 4096, 0)]
lock = threading.Lock()
print("started", flush=True)
for _ in range(int(sys.argv[2])):
    threading.Thread(target=write, args=(segments, lock)).start()
"""


@pytest.mark.parametrize("rows", make_template.SEGMENT_ROWS)
def test_template_is_what_pyarrow_writes_for_the_schema(rows, tmp_path):
    path = tmp_path / "made.arrow"
    ring.Segment.create(str(path), rows, 0)
    assert path.read_bytes() == make_template.segment_bytes(rows)


def test_columns_stand_in_the_order_of_the_schema():
    assert list(ring.Columns._fields) == schema.RING.names
    for parts in template.SEGMENTS.values():
        assert [name for name, _, _ in parts.columns] == schema.RING.names
        assert all(offset % 8 == 0 for _, _, offset in parts.columns), "a store into an unaligned column could tear"


def test_a_stored_row_is_read_by_pyarrow_and_polars(tmp_path):
    path = tmp_path / "s.arrow"
    segment = ring.Segment.create(str(path), 4096, base=100)
    row = segment.take()
    values = {name: position + 2 for position, name in enumerate(schema.RING.names)}
    values |= {"op": 1, "dtype": 2, "reduce_op": 1, "commit": segment.base + row + 1}
    for name, value in values.items():
        getattr(segment.columns, name)[row] = value
    words = {"op": "all_reduce", "dtype": "float64", "reduce_op": "SUM"}
    expected = {**values, **words}
    with pa.memory_map(str(path)) as source:
        assert pa.ipc.open_file(source).read_all().slice(0, 1).to_pylist() == [expected]
    frame = pl.scan_ipc(path).filter(pl.col("commit") > 0).collect()
    assert frame.with_columns(pl.col(list(words)).cast(pl.String)).to_dicts() == [expected]


def test_space_is_allocated_before_it_is_stored_into(tmp_path):
    path = tmp_path / "s.arrow"
    ring.Segment.create(str(path), 4096, 0)
    status = path.stat()
    assert status.st_blocks * 512 >= status.st_size


def test_no_space_raises_and_leaves_no_file(tmp_path, monkeypatch):
    def full(fd, start, size):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        ring.Segment.create(str(tmp_path / "s.arrow"), 4096, 0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("threads", [1, 4])
def test_sigkill_at_random_moments_tears_nothing(tmp_path, threads):
    seen = 0
    for attempt in range(10):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        _kill_a_writer(folder, threads)
        rows = pl.concat([pl.scan_ipc(path) for path in sorted(folder.glob("*.arrow"))]).filter(pl.col("commit") > 0)
        frame = rows.select("commit", "enter_ns", "end_ns", "seq", "group", pl.col("op").cast(pl.String)).collect()
        call = pl.col("commit")
        torn = frame.filter(
            (pl.col("enter_ns") != call * 7 + 1)
            | (pl.col("seq") != call * 3)
            | (pl.col("group") != call % 1000 + 1)
            | (pl.col("op") != (call % 20).replace_strict(dict(enumerate(words.OPS))))
            | ~pl.col("end_ns").is_in([0]) & (pl.col("end_ns") != call * 7 + 2)
        )
        assert torn.is_empty()
        assert frame["commit"].n_unique() == frame.height
        # Every call but those being stored at that moment, at most one per thread, is there.
        assert (frame["commit"].max() or 0) - frame.height <= threads
        seen += frame.height
    assert seen > 1_000, "the writers were killed before they wrote: this shows nothing"


def _kill_a_writer(folder, threads):
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(folder), str(threads)], stdout=subprocess.PIPE)
    with process:
        process.stdout.readline()
        time.sleep(random.uniform(0.0, 0.15))
        process.send_signal(signal.SIGKILL)
    for path in folder.glob("*.arrow"):
        with pa.memory_map(str(path)) as source:
            pa.ipc.open_file(source).read_all()
