"""A call that fails in its own rank, and messages from any source: who waits, and whom it may be blamed on."""

from __future__ import annotations

from jobs import Job, outline


def ended(job, *, code=1, after=2.0):
    return job.report(ended=job.clock + after, exit_code=code)


def failing(job, *ranks, after=0.005, echo=1.0):
    """In the next round the calls of `ranks` raise before the backend has them; those of the others fail later."""
    at = job.clock
    for rank in range(job.world):
        if rank in ranks:
            job.call(rank, at, at + after, outcome="failed", issued_ns=None)
            job.raises(rank, at=at + after + 0.02, kind="RuntimeError", message="invalid tensor size")
        else:
            job.call(rank, at, at + echo, outcome="failed")
            job.raises(rank, at=at + echo + 0.02, kind="RuntimeError", message="Connection closed by peer")
    job.clock = at + echo
    return job


# A call that fails at once


def test_rank_whose_own_call_raised_at_once_is_named():
    report = ended(failing(Job().rounds(5), 1))
    assert outline(report) == ("ALL_ENTERED_NONE_COMPLETED", "RAISED", "EXCEPTION", (1,), 6, 1)
    verdict = report.verdicts[0]
    assert verdict.waiting_ranks == (0, 2, 3)
    assert "failed at once: it raised RuntimeError: invalid tensor size" in verdict.summary


def test_all_ranks_whose_calls_raised_are_named():
    assert outline(ended(failing(Job().rounds(5), 0, 1, 2, 3)))[:5] == (
        "ALL_ENTERED_NONE_COMPLETED",
        "RAISED",
        "EXCEPTION",
        (0, 1, 2, 3),
        6,
    )


def test_call_that_raises_after_a_wait_is_not_the_first_cause():
    """A monitored_barrier raises before the backend has anything, but only after its own timeout."""
    report = ended(failing(Job().rounds(5), 0, after=30, echo=31))
    assert outline(report)[:4] == ("ALL_ENTERED_NONE_COMPLETED", None, "UNDETERMINED", ())


def test_call_that_raises_because_a_peer_had_gone_is_an_echo():
    job = Job().rounds(5)
    at = job.clock
    for rank in (0, 1, 2):
        job.call(rank, at + 0.01, at + 0.012, outcome="failed", issued_ns=None)
    job.exits(3, at=at, signal=9)
    assert outline(ended(job))[:4] == ("RANK_NOT_ENTERED", "DEAD", "PROCESS_KILLED", (3,))


def test_call_that_raises_because_a_peer_died_inside_is_an_echo():
    job = Job().rounds(5)
    at = job.clock
    job.call(3, at)
    for rank in (0, 1, 2):
        job.call(rank, at + 0.01, at + 0.012, outcome="failed", issued_ns=None)
    job.exits(3, at=at + 0.005, signal=9)
    job.clock = at + 1
    assert outline(ended(job))[:4] == ("ALL_ENTERED_NONE_COMPLETED", None, "PROCESS_KILLED", (3,))


def test_call_that_raises_while_another_rank_is_on_its_way():
    """Rank 2 would have entered a moment later; the launcher ended it because of rank 1."""
    job = Job().rounds(5)
    at = job.clock
    job.call(1, at, at + 0.005, outcome="failed", issued_ns=None)
    job.raises(1, at=at + 0.02, kind="RuntimeError", message="invalid tensor size")
    job.call(0, at).call(3, at).exits(0, 2, 3, at=at + 0.3, signal=15)
    report = ended(job)
    assert outline(report) == ("ERROR_REPORTED", "RAISED", "EXCEPTION", (1,), 6, 1)


def test_rank_long_missing_is_the_root_and_not_the_error_of_who_waits():
    job = Job().rounds(5)
    at = job.clock
    job.call(0, at, at + 20, outcome="failed").call(2, at, at + 20, outcome="failed")
    job.call(3, at + 10, at + 10.01, outcome="failed", issued_ns=None)
    job.raises(3, at=at + 10.02, kind="RuntimeError", message="invalid tensor size").exits(1, at=at + 21, signal=15)
    job.clock = at + 20
    assert outline(ended(job))[:4] == ("RANK_NOT_ENTERED", "IDLE", "UNDETERMINED", (1,))


# Messages from any source


def test_receiver_from_any_source_is_a_victim_of_the_rank_that_others_wait_for():
    """Rank 0 collects three messages, and rank 2 never sends its own; ranks 1 and 3 have gone on to an all_reduce."""
    job = Job().rounds(5)
    at = job.clock
    for number, rank in enumerate((1, 3)):
        job.call(rank, at, at + 0.01, op="send", peer=0)
        job.call(0, at + 0.01 * number, at + 0.01 * number + 0.01, op="recv")
        job.call(rank, at + 0.02)
    job.call(0, at + 0.02, op="recv").exits(0, 1, 2, 3, at=at + 40, signal=9)
    report = job.report(ended=at + 41, exit_code=1)
    assert outline(report)[:4] == ("RANK_NOT_ENTERED", "IDLE", "UNDETERMINED", (2,))
    assert report.verdicts[0].op == "all_reduce"
    assert report.verdicts[0].victims.ranks == 3


