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


def interrupted(job, *, after, without=(1,)):
    """A round that lacks ranks; so many seconds later SIGINT reaches all, and those inside see their peers go."""
    job.hang(without=without, gave_up=after + 0.05)
    for rank in range(job.world):
        kind, site = ("KeyboardInterrupt", "load.py:9") if rank in without else ("RuntimeError", "train.py:21")
        message = "" if rank in without else "Connection closed by peer [127.0.0.1]:7564"
        job.raises(rank, at=job.clock - 0.04 + 0.1 * (rank not in without), kind=kind, message=message, site=site)
    return job


def told(job, *hosts, before=0.05):
    for host in hosts:
        job.fact("signal", "SIGINT was forwarded to the job", at=job.clock - before, host=host)
    return job.report(ended=job.clock + 1, exit_code=1)


def test_ctrl_c_on_a_hung_job_tells_where_the_missing_rank_was():
    report = told(interrupted(Job().rounds(5), after=20), "a")
    assert outline(report) == ("RANK_NOT_ENTERED", "BUSY", "HOST_STALL", (1,), 6, 1)
    assert "load.py:9" in report.verdicts[0].summary
    assert any("SIGINT was forwarded" in e.what for e in report.verdicts[0].evidence)


def test_ctrl_c_is_one_where_a_rank_left_nothing():
    job = interrupted(Job(5).rounds(5, only=range(4)), after=20, without=(1, 4))
    job.rank(4, data="missing", exception_type=None, exception_ns=None, exit_code=None, exit_ns=None, exit_source=None)
    report = told(job, "a")
    assert any(v.culprit_ranks == (1,) and v.detail == "BUSY" for v in report.verdicts), report.verdicts


def test_without_a_signal_an_interrupt_of_one_rank_is_its_end():
    job = interrupted(Job().rounds(5), after=20)
    report = job.report(ended=job.clock + 1, exit_code=1)
    assert outline(report)[:4] == ("RANK_NOT_ENTERED", "DEAD", "EXCEPTION", (1,))


@pytest.mark.parametrize("without", [(), (1,)])
def test_ctrl_c_on_a_job_that_was_well_blames_nobody(without):
    report = told(interrupted(Job().rounds(5), after=0.01, without=without), "a")
    assert outline(report) == ("INSUFFICIENT_EVIDENCE", None, "PROCESS_KILLED", (), None, 3)
    assert "SIGINT was forwarded" in report.verdicts[0].summary


def test_an_interrupt_after_somebody_failed_excuses_nobody():
    job = Job().rounds(5)
    job.raises(1, at=job.clock).hang(without=[1], gave_up=0.2)
    for rank in (0, 2, 3):
        job.raises(rank, at=job.clock + 30, kind="KeyboardInterrupt", message="")
    report = told(job, "a", before=-30)
    assert outline(report)[:4] == ("RANK_NOT_ENTERED", "DEAD", "EXCEPTION", (1,))


def two_hosts():
    job = Job().rounds(5)
    for rank in range(4):
        job.rank(rank, host="ab"[rank // 2])
    return job.hang(without=[2, 3], gave_up=3).exits(2, 3, at=job.clock - 0.02, signal=15)


def test_a_host_that_is_told_to_end_alone_is_where_it_begins():
    assert outline(told(two_hosts(), "b"))[:4] == ("RANK_NOT_ENTERED", "DEAD", "PROCESS_KILLED", (2, 3))


def test_hosts_that_are_told_together_are_not():
    report = told(two_hosts(), "a", "b")
    assert outline(report)[:2] == ("RANK_NOT_ENTERED", "IDLE")
    assert report.verdicts[0].cause != "PROCESS_KILLED"


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
