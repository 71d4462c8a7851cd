"""The reader: everything that is readable is read, and what is not is told."""

from __future__ import annotations

import json
import os
import pathlib
import re

import polars as pl
import pytest

from roundk.tracer import reader, ring, rundir, schema, side, words
from roundk.tracer.errors import RunError

T0 = 1_795_000_000_000_000_000


class Rank:
    """Writes one rank's files as the recorder does, one call a millisecond."""

    def __init__(self, run, rank, world=2, host="node-a", pid=None, **header):
        folder = run / host
        folder.mkdir(parents=True, exist_ok=True)
        self.stem = str(folder / f"rank-{rank:05d}-{pid or 100 + rank}")
        self.side = side.SideFile(f"{self.stem}.jsonl")
        self.side.renew(T0 + 10**9)
        process = {"kind": "process", "schema": words.SCHEMA_VERSION, "rank": rank, "world_size": world, "host": host}
        self.side.append({**process, "pid": pid or 100 + rank, "time_ns": T0, **header})
        self.side.append({"kind": "group", "id": 1, "name": "0", "desc": "default_pg", "ranks": [[0, world, 1]]})
        self.side.append({"kind": "signature", "id": 1, "op": "all_reduce", "inputs": [[2, 3]], "outputs": None})
        place = {
            "kind": "site",
            "id": 1,
            "file": "train.py",
            "line": 7,
            "function": "main",
            "loop": 5,
            "stack": ["a", "b"],
            "loops": [5, None],
        }
        self.side.append(place)
        self.segment = ring.Segment.create(rundir.segment_path(self.stem, 0), 4096, 0)

    def calls(self, number, **values):
        c = self.segment.columns
        for _ in range(number):
            row = self.segment.take()
            stored = {
                "enter_ns": T0 + row * 10**6,
                "seq": row + 1,
                "numel": 6,
                "group": 1,
                "signature": 1,
                "site": 1,
                "op": 1,
            }
            for name, value in {**stored, **values, "commit": self.segment.base + row + 1}.items():
                getattr(c, name)[row] = value
        return self


def table(run, name):
    return pl.from_arrow(getattr(run, name))


def test_a_run_of_two_ranks(tmp_path):
    Rank(tmp_path, 0).calls(3, end_ns=T0 + 5, outcome=words.COMPLETED, dtype=1, reduce_op=1)
    Rank(tmp_path, 1).calls(2, step=4)
    run = reader.read_run(tmp_path)
    calls = table(run, "calls")
    assert run.calls.schema == schema.CALLS
    assert calls["rank"].to_list() == [0, 0, 0, 1, 1]
    assert calls["seq"].to_list() == [1, 2, 3, 1, 2]
    assert calls["op"].cast(pl.String).unique().to_list() == ["all_reduce"]
    assert calls["shapes"].cast(pl.String).unique().to_list() == ["[[2, 3]]"]
    assert calls["outcome"].cast(pl.String).to_list() == ["completed"] * 3 + ["open"] * 2
    assert calls["end_ns"].to_list() == [T0 + 5] * 3 + [None] * 2
    assert calls["step"].to_list() == [None] * 3 + [4] * 2, "rank 0 never stepped: its step is not known"
    assert calls["dtype"].cast(pl.String).to_list() == ["float32"] * 3 + [None] * 2
    assert table(run, "groups")["ranks"].to_list() == [[0, 1]]
    assert table(run, "sites").to_dicts() == [
        {
            "site": 0,
            "file": "train.py",
            "line": 7,
            "function": "main",
            "loop": 5,
            "stack": ["a", "b"],
            "loops": [5, None],
        }
    ]
    assert (run.world_size, run.attempts, run.unreadable, run.truncated, run.ended_ns) == (2, 1, (), (), None)


def test_a_rank_that_left_no_file_is_a_row_not_an_error(tmp_path):
    Rank(tmp_path, 0, world=3).calls(1)
    ranks = table(reader.read_run(tmp_path), "ranks")
    assert ranks["rank"].to_list() == [0, 1, 2]
    assert ranks["data"].to_list() == ["present", "missing", "missing"]