def test_message_that_anybody_might_send_blames_nobody_while_all_are_idle():
    job = Job().rounds(5)
    job.call(0, job.clock, op="recv").exits(0, 1, 2, 3, at=job.clock + 40, signal=9)
    report = ended(job, after=41)
    assert outline(report) == ("P2P_UNPAIRED", None, "UNDETERMINED", (), 1, 1)
    assert "Rank 0 waits in recv #1 from any source (train.py:21), and nobody sends" in report.verdicts[0].summary
    assert "ranks 1-3 are in no call" in report.verdicts[0].summary


def test_message_that_nobody_can_send_any_more():
    job = Job().rounds(5)
    job.call(0, job.clock, op="recv").clean(1, 2, 3, at=job.clock + 1)
    job.exits(0, at=job.clock + 40, signal=9)
    report = ended(job, after=41)
    assert outline(report)[:4] == ("P2P_UNPAIRED", None, "CODE_DIVERGENCE", ())
    assert "had left in order" in report.verdicts[0].summary


def test_message_from_a_rank_that_died():
    job = Job().rounds(5)
    at = job.clock
    job.call(0, at, op="recv").exits(3, at=at + 1, signal=9).exits(0, 1, 2, at=at + 40, signal=15)
    assert outline(ended(job, after=41))[:4] == ("P2P_UNPAIRED", None, "PROCESS_KILLED", (3,))


def test_of_two_ranks_only_one_can_send():
    job = Job(2).rounds(5)
    job.call(0, job.clock, op="recv").exits(0, 1, at=job.clock + 40, signal=9)
    assert outline(ended(job, after=41))[:4] == ("RANK_NOT_ENTERED", "IDLE", "UNDETERMINED", (1,))


def test_everybody_waits_for_the_receiver_that_waits_for_anybody():
    job = Job().rounds(5)
    job.call(0, job.clock, op="recv").hang(without=[0], enter=job.clock)
    job.exits(0, 1, 2, 3, at=job.clock + 40, signal=9)
    assert outline(ended(job, after=41))[:4] == ("ORDER_DEADLOCK", None, "CODE_DIVERGENCE", ())


def test_sends_that_a_receiver_from_any_source_took_are_not_open():
    """A `Work` of a send that nobody waits for shows no end; rank 3 is what the job hangs for."""
    job = Job().rounds(2)
    for number in range(3):
        for rank in (1, 2):
            job.call(rank, job.clock, op="send", peer=0).call(0, job.clock, job.clock + 0.01, op="recv")
        job.clock += 0.02 + number
    job.hang(without=[3], gave_up=20).exits(3, at=job.clock + 1, signal=15)
    report = ended(job)
    assert outline(report)[:4] == ("RANK_NOT_ENTERED", "IDLE", "UNDETERMINED", (3,))
    assert len(report.verdicts) == 1


def test_minority_of_a_circle_is_named_in_the_evidence_and_not_blamed():
    job = Job()
    one, two = job.group(range(4)), job.group(range(4), name="two")
    job.rounds(2).hang(only=[0, 1, 3], group=one, gave_up=20)
    job.hang(only=[2], group=two, enter=job.clock - 20, gave_up=20)
    report = ended(job)
    assert outline(report)[:4] == ("ORDER_DEADLOCK", None, "CODE_DIVERGENCE", ())
    assert any("rank 2 is in the minority" in e.what for e in report.verdicts[0].evidence)


# Exceptions that are not those of the call


def test_exception_that_came_long_after_the_failed_call_is_not_told_as_its_own():
    """Rank 1 caught the error of its call, and what ended it later is the time-out of another."""
    job = failing(Job().rounds(5), 1, echo=1.0)
    job.call(1, job.clock, job.clock + 9, outcome="failed", site="other")
    job.raises(1, at=job.clock + 9.02, kind="RuntimeError", message="Timed out waiting 9000ms")
    verdict = ended(job, after=10).verdicts[0]
    assert (verdict.detail, verdict.culprit_ranks, verdict.cause) == ("RAISED", (1,), "EXCEPTION")
    assert "Timed out" not in verdict.summary
    assert not any("Timed out" in e.what for e in verdict.evidence)


def test_exception_soon_after_a_failed_call_that_the_rank_went_on_from():
    job = failing(Job().rounds(5), 1)
    at = job.clock - 1.0
    job.call(1, at + 0.01, at + 0.1, outcome="failed", site="other", issued_ns=None)
    job.raises(1, at=at + 0.12, message="another matter")
    assert "another matter" not in ended(job).verdicts[0].summary
