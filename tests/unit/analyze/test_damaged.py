"""Recordings with ranks missing, empty or cut short: a rank that was not recorded is not one that never came."""

from __future__ import annotations

from jobs import Job, ns, outline

from roundk.analyze.case import build
from roundk.analyze.structure.last_seen import waiting_evidence
from roundk.analyze.waitfor import wait_for


def ended(job, *, code=1, after=2.0):
    return job.report(ended=job.clock + after, exit_code=code)


def forget(job, *ranks, data="truncated"):
    """The segments of these ranks are lost; their side files are not."""
    job.calls = [call for call in job.calls if call["rank"] not in ranks]
    for rank in ranks:
        job.rank(rank, data=data)
    return job


def timed_out(*, idle=2):
    """All time out waiting for one idle rank, rank 0 first; the launcher ends the rest."""
    job = Job().rounds(5).hang(without=[idle], gave_up=15)
    for rank in range(4):
        if rank != idle:
            job.raises(rank, at=job.clock + 0.001 * rank, kind="RuntimeError", message="Connection closed by peer")
    return job.exits(idle, at=job.clock + 5, signal=15)


def test_victim_with_lost_segments_is_not_blamed_for_its_echo():
    for data in ("truncated", "empty", "missing"):
        report = ended(forget(timed_out(), 0, data=data), after=9)
        assert outline(report) == ("RANK_NOT_ENTERED", "IDLE", "UNDETERMINED", (2,), 6, 1), data
        assert len(report.verdicts) == 1
        assert report.verdicts[0].structure_confidence != "high"


def test_victim_without_exit_information_is_not_blamed_either():
    job = forget(timed_out(), 0, data="missing")
    job.ranks[0] = {"data": "missing"}
    report = ended(job, after=9)
    assert [v.culprit_ranks for v in report.verdicts] == [(2,)]


def test_victim_cut_short_is_not_blamed():
    job = timed_out()
    job.calls = [c for c in job.calls if c["rank"] != 1 or c["seq"] < 4]
    report = ended(job.rank(1, data="truncated"), after=9)
    assert [v.culprit_ranks for v in report.verdicts] == [(2,)]


def test_what_is_missing_is_said_where_only_an_unrecorded_rank_can_be_the_culprit():
    report = ended(forget(timed_out(), 2), after=9)
    assert outline(report) == ("INSUFFICIENT_EVIDENCE", None, "UNDETERMINED", (), 6, 3)
    assert "the recording of rank 2 is missing or incomplete" in report.verdicts[0].summary


def test_victim_with_lost_segments_that_its_launcher_ended_is_not_blamed():
    """Different sizes: rank 0 fails, the others are ended by SIGTERM at once."""
    job = Job().rounds(5)
    at = job.clock
    job.call(0, at, at + 0.026, outcome="failed").call(1, at).call(2, at).call(3, at)
    job.raises(0, at=at + 0.03, kind="RuntimeError", message="Connection closed by peer")
    job.exits(1, 2, 3, at=at + 0.04, signal=15)
    assert ended(forget(job, 2)).verdicts[0].culprit_ranks == ()


def test_victims_with_lost_segments_that_aborted_are_not_blamed():
    """An uncaught error of the transport ends a rank with SIGABRT, one of them before any kept call failed."""
    job = Job().rounds(5)
    at = job.clock
    job.call(0, at, at + 0.026, outcome="failed").call(1, at).call(2, at).call(3, at)
    job.raises(0, at=at + 0.03, kind="RuntimeError", message="Connection closed by peer")
    job.exits(1, at=at + 0.01, signal=6).exits(2, 3, at=at + 0.04, signal=15)
    report = ended(forget(job, 1, 2))
    assert outline(report) == ("INSUFFICIENT_EVIDENCE", None, "UNDETERMINED", (), 6, 3)


def test_stack_of_an_unrecorded_rank_is_shown_and_not_judged():
    job = forget(timed_out(), 2).stack(2, "/home/u/data.py:7 load", "/home/u/train.py:18 main", at=4.0)
    report = ended(job, after=9)
    assert report.verdicts[0].culprit_ranks == ()
    assert any("data.py:7 load" in e.what for e in report.verdicts[0].evidence)


def test_killed_rank_is_named_even_without_its_segments():
    job = Job().rounds(5)
    killed = job.clock
    job.hang(without=[3], enter=killed + 0.005, gave_up=0.01).exits(3, at=killed, signal=9)
    for rank in (0, 1, 2):
        job.raises(rank, at=killed + 0.02, kind="RuntimeError", message="Connection closed by peer")
    report = ended(forget(job, 3))
    assert outline(report) == ("RANK_NOT_ENTERED", "DEAD", "PROCESS_KILLED", (3,), 6, 1)
    assert report.verdicts[0].structure_confidence == "medium"


def test_healthy_is_said_with_less_confidence_where_a_recording_is_cut_short():
    job = Job().rounds(5)
    job.calls = [c for c in job.calls if c["rank"] != 1 or c["seq"] < 4]
    report = ended(job.rank(1, data="truncated").clean(0, 1, 2, 3, at=job.clock), code=0)
    assert (report.verdicts[0].structure, report.verdicts[0].structure_confidence) == ("HEALTHY", "medium")


def test_nothing_is_said_to_be_healthy_where_no_round_is_seen_complete():
    job = forget(Job().rounds(5), 1, 2).clean(0, 1, 2, 3, at=1.0)
    report = ended(job, code=0)
    assert outline(report) == ("INSUFFICIENT_EVIDENCE", None, "UNDETERMINED", (), None, 3)
    assert "ranks 1, 2" in report.verdicts[0].summary


def test_failed_call_without_an_end():
    job = Job().rounds(5).hang(without=[2], gave_up=15)
    for call in job.calls:
        if call["outcome"] == "failed":
            call["end_ns"] = None
    trace = job.exits(2, at=job.clock + 5, signal=15).trace(ended=job.clock + 9, exit_code=1)
    case = build(trace, now_ns=ns(job.clock + 10), stall_ns=30_000_000_000)
    assert case.gave_up_ns is None
    assert len(waiting_evidence(case, wait_for(case).rounds[0])) == 1
    assert outline(job.report(ended=job.clock + 9, exit_code=1))[3:] == ((2,), 6, 1)


def test_rank_whose_oldest_calls_were_deleted_is_recorded_to_its_end():
    """The ring keeps the newest calls: a group used only at the start leaves none, and that loses nothing."""
    job = Job()
    start = job.group([0, 1, 2, 3])
    job.round(group=start).rounds(5)
    at = job.clock
    job.hang(without=[2], enter=at + 0.01, gave_up=0.02).exits(2, at=at, code=3)
    job.calls = [c for c in job.calls if c["rank"] != 2 or c["group"] == 0]
    job.rank(2, first_call=2, calls_lost=1)
    assert outline(ended(job)) == ("RANK_NOT_ENTERED", "DEAD", "PROCESS_EXITED", (2,), 6, 1)