def test_a_rank_without_calls_is_empty(tmp_path):
    Rank(tmp_path, 0).calls(1)
    Rank(tmp_path, 1)
    assert table(reader.read_run(tmp_path), "ranks")["data"].to_list() == ["present", "empty"]


def test_a_segment_cut_in_its_columns_is_told_and_the_other_ranks_are_read(tmp_path):
    Rank(tmp_path, 0).calls(5)
    cut = Rank(tmp_path, 1).calls(5)
    path = rundir.segment_path(cut.stem, 0)
    os.truncate(path, 20_000)  # inside the first column
    run = reader.read_run(tmp_path)
    assert run.truncated == (1,)
    assert "node-a/rank-00001-101-000000.arrow" in [problem.path for problem in run.unreadable]
    ranks = table(run, "ranks")
    assert ranks["data"].to_list() == ["present", "truncated"]
    assert ranks["calls"].to_list() == [5, 0]
    assert ranks["calls_lost"].to_list() == [0, 5]


def test_a_segment_cut_behind_its_columns_loses_no_call(tmp_path):
    cut = Rank(tmp_path, 0, world=1).calls(5)
    path = rundir.segment_path(cut.stem, 0)
    os.truncate(path, cut.segment.size - 100)
    run = reader.read_run(tmp_path)
    assert table(run, "calls")["seq"].to_list() == [1, 2, 3, 4, 5]
    assert run.truncated == (0,)


def test_a_deleted_segment_is_no_evidence_of_absence(tmp_path):
    rank = Rank(tmp_path, 0, world=1)
    rank.segment.base = 4096
    rank.calls(2)
    ranks = table(reader.read_run(tmp_path), "ranks")
    assert ranks.select("calls", "calls_lost", "first_call").rows() == [(2, 4096, 4097)]


def test_a_side_file_cut_in_a_line_is_read_up_to_it(tmp_path):
    rank = Rank(tmp_path, 0, world=1).calls(1)
    path = tmp_path / "node-a" / "rank-00000-100.jsonl"
    text = path.read_text().rstrip("\n")
    path.write_text(text[:-3])
    run = reader.read_run(tmp_path)
    assert [problem.path for problem in run.unreadable] == ["node-a/rank-00000-100.jsonl:5"]
    assert "not whole" in run.unreadable[0].why
    assert table(run, "calls")["site"].to_list() == [None], "the site's line is the one that is cut"
    assert rank.segment.rows == 4096


def test_another_schema_version_is_read_and_told(tmp_path):
    Rank(tmp_path, 0, world=1, schema=99).calls(2)
    run = reader.read_run(tmp_path)
    assert table(run, "calls").height == 2
    assert [note for note in run.notes if re.search(r"schema 99\b", note)]


def test_only_the_last_attempt_counts(tmp_path):
    Rank(tmp_path, 0, pid=1, attempt=0, job="j").calls(9)
    Rank(tmp_path, 1, pid=2, attempt=0, job="j").calls(9)
    Rank(tmp_path, 0, pid=3, attempt=1, job="j", time_ns=T0 + 1).calls(2)
    run = reader.read_run(tmp_path)
    assert run.attempts == 2
    ranks = table(run, "ranks")
    assert ranks.select("rank", "pid", "data", "calls").rows() == [(0, 3, "present", 2), (1, None, "missing", 0)]


def test_ends_come_from_agent_then_launcher_then_absence(tmp_path):
    for rank in range(4):
        Rank(tmp_path, rank, world=4, job="j", attempt=0)
    agent = rundir.LineFile(str(tmp_path / "node-a" / "agent-9.jsonl"))
    agent.append({"kind": "exit", "time_ns": T0 + 5, "pid": 100, "code": -9, "rank": 0, "job": "j", "attempt": 0})
    launcher = rundir.LineFile(str(tmp_path / "node-a" / "launcher-8.jsonl"))
    launcher.append({"kind": "start", "time_ns": T0 - 5, "command": ["torchrun"]})
    for pid, state, more in ((101, "T", {}), (101, "Z", {"code": 3}), (102, "gone", {})):
        launcher.append({"kind": "state", "time_ns": T0 + 7, "rank": pid - 100, "pid": pid, "state": state, **more})
    launcher.append({"kind": "end", "time_ns": T0 + 9, "code": 1})
    run = reader.read_run(tmp_path)
    ends = table(run, "ranks").select("exit_code", "exit_signal", "exit_source", "process_state").rows()
    assert ends == [(None, 9, "agent", None), (3, None, "launcher", "T"), (None, None, "vanished", None), (None,) * 4]
    assert (run.command, run.ended_ns, run.exit_code) == (("torchrun",), T0 + 9, 1)
    assert "exit" in table(run, "facts")["kind"].to_list()


