"""From a run to its rows: what they say, against what the run's own files say."""

from __future__ import annotations

import json
import shutil

import dumps
import pyarrow as pa
import pytest
from held import sample

from roundk.analyze.batch.discover import discover
from roundk.analyze.batch.judge_run import judged
from roundk.analyze.batch.run import Run
from roundk.analyze.batch.table import CATEGORIES, RUNS
from roundk.analyze.names import Cause

LATER_NS = 1_900_000_000 * 10**9


def rows_of(root, tmp_path, now_ns=LATER_NS):
    scratch = tmp_path / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    (run,) = discover([str(root)]).runs
    return judged(run, now_ns=now_ns, scratch=scratch)


def lines(folder, pattern):
    for path in sorted(folder.glob(pattern)):
        for line in path.read_text().splitlines():
            yield json.loads(line)


def test_a_killed_rank(tmp_path):
    run = sample(tmp_path / "runs", "job-7", "killed_rank")
    result = rows_of(tmp_path / "runs", tmp_path)
    (row,) = result.rows
    assert list(row) == RUNS.names
    assert result.is_final
    expected = json.loads((run / "expected.json").read_text())
    for name in ("status", "structure", "detail", "cause", "culprit_ranks", "seq", "op"):
        assert row[name] == expected[name], name
    assert (row["run"], row["root"], row["job"]) == ("job-7", str(tmp_path / "runs"), "7")
    assert (row["category"], row["hosts"], row["world_size"]) == ("host", ["node-a"], 4)
    assert (row["verdict"], row["sources"], row["problem"]) == (0, ["run_directory"], None)
    told = {line["kind"]: line["time_ns"] for line in lines(run, "*/launcher-*.jsonl")}
    assert row["started_at"] == told["start"] // 1000
    assert row["ended_at"] == told["end"] // 1000
    assert row["started_at"] < row["onset_at"] < row["ended_at"]
    hour_us = 3600 * 10**6
    assert row["gpu_hours"] == pytest.approx(4 * (row["ended_at"] - row["started_at"]) / hour_us, rel=1e-6)
    assert row["gpu_hours_lost"] == pytest.approx(4 * (row["ended_at"] - row["onset_at"]) / hour_us, rel=1e-5)


def test_a_slow_run_lost_no_gpu_hours(tmp_path):
    sample(tmp_path / "runs", "a", "slow_rank")
    rows = rows_of(tmp_path / "runs", tmp_path).rows
    assert {row["status"] for row in rows} == {"slow"}
    assert {row["gpu_hours_lost"] for row in rows} == {None}
    assert all(row["gpu_hours"] > 0 for row in rows)


def test_further_roots_are_rows_that_lost_nothing_more(tmp_path):
    sample(tmp_path / "runs", "a", "slow_both")
    rows = rows_of(tmp_path / "runs", tmp_path).rows
    assert [row["verdict"] for row in rows] == [0, 1]
    assert {row["run"] for row in rows} == {"a"}
    assert rows[1]["gpu_hours_lost"] is None


def test_a_healthy_run_has_no_cause(tmp_path):
    sample(tmp_path / "runs", "a", "healthy_ddp")
    (row,) = rows_of(tmp_path / "runs", tmp_path).rows
    assert (row["status"], row["structure"], row["cause"], row["category"]) == ("healthy", "HEALTHY", None, None)
    assert row["onset_at"] is None
    assert row["gpu_hours_lost"] is None


def test_a_job_that_still_runs_is_not_final(tmp_path):
    run = sample(tmp_path / "runs", "a", "stop")
    alive = max(line["time_ns"] for line in lines(run, "*/launcher-*.jsonl") if line["kind"] == "alive")
    assert not rows_of(tmp_path / "runs", tmp_path, now_ns=alive + 10**9).is_final
    assert rows_of(tmp_path / "runs", tmp_path, now_ns=alive + 300 * 10**9).is_final


def test_what_is_said_of_the_dead_does_not_depend_on_when_they_are_judged(tmp_path):
    sample(tmp_path / "runs", "a", "stop")
    first = rows_of(tmp_path / "runs", tmp_path)
    assert rows_of(tmp_path / "runs", tmp_path, now_ns=LATER_NS + 10**18) == first


