"""Segments: what is stored is what any Arrow reader sees, at every moment and after SIGKILL."""

from __future__ import annotations

import os
import subprocess
import sys

import kill_writer
import polars as pl
import pyarrow as pa
import pytest

from roundk.tracer import make_template, ring, schema, template


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


CLOSED = """
import os, sys
os.close(2)
os.close(1)
from roundk.hooks.stacks import Stacks
from roundk.tracer import ring, rundir, side
file = side.SideFile(sys.argv[1] + "/side.jsonl")
file.renew(1)
segment = ring.Segment.create(sys.argv[1] + "/s.arrow", 4096, 0)
lines = rundir.LineFile(sys.argv[1] + "/lines.jsonl")
stacks = Stacks(sys.argv[1] + "/s.stacks", 5.0)
for fd in (1, 2):
    try:
        os.write(fd, b"BOO")
    except OSError:
        continue
    os._exit(9)
os._exit(0)
"""


def test_no_file_takes_the_number_of_a_closed_stream(tmp_path):
    done = subprocess.run([sys.executable, "-c", CLOSED, str(tmp_path)], check=False)
    assert done.returncode == 0, "what the job prints would land in a file of ours"
    assert not any(b"BOO" in path.read_bytes() for path in tmp_path.iterdir())


@pytest.mark.parametrize("threads", [1, 4])
def test_sigkill_at_random_moments_tears_nothing(tmp_path, threads):
    founds = []
    for attempt in range(25):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        kill_writer.kill_a_writer(folder, threads)
        founds.append(kill_writer.look(folder, threads))
    found = kill_writer.total(founds)
    assert (found.torn, found.lost) == (0, 0)
    assert found.cut_lines <= len(founds), "more than the line that was being stored"
    assert found.rows > 1_000, "the writers were killed before they wrote: this shows nothing"
