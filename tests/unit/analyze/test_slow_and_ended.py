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


def told(job, *hosts, before=0.05, name="SIGINT", ended=1.0):
    for host in hosts:
        job.fact("signal", f"{name} was forwarded to the job", at=job.clock - before, host=host, file="launcher-1")
        job.fact("end", "the command ended with code 1", at=job.clock + ended, host=host, file="launcher-1")
    return job.report(ended=job.clock + ended, exit_code=1)


def left(job, rank, how, *, at):
    """A rank's end in one of the ways in which a signal ends a process."""
    if how == "clean":
        job.clean(rank, at=at)
    elif how == "killed":
        job.exits(rank, at=at, signal=9)
    elif how == "worker":
        message = "DataLoader worker (pid 5) is killed by signal: Terminated."
        job.raises(rank, at=at, kind="RuntimeError", message=message, site="load.py:9")
    else:
        job.exits(rank, at=at, code=how, goodbye=True)


ENDS = ["clean", 143, 1, "worker", "killed"]


@pytest.mark.parametrize("how", ENDS)
def test_whatever_a_rank_makes_of_the_signal_it_is_not_why_the_job_hung(how):
    job = Job().rounds(5).hang(without=[1], gave_up=20)
    for rank in (0, 2, 3):
        job.exits(rank, at=job.clock, signal=15)
    left(job, 1, how, at=job.clock + (33 if how == "killed" else 0.1))
    report = told(job, "a", name="SIGTERM", ended=40.0)
    assert outline(report)[0] == "RANK_NOT_ENTERED"
    assert outline(report)[1] in ("IDLE", "BUSY")
    assert outline(report)[2] in ("UNDETERMINED", "HOST_STALL")
    assert outline(report)[3] == (1,)


@pytest.mark.parametrize("how", ENDS)
def test_whatever_a_rank_makes_of_the_signal_a_job_that_was_well_blames_nobody(how):
    job = Job().rounds(5).hang(without=[1], gave_up=0.06)
    for rank in (0, 2, 3):
        job.exits(rank, at=job.clock, signal=15)
    left(job, 1, how, at=job.clock + (33 if how == "killed" else 0.0))
    report = told(job, "a", name="SIGTERM", ended=40.0)
    assert outline(report) == ("INSUFFICIENT_EVIDENCE", None, "PROCESS_KILLED", (), None, 3)
    assert ("Rank 1 then raised RuntimeError" in report.verdicts[0].summary) is (how == "worker")


@pytest.mark.parametrize("how", ["killed", "worker", 1])
def test_what_came_before_the_signal_is_still_the_fault(how):
    job = Job().rounds(5).hang(without=[1], gave_up=0.3)
    left(job, 1, how, at=job.clock - 0.25)
    for rank in (0, 2, 3):
        job.exits(rank, at=job.clock, signal=15)
    assert outline(told(job, "a", name="SIGTERM"))[:2] == ("RANK_NOT_ENTERED", "DEAD")
    assert outline(told(job, "a", name="SIGTERM"))[3] == (1,)


def test_a_signal_that_the_job_survived_is_not_what_ended_it():
    job = Job().rounds(5).fact("signal", "SIGHUP was forwarded to the job", at=0.1, file="launcher-1")
    job.clock += 3600
    job.rounds(3).hang(without=[1], gave_up=2)
    job.exits(1, at=job.clock - 1.99, signal=15)
    for rank in (0, 2, 3):
        job.raises(rank, at=job.clock, kind="RuntimeError", message="Connection closed by peer [127.0.0.1]:7564")
    report = job.report(ended=job.clock + 5, exit_code=1)
    assert outline(report)[1:4] == ("DEAD", "PROCESS_KILLED", (1,))


def test_of_two_launchers_of_one_host_both_must_be_told():
    job = interrupted(Job().rounds(5), after=20)
    job.fact("end", "the command ended with code 1", at=job.clock + 1, file="launcher-2")
    assert outline(told(job, "a"))[1:4] == ("DEAD", "EXCEPTION", (1,))


def test_a_hosts_domain_or_another_name_of_its_folder_is_no_other_host():
    job = interrupted(Job().rounds(5), after=20)
    for rank in range(4):
        job.rank(rank, host="vm.cluster.local", source=f"node-b/rank-{rank:05d}-1.jsonl")
    assert outline(told(job, "node-b"))[:4] == ("RANK_NOT_ENTERED", "BUSY", "HOST_STALL", (1,))


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