def test_damage_is_told_without_the_folders_above_the_run(tmp_path):
    run = tmp_path / "runs" / "a"
    run.mkdir(parents=True)
    (run / "nccl_trace_rank_0").write_bytes(b"")
    (run / "nccl_trace_rank_1").write_bytes(b"")
    result = rows_of(tmp_path / "runs", tmp_path)
    (row,) = result.rows
    assert row["status"] == "error"
    assert row["structure"] is None
    assert row["category"] is None
    assert row["problem"].startswith("a: 2 files are here and empty")
    assert str(tmp_path) not in row["problem"]
    assert result.is_final


def test_dumps_last_from_the_first_to_the_last_thing_known(tmp_path):
    both = [dumps.entry(number) for number in range(5)]
    alone = dumps.scheduled(5)
    files = {"nccl_trace_rank_0": dumps.dump([*both, alone]), "nccl_trace_rank_1": dumps.dump(both)}
    dumps.write(tmp_path / "runs/a", files)
    (row,) = rows_of(tmp_path / "runs", tmp_path).rows
    assert (row["status"], row["structure"], row["culprit_ranks"]) == ("stuck", "RANK_NOT_ENTERED", [1])
    assert row["started_at"] == both[0]["time_created_ns"] // 1000
    assert row["onset_at"] == alone["time_created_ns"] // 1000
    assert row["ended_at"] == row["onset_at"]
    assert row["gpu_hours_lost"] == 0
    assert (row["world_size"], row["hosts"], row["ranks_seen"]) == (2, [], 2)


@pytest.mark.parametrize("odd", [5, 2**63 - 1, -1])
def test_a_damaged_time_is_no_beginning_or_end(tmp_path, odd):
    both = [dumps.entry(number) for number in range(5)]
    damaged = dumps.entry(5, time_created_ns=odd, time_discovered_completed_ns=odd)
    files = {"nccl_trace_rank_0": dumps.dump([*both, damaged]), "nccl_trace_rank_1": dumps.dump(both)}
    dumps.write(tmp_path / "runs/a", files)
    row = rows_of(tmp_path / "runs", tmp_path).rows[0]
    assert row["started_at"] == both[0]["time_created_ns"] // 1000
    assert row["ended_at"] <= both[4]["time_discovered_completed_ns"] // 1000 + 10**6
    pa.Table.from_pylist([row], schema=RUNS)


def test_a_log_of_one_rank_says_nothing_of_how_many_there_are(tmp_path):
    log = tmp_path / "runs" / "a" / "job.log"
    log.parent.mkdir(parents=True)
    said = (
        "Traceback (most recent call last):",
        '  File "/home/u/train.py", line 61, in main',
        "    x()",
        "KeyError: 'x'",
    )
    log.write_text("".join(f"[rank3]: {line}\n" for line in said))
    (row,) = rows_of(tmp_path / "runs", tmp_path).rows
    assert (row["cause"], row["culprit_ranks"]) == ("EXCEPTION", [3])
    assert row["world_size"] is row["gpu_hours"] is row["gpu_hours_lost"] is None


def test_a_run_that_vanished_is_not_final(tmp_path):
    run = Run("a", str(tmp_path), (str(tmp_path / "a"),), ())
    result = judged(run, now_ns=LATER_NS, scratch=tmp_path)
    assert result.rows[0]["problem"] == "a: it is not there any more, or not on the machine that judged it"
    assert not result.is_final


@pytest.mark.parametrize("number", [0, 1])
def test_every_row_is_of_the_table(tmp_path, number):
    sample(tmp_path / "runs", "a", ["link_flap", "size_mismatch"][number])
    rows = rows_of(tmp_path / "runs", tmp_path).rows
    table = pa.Table.from_pylist(list(rows), schema=RUNS)
    assert table.num_rows == len(rows)
    table.validate(full=True)
    assert json.loads(json.dumps(rows)) == list(rows)


def test_every_cause_has_a_category():
    assert set(CATEGORIES) == set(Cause)
