"""The side file: valid JSON lines at every moment, nothing lost when it is full."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from roundk.tracer import side


def lines(path):
    return [json.loads(line) for line in path.read_text().split("\n") if line]


def test_lines_and_sign_of_life_are_on_disk_at_once(tmp_path):
    path = tmp_path / "rank.jsonl"
    file = side.SideFile(str(path))
    file.renew(1)
    file.append({"kind": "site", "file": "train.py é"})
    file.renew(1_795_983_617_274_551_117, 1_795_983_616_000_000_000)
    assert lines(path) == [
        {"kind": "alive", "time_ns": 1_795_983_617_274_551_117, "waits_since_ns": 1_795_983_616_000_000_000},
        {"kind": "site", "file": "train.py é"},
    ]


def test_nothing_is_lost_when_it_fills_up(tmp_path):
    path = tmp_path / "rank.jsonl"
    file = side.SideFile(str(path))
    file.renew(5)
    size = path.stat().st_size
    for number in range(1_000):  # more than the first 16 KiB hold
        file.append({"kind": "site", "id": number, "pad": "x" * 40})
    assert path.stat().st_size == size, "the caller must not grow the file: that is I/O"
    file.reserve()
    file.append({"kind": "site", "id": 1_000})
    assert [line["id"] for line in lines(path)[1:]] == list(range(1_001))


def test_a_file_of_another_process_is_never_taken(tmp_path):
    path = tmp_path / "rank.jsonl"
    path.write_text("someone else's\n")
    with pytest.raises(FileExistsError):
        side.SideFile(str(path))
    assert path.read_text() == "someone else's\n"


@pytest.mark.parametrize("replaced", [False, True])
def test_it_does_not_grow_where_it_is_gone(tmp_path, replaced):
    path = tmp_path / "rank.jsonl"
    file = side.SideFile(str(path))
    path.rename(tmp_path / "old")
    if replaced:
        path.write_text("the job's own\n")
    file.append({"kind": "site", "pad": "x" * 20_000})
    with pytest.raises(OSError, match=r"another file|No such file"):
        file.reserve()
    assert not replaced or path.read_text() == "the job's own\n"


OPEN_DESCRIPTORS = """
import os, sys
from roundk.tracer import ring, side
before = os.listdir("/proc/self/fd")
file = side.SideFile(sys.argv[1] + "/rank.jsonl")
file.append({"kind": "site", "pad": "x" * 20_000})
file.reserve()
segment = ring.Segment.create(sys.argv[1] + "/s.arrow", 4096, 0)
print(len(before), len(os.listdir("/proc/self/fd")), segment.rows)
"""


def test_no_descriptor_stays_open(tmp_path):
    # In a process of its own: threads that other tests left open and close theirs.
    command = [sys.executable, "-c", OPEN_DESCRIPTORS, str(tmp_path)]
    before, after, rows = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert before == after
    assert rows == "4096"
    assert (tmp_path / "rank.jsonl").stat().st_size > 20_000


def test_its_space_is_allocated(tmp_path):
    path = tmp_path / "rank.jsonl"
    side.SideFile(str(path))
    assert path.stat().st_blocks * 512 >= path.stat().st_size > 0
