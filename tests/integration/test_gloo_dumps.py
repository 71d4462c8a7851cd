"""Dumps that torch leaves of a gloo job, which its own analyzer cannot read."""

from __future__ import annotations

import os
import pathlib
import pickle
import subprocess
import sys

import pytest

from roundk.analyze.sources import flight_recorder
from roundk.analyze.sources.inputs import Hints, Input

SCRIPT = pathlib.Path(__file__).parent / "scripts" / "gloo_dumps.py"
MADE = [
    ("all_reduce", "[[4, 2]] -> [[4, 2]]"),
    ("barrier", "[] -> []"),
    ("broadcast", "[[4, 2]] -> [[4, 2]]"),
    ("all_gather", "[[4, 2]] -> [[2, 4, 2]]"),  # all_gather_into_tensor, as gloo calls it
    ("all_reduce", "[[8, 2]] -> [[8, 2]]"),  # reduce_scatter_tensor
    ("all_to_all", "[[4, 2]] -> [[4, 2]]"),
    ("all_gather", "[[1]] -> [[2, 1]]"),  # all_gather_object: the sizes, then the objects
]
"""What gloo records of the script's calls in one group, and how; the last all_gather's size is up to pickle."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("gloo")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", SCRIPT, made]
    settings = {"TORCH_FR_BUFFER_SIZE": "2000", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=os.environ | settings, capture_output=True, text=True, timeout=180, check=False, cwd=made
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return made


def loaded(folder, names):
    items = [Input(name, folder / name) for name in names]
    assert all(flight_recorder.recognises(item) for item in items)
    return flight_recorder.load(items, Hints())


def test_torchs_own_analyzer_cannot_read_them(folder):
    command = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", folder, "-p", "trace_"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0
    assert "KeyError" in done.stderr


@pytest.mark.parametrize("name", ["trace_{}", "json_{}.json"])
def test_they_are_read_fully(folder, name):
    part = loaded(folder, [name.format(rank) for rank in (0, 1)])
    assert part.groups.select("name", "backend", "ranks").rows() == [("0", "gloo", [0, 1]), ("1", "gloo", [0, 1])]
    assert part.world_size == 2
    for rank in (0, 1):
        for key in (0, 1):
            calls = part.calls.filter(rank=rank, group=key)
            found = calls.select("op", "shapes").rows()
            hung = [("all_reduce", "[[3]] -> [[3]]")] if (rank, key) == (0, 1) else []
            assert found[:7] == MADE
            assert found[7][0] == "all_gather"
            assert found[8:] == hung
            assert calls["outcome"].to_list() == ["completed"] * 8 + ["open"] * len(hung)
            assert calls["seq"].to_list() == list(range(1, calls.height + 1))
    told = part.progress.select("rank", "group", "enqueued", "counts").rows()
    # The send or receive counts here, and has no entry.
    assert told == [(0, 0, 9, "calls"), (0, 1, 10, "calls"), (1, 0, 9, "calls"), (1, 1, 9, "calls")]
    # Two threads end gloo's calls, and the one that comes last writes the counter: it may be one short for ever.
    assert set(part.progress["completed"]) <= {8, 9}
    assert not part.unreadable
    assert not part.truncated


def test_call_sites_are_the_scripts(folder):
    part = loaded(folder, ["trace_0", "trace_1"])
    text = SCRIPT.read_text().splitlines()
    assert {site["file"] for site in part.sites.iter_rows(named=True)} == {str(SCRIPT)}
    for call in part.calls.join(part.sites, on="site").iter_rows(named=True):
        assert "dist." in text[call["line"] - 1]


def test_what_is_read_is_what_is_there(folder):
    """Every field that the tables have, against the dump as Python's own unpickler reads it."""
    part = loaded(folder, ["trace_0"])
    with (folder / "trace_0").open("rb") as file:
        entries = pickle.load(file)["entries"]
    assert part.calls.height == len(entries)
    for entry, call in zip(entries, part.calls.iter_rows(named=True), strict=True):
        assert call["enter_ns"] == entry["time_created_ns"]
        assert call["seq"] == entry["collective_seq_id"]
        assert call["group"] == entry["pg_id"]
        assert f"gloo:{call['source_op']}" == entry["profiling_name"]
        assert call["shapes"] == f"{entry['input_sizes']} -> {entry['output_sizes']}"
        assert call["thread"] == int(entry["thread_id"])
        assert (call["outcome"] == "completed") is entry["retired"]
