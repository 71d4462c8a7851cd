"""A rank that is late again and again in a job that was then ended from outside, or got stuck."""

from __future__ import annotations

import pytest
from jobs import Job, outline


def slow(rounds=12, by=0.3):
    job = Job()
    for _ in range(rounds):
        job.round(late={1: by})
    return job


@pytest.mark.parametrize("signal", [9, 15])
def test_straggler_is_named_where_the_whole_job_was_killed(signal):
    job = slow().hang(without=[1])
    job.exits(0, 1, 2, 3, at=job.clock + 0.1, signal=signal)
    report = job.report(ended=job.clock + 2, exit_code=1)
    assert outline(report) == ("STRAGGLER", None, "HOST_STALL", (1,), 3, 1)
    assert report.status == "slow"
    assert len(report.verdicts) == 1
    verdict = report.verdicts[0]
    assert any("ended from outside" in line and "SIG" in line for line in verdict.not_checked)
    assert any("was killed by" in e.what for e in verdict.evidence)


def test_straggler_is_named_where_the_job_was_killed_between_rounds():
    job = slow()
    job.exits(0, 1, 2, 3, at=job.clock, signal=9)
    assert outline(job.report(ended=job.clock + 2, exit_code=1))[:4] == ("STRAGGLER", None, "HOST_STALL", (1,))


def test_habitual_straggler_is_named_beside_the_rank_that_is_missing():
    job = slow(by=0.12).hang(without=[3], gave_up=20)
    job.exits(3, at=job.clock + 1, signal=15)
    report = job.report(ended=job.clock + 2, exit_code=1)
    assert outline(report)[:4] == ("RANK_NOT_ENTERED", "IDLE", "UNDETERMINED", (3,))
    assert outline(report, 1)[:4] == ("STRAGGLER", None, "HOST_STALL", (1,))
    assert report.status == "failed"


def test_a_straggler_does_not_hide_an_error_of_a_ranks_own():
    job = slow().raises(2, at=9.0)
    job.exits(0, 1, 3, at=9.4, signal=15)
    report = job.report(ended=job.clock + 10, exit_code=1)
    assert [v.structure for v in report.verdicts] == ["ERROR_REPORTED", "STRAGGLER"]


def test_a_job_that_is_still_outside_of_all_calls():
    job = Job().rounds(20)
    at = job.clock
    for rank in range(4):
        job.stack(rank, "/home/u/save.py:7 save", "/home/u/train.py:60 <module>", at=at + 60)
    report = job.report(alive=at + 200, now=at + 201)
    assert outline(report) == ("STUCK_OUTSIDE", None, "HOST_STALL", (), None, 1)
    assert report.status == "stuck"
    assert "save.py:7" in report.verdicts[0].summary


def test_a_pause_like_those_before_is_no_standstill():
    job = Job().rounds(20)
    job.clock += 100
    job.rounds(20)
    at = job.clock
    assert outline(job.report(alive=at + 200, now=at + 201))[0] == "IN_PROGRESS"


def test_a_standstill_of_which_no_stack_tells_names_nobody():
    job = Job().rounds(20)
    report = job.report(alive=job.clock + 200, now=job.clock + 201)
    assert outline(report) == ("STUCK_OUTSIDE", None, "UNDETERMINED", (), None, 3)
