"""All ranks of a job are killed with SIGKILL in the middle: what was recorded until then is all there."""

from __future__ import annotations

import os
import signal

import harness
import polars as pl
import pyarrow as pa

STRAGGLER, MISSING, ROUND = 1, 2, 12


def test_the_files_of_killed_ranks_open_and_name_straggler_and_missing_rank(start, tmp_path, attempt):
    run_dir = tmp_path / "run"
    fault = {"FAULT": "late_then_missing", "FAULT_RANK": str(STRAGGLER), "FAULT_ROUND": str(ROUND), "ROUNDS": "50"}
    # The peers must still be waiting when they are killed.
    job = start(harness.torchrun(harness.SCRIPTS / "ddp.py"), dir=run_dir, env={**fault, "GROUP_TIMEOUT_S": "120"})
    for pid in job.wait_until_plain().values():
        os.kill(pid, signal.SIGKILL)
    assert job.wait().code != 0

    segments = sorted(run_dir.rglob("rank-*.arrow"))
    assert {int(path.name.split("-")[1]) for path in segments} == {0, 1, 2, 3}
    for path in segments:
        with pa.memory_map(str(path)) as source:
            rows = pa.ipc.open_file(source).read_all()
            committed = sum(1 for number in rows["commit"].to_pylist() if number)
        assert committed > ROUND
        frame = pl.read_ipc(path).filter(pl.col("commit") > 0)
        assert frame.height == committed
        assert frame["commit"].to_list() == list(range(1, committed + 1))

    analysis = harness.analyze(run_dir)
    verdict = analysis.verdict
    assert (verdict["structure"], verdict["culprit_ranks"], analysis.code) == ("RANK_NOT_ENTERED", [MISSING], 1)
    stragglers = [other for other in analysis.report["verdicts"] if other["structure"] == "STRAGGLER"]
    assert [other["culprit_ranks"] for other in stragglers] == [[STRAGGLER]]


def test_a_hang_killed_together_with_its_launcher_is_judged_by_its_last_sign_of_life(start, tmp_path, attempt):
    run_dir = tmp_path / "run"
    fault = {"FAULT": "sleep", "FAULT_RANK": "1", "FAULT_ROUND": "6"}
    job = start(harness.torchrun(harness.SCRIPTS / "manual.py"), dir=run_dir, env={**fault, "GROUP_TIMEOUT_S": "120"})
    job.wait_until_plain()
    job.kill()
    # Nobody wrote that the job ended. It has hung for two seconds: too short to say anything but for who says so.
    assert harness.analyze(run_dir).verdict["structure"] == "IN_PROGRESS"
    verdict = harness.analyze(run_dir, "--stall-s", "1").verdict
    found = (verdict["structure"], verdict["culprit_ranks"], verdict["seq"], verdict["op"])
    assert found == ("RANK_NOT_ENTERED", [1], 6, "all_reduce")
