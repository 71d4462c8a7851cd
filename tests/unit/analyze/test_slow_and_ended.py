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
    assert outline(report) == ("STRAGGLER", None, "UNDETERMINED", (1,), 3, 1)
    assert report.status == "slow"
    assert len(report.verdicts) == 1
    verdict = report.verdicts[0]
    assert any("ended from outside" in line and "SIG" in line for line in verdict.not_checked)
    assert any("was killed by" in e.what for e in verdict.evidence)


def test_straggler_is_named_where_the_job_was_killed_between_rounds():
    job = slow()
    job.exits(0, 1, 2, 3, at=job.clock, signal=9)
    assert outline(job.report(ended=job.clock + 2, exit_code=1))[:4] == ("STRAGGLER", None, "UNDETERMINED", (1,))


def test_habitual_straggler_is_named_beside_the_rank_that_is_missing():
    job = slow(by=0.12).hang(without=[3], gave_up=20)
    job.exits(3, at=job.clock + 1, signal=15)
    report = job.report(ended=job.clock + 2, exit_code=1)
    assert outline(report)[:4] == ("RANK_NOT_ENTERED", "IDLE", "UNDETERMINED", (3,))
    assert outline(report, 1)[:4] == ("STRAGGLER", None, "UNDETERMINED", (1,))
    assert report.status == "failed"


def test_a_straggler_does_not_hide_an_error_of_a_ranks_own():
    job = slow().raises(2, at=9.0)
    job.exits(0, 1, 3, at=9.4, signal=15)
    report = job.report(ended=job.clock + 10, exit_code=1)
    assert [v.structure for v in report.verdicts] == ["ERROR_REPORTED", "STRAGGLER"]