def test_a_process_older_than_the_hosts_last_launcher_is_not_of_this_run(tmp_path):
    Rank(tmp_path, 0, world=1, pid=1)
    launcher = rundir.LineFile(str(tmp_path / "node-a" / "launcher-8.jsonl"))
    launcher.append({"kind": "start", "time_ns": T0 + 10, "command": ["x"]})
    assert reader.read_run(tmp_path).ranks.num_rows == 0


def test_a_rank_whose_segments_are_gone_is_cut_short_not_empty(tmp_path):
    Rank(tmp_path, 0).calls(3)
    pathlib.Path(rundir.segment_path(Rank(tmp_path, 1).calls(3).stem, 0)).unlink()
    run = reader.read_run(tmp_path)
    assert table(run, "ranks")["data"].to_list() == ["present", "truncated"]
    assert run.truncated == (1,)


def test_the_second_run_in_one_directory_is_told_by_itself(tmp_path):
    Rank(tmp_path, 0, world=1, pid=1).calls(1)
    for pid, start, code in ((8, T0 - 10, 1), (9, T0 + 2 * 10**9, 0)):
        launcher = rundir.LineFile(str(tmp_path / "node-a" / f"launcher-{pid}.jsonl"))
        launcher.append({"kind": "start", "time_ns": start, "command": ["x", str(pid)]})
        launcher.append({"kind": "end", "time_ns": start + 10**9, "code": code})
        launcher.renew(start + 10**9)
    Rank(tmp_path, 0, world=1, pid=2, time_ns=T0 + 2 * 10**9 + 5).calls(2)
    run = reader.read_run(tmp_path)
    assert (run.exit_code, run.command, table(run, "ranks")["pid"].to_list()) == (0, ("x", "9"), [2])


def test_a_folder_that_may_not_be_read_is_told(tmp_path, monkeypatch):
    Rank(tmp_path, 0).calls(1)
    (tmp_path / "node-b").mkdir()
    listed = pathlib.Path.iterdir

    def iterdir(path):  # root, as CI is, may read everything
        if path.name == "node-b":
            raise PermissionError(13, "Permission denied")
        return listed(path)

    monkeypatch.setattr(pathlib.Path, "iterdir", iterdir)
    run = reader.read_run(tmp_path)
    assert [(problem.path, problem.why) for problem in run.unreadable] == [("node-b", "Permission denied")]
    assert table(run, "calls").height == 1


@pytest.mark.parametrize("content", [None, "file", "empty"])
def test_what_is_not_a_run_is_refused_by_name(tmp_path, content):
    path = tmp_path / "thing"
    if content == "file":
        path.write_text("{}")
    elif content == "empty":
        path.mkdir()
    assert not reader.is_run(path)
    with pytest.raises(RunError, match=str(path)):
        reader.read_run(path)


def test_a_run_directory_with_nothing_in_it_is_refused(tmp_path):
    (tmp_path / rundir.RUN_FILE).write_text(json.dumps({"roundk_schema": 1}))
    with pytest.raises(RunError, match="nothing"):
        reader.read_run(tmp_path)


def test_a_folder_that_vanishes_meanwhile_hides_no_run(tmp_path, monkeypatch):
    Rank(tmp_path, 0, host="node-b")
    gone = tmp_path / "node-a"
    gone.mkdir()

    def scandir(path, real=os.scandir):
        if pathlib.Path(path).name == gone.name:
            raise FileNotFoundError(path)
        return real(path)

    monkeypatch.setattr("os.scandir", scandir)
    assert reader.is_run(tmp_path)
    assert not reader.is_run(tmp_path / "node-b")
