"""A rank that never entered the round that the others wait in: who, in what state, and why."""

from __future__ import annotations

from jobs import Job, outline


def test_idle_rank_is_named_while_its_peers_time_out():
    job = Job().rounds(5).hang(without=[1], gave_up=20)
    end = job.clock + 0.5
    job.exits(0, 2, 3, at=end, code=1).exits(1, at=end, signal=15)
    for rank in (0, 2, 3):
        job.raises(rank, at=end - 0.3, kind="RuntimeError", message="Timed out waiting 20000ms")
    report = job.report(ended=end + 1, exit_code=1)
    assert outline(report) == ("RANK_NOT_ENTERED", "IDLE", "UNDETERMINED", (1,), 6, 1)
    verdict = report.verdicts[0]
    assert verdict.waiting_ranks == (0, 2, 3)
    assert verdict.op == "all_reduce"
    assert verdict.structure_confidence == "high"
    assert report.status == "failed"


def test_killed_rank_is_named_and_not_those_who_raise_because_of_it():
    job = Job().rounds(5)
    killed = job.clock
    job.hang(without=[3], enter=killed + 0.005, gave_up=0.01)
    job.exits(3, at=killed, signal=9)
    for rank in (0, 1, 2):
        job.raises(rank, at=killed + 0.02, kind="RuntimeError", message="Connection closed by peer")
    assert outline(job.report(ended=killed + 3, exit_code=1)) == (
        "RANK_NOT_ENTERED",
        "DEAD",
        "PROCESS_KILLED",
        (3,),
        6,
        1,
    )


def test_killed_rank_is_told_from_those_that_the_launcher_ends_before_they_fail():
    """torchrun may send SIGTERM within milliseconds, long before anybody's call fails."""
    job = Job().rounds(5)
    killed = job.clock
    job.hang(without=[3], enter=killed + 0.005)
    job.exits(3, at=killed, signal=9).exits(0, 1, 2, at=killed + 0.02, signal=15)
    assert outline(job.report(ended=killed + 3, exit_code=1)) == (
        "RANK_NOT_ENTERED",
        "DEAD",
        "PROCESS_KILLED",
        (3,),
        6,
        1,
    )


def test_rank_that_was_about_to_enter_when_another_died_is_not_blamed():
    job = Job().rounds(5)
    killed = job.clock
    job.hang(without=[1, 3], enter=killed - 0.002, gave_up=0.01)
    job.exits(3, at=killed, signal=9).exits(1, at=killed + 0.3, signal=15)
    assert outline(job.report(ended=killed + 3, exit_code=1))[3:5] == ((3,), 6)


def test_raising_rank_is_named_even_if_its_exception_reached_the_top_after_its_peers_failed():
    job = Job().rounds(5)
    at = job.clock
    job.hang(without=[1], enter=at, gave_up=0.15)
    job.raises(1, at=at + 0.2)
    for rank in (0, 2, 3):
        job.raises(rank, at=at + 0.17, kind="RuntimeError", message="Connection closed by peer")
    report = job.report(ended=at + 3, exit_code=1)
    assert outline(report) == ("RANK_NOT_ENTERED", "DEAD", "EXCEPTION", (1,), 6, 1)
    assert "ValueError: bad batch at train.py:18" in report.verdicts[0].summary


def test_exception_long_after_the_others_timed_out_is_an_echo():
    job = Job().rounds(5).hang(without=[1], gave_up=20)
    end = job.clock
    job.raises(1, at=end + 5, kind="DistStoreError", message="wait timeout")
    assert outline(job.report(ended=end + 9, exit_code=1)) == ("RANK_NOT_ENTERED", "IDLE", "UNDETERMINED", (1,), 6, 1)


def test_stopped_rank():
    job = Job().rounds(5)
    at = job.clock
    job.hang(without=[0], enter=at, gave_up=15)
    job.rank(0, process_state="T", process_state_ns=at, last_alive_ns=at).exits(0, at=at + 17, signal=9, alive=at)
    assert outline(job.report(ended=at + 20, exit_code=1)) == (
        "RANK_NOT_ENTERED",
        "STOPPED",
        "PROCESS_STOPPED",
        (0,),
        6,
        1,
    )


def test_exit_with_a_code_and_no_exception():
    job = Job().rounds(5)
    at = job.clock
    job.hang(without=[2], enter=at + 0.01, gave_up=0.02).exits(2, at=at, code=3)
    assert outline(job.report(ended=at + 3, exit_code=1)) == ("RANK_NOT_ENTERED", "DEAD", "PROCESS_EXITED", (2,), 6, 1)


def test_vanished_rank_is_dead_and_nobody_knows_why():
    job = Job().rounds(5)
    at = job.clock
    job.hang(without=[2], enter=at + 0.01, gave_up=0.02).exits(2, at=at, source="vanished")
    assert outline(job.report(ended=at + 3)) == ("RANK_NOT_ENTERED", "DEAD", "UNDETERMINED", (2,), 6, 1)


def test_rank_without_data_and_without_exit_information_is_silent():
    job = Job().rounds(3, without=[2]).hang(without=[2], gave_up=5)
    job.rank(2, data="missing")
    report = Job.report(job, ended=job.clock + 9, exit_code=1)
    verdict = report.verdicts[0]
    assert (verdict.structure, verdict.detail, verdict.culprit_ranks) == ("RANK_NOT_ENTERED", "SILENT", (2,))
    assert report.coverage.ranks_missing == (2,)
    assert verdict.structure_confidence != "high"


def test_rank_that_went_silent_when_nobody_watched():
    job = Job().rounds(5)
    at = job.clock
    job.hang(without=[2], enter=at).rank(2, last_alive_ns=at)
    assert outline(job.report(alive=at + 40))[:5] == ("RANK_NOT_ENTERED", "SILENT", "UNDETERMINED", (2,), 6)


def test_rank_that_hung_with_the_gil_held_did_not_die():
    """Its signs of life stop, but its parent saw it end much later, by the launcher's hand."""
    job = Job().rounds(5)
    at = job.clock
    job.hang(without=[1], enter=at, gave_up=20).exits(1, at=at + 21, signal=15, alive=at)
    assert outline(job.report(ended=at + 23, exit_code=1))[:4] == ("RANK_NOT_ENTERED", "IDLE", "UNDETERMINED", (1,))


def test_rank_in_another_groups_round_is_a_victim():
    """Rank 0 hangs in group 1 for rank 1, so ranks 2 and 3 wait for rank 0 in the world group: rank 1 is to blame."""
    job = Job().rounds(3)
    pair = job.group([0, 1])
    job.round(group=pair)
    job.hang(only=[0], group=pair, site="loop_b").hang(only=[2, 3], enter=job.clock + 0.1)
    job.exits(0, 1, 2, 3, at=job.clock + 40, signal=9)
    report = job.report(ended=job.clock + 41, exit_code=1)
    verdict = report.verdicts[0]
    assert (verdict.structure, verdict.culprit_ranks, verdict.group.name, verdict.seq) == (
        "RANK_NOT_ENTERED",
        (1,),
        "1",
        2,
    )
    assert len(report.verdicts) == 1
    assert verdict.victims.ranks == 3


def test_late_start_of_a_ring_is_no_evidence_of_absence():
    """Of rank 1 only the newest calls are kept and none of them is of this group."""
    job = Job().rounds(3)
    pair = job.group([0, 1])
    job.hang(only=[0], group=pair, enter=job.clock)
    job.rank(1, first_call=5000, calls_lost=4999)
    job.exits(0, 1, 2, 3, at=job.clock + 40, signal=9)
    report = job.report(ended=job.clock + 41, exit_code=1)
    assert report.verdicts[0].structure != "RANK_NOT_ENTERED"


def test_rank_whose_recorder_went_off_is_not_blamed():
    job = Job().rounds(3).hang(without=[2], gave_up=20).rank(2, recorder_off="no space")
    report = job.report(ended=job.clock + 5, exit_code=1)
    assert 2 not in report.verdicts[0].culprit_ranks


def test_two_ranks_one_missing():
    job = Job(2).rounds(5).hang(without=[0], gave_up=20)
    assert outline(job.report(ended=job.clock + 1, exit_code=1))[:4] == (
        "RANK_NOT_ENTERED",
        "IDLE",
        "UNDETERMINED",
        (0,),
    )


def test_several_idle_ranks_stand_in_one_verdict():
    job = Job(8).rounds(5).hang(without=[2, 3], gave_up=20)
    report = job.report(ended=job.clock + 1, exit_code=1)
    assert len(report.verdicts) == 1
    assert outline(report)[:4] == ("RANK_NOT_ENTERED", "IDLE", "UNDETERMINED", (2, 3))


def test_two_dead_ranks_of_different_kinds_are_two_roots():
    job = Job().rounds(5)
    at = job.clock
    job.hang(without=[2, 3], enter=at, gave_up=0.05).exits(3, at=at - 0.001, signal=9).raises(2, at=at - 0.002)
    causes = {v.cause.value: v.culprit_ranks for v in job.report(ended=at + 3, exit_code=1).verdicts}
    assert causes == {"PROCESS_KILLED": (3,), "EXCEPTION": (2,)}


def test_end_that_the_poller_missed_does_not_hide_the_round_that_hangs():
    """Rank 3 died before the end of its last finished call was stored: that call is no open call."""
    job = Job().rounds(4)
    at = job.clock
    for rank in range(4):
        job.call(rank, at, None if rank == 3 else at + 0.004)
    job.hang(without=[3], enter=at + 0.02, gave_up=0.02).exits(3, at=at + 0.003, signal=9)
    assert outline(job.report(ended=at + 3, exit_code=1)) == ("RANK_NOT_ENTERED", "DEAD", "PROCESS_KILLED", (3,), 6, 1)


def test_rank_that_came_after_its_peers_had_given_up_did_not_enter():
    """It wakes up when the others have timed out and enters a round that is over."""
    job = Job().rounds(5)
    at = job.clock
    job.hang(without=[1], enter=at, gave_up=15)
    job.call(1, at + 15.3, at + 15.31, outcome="failed")
    for rank in range(4):
        job.raises(rank, at=at + 15.1 + 0.25 * (rank == 1), kind="RuntimeError", message="Connection closed by peer")
    assert outline(job.report(ended=at + 17, exit_code=1)) == ("RANK_NOT_ENTERED", "IDLE", "UNDETERMINED", (1,), 6, 1)


def test_killed_rank_on_a_host_whose_clock_is_ahead():
    job = Job().rounds(5)
    at = job.clock
    job.hang(without=[3], enter=at, gave_up=0.01).exits(3, at=at + 0.6, signal=9).rank(3, host="b")
    assert outline(job.report(ended=at + 3, exit_code=1))[:4] == ("RANK_NOT_ENTERED", "DEAD", "PROCESS_KILLED", (3,))


def test_call_that_fails_at_once_does_not_make_the_next_to_come_a_culprit():
    job = Job().rounds(5)
    at = job.clock
    job.call(0, at, at + 0.001, outcome="failed").call(2, at, at + 0.5, outcome="failed")
    job.call(3, at + 0.002, at + 0.5, outcome="failed")
    job.raises(0, at=at + 0.01).exits(1, at=at + 0.4, signal=15)
    verdict = job.report(ended=at + 3, exit_code=1).verdicts[0]
    assert set(verdict.culprit_ranks) <= {0}


def test_peer_that_enters_right_after_the_first_failure_is_an_echo():
    """Rank 1 exits; rank 2 fails at once; rank 0 enters a millisecond later, fails, raises and exits too."""
    job = Job().rounds(5)
    at = job.clock
    job.call(2, at, at + 0.005, outcome="failed").call(3, at, at + 0.02, outcome="failed")
    job.call(0, at + 0.006, at + 0.02, outcome="failed")
    job.exits(1, at=at - 0.001, code=7)
    for rank in (0, 2, 3):
        job.raises(rank, at=at + 0.03, kind="RuntimeError", message="Connection closed by peer")
    report = job.report(ended=at + 3, exit_code=1)
    assert outline(report) == ("RANK_NOT_ENTERED", "DEAD", "PROCESS_EXITED", (1,), 6, 1)
    assert len(report.verdicts) == 1


def test_round_of_the_verdict_does_not_hang_on_which_group_waits_first():
    for first in (0.0, 0.002):
        job = Job().rounds(3)
        pair = job.group([0, 1])
        job.round(group=pair)
        at = job.clock
        job.hang(only=[0], group=pair, enter=at + 0.001, gave_up=20).hang(only=[2, 3], enter=at + first, gave_up=20)
        verdict = job.report(ended=at + 30, exit_code=1).verdicts[0]
        assert (verdict.culprit_ranks, verdict.group.name, verdict.seq) == ((1,), "1", 2)


def test_calls_that_a_recorder_left_open_when_it_went_off_are_no_hang():
    job = Job().round()
    for rank in range(4):
        job.call(rank, job.clock).rank(rank, recorder_off="an error of ours")
    job.exits(3, at=job.clock + 9, signal=9).exits(0, 1, 2, at=job.clock + 9.5, code=1)
    verdict = job.report(ended=job.clock + 12, exit_code=1).verdicts[0]
    assert verdict.structure in {"ERROR_REPORTED", "INSUFFICIENT_EVIDENCE"}


def test_rank_that_the_launcher_ended_in_time_is_no_culprit_beside_a_killed_one():
    """Rank 3 is killed; the launcher's SIGTERM reaches rank 0 between two calls, before anybody's call fails."""
    job = Job().rounds(4)
    at = job.clock
    job.hang(only=[1, 2], enter=at, gave_up=0.026)
    job.exits(3, at=at - 0.001, signal=9).exits(0, at=at + 0.017, signal=15)
    report = job.report(ended=at + 3, exit_code=1)
    assert outline(report) == ("RANK_NOT_ENTERED", "DEAD", "PROCESS_KILLED", (3,), 5, 1)
    assert len(report.verdicts) == 1


def test_two_roots_are_each_less_sure_than_one():
    """Ranks 1 and 5 are missing in groups that have nothing to do with each other."""
    job = Job(8)
    left, right = job.group(range(4)), job.group(range(4, 8))
    for group in (left, right):
        for _ in range(4):
            job.round(group=group)
    at = job.clock
    job.rank(1, process_state="T", process_state_ns=at).hang(group=left, without=[1], enter=at, gave_up=40)
    one = job.report(ended=job.clock + 1, exit_code=1).verdicts
    job.hang(group=right, without=[5], enter=at, gave_up=40).exits(5, at=at, code=3)
    two = job.report(ended=job.clock + 1, exit_code=1).verdicts
    assert [v.culprit_ranks for v in one] == [(1,)]
    assert sorted(v.culprit_ranks for v in two) == [(1,), (5,)]
    assert one[0].structure_confidence == "high"
    assert {v.structure_confidence for v in two} == {"medium"}


def test_a_round_seen_open_for_less_than_the_threshold_is_less_sure():
    job = Job().rounds(5).hang(without=[1])
    sure = {s: job.report(ended=job.clock + s + 1, alive=job.clock + s, exit_code=1).verdicts[0] for s in (10, 45)}
    assert [v.culprit_ranks for v in sure.values()] == [(1,), (1,)]
    assert sure[45].structure_confidence == "high"
    assert sure[10].structure_confidence == "medium"
    assert any("10.0 s" in said for said in sure[10].contradictions)


def test_a_few_who_came_may_have_made_a_call_too_many_though_another_waits_for_them_elsewhere():
    """Rank 1 makes one more call and waits alone until a timeout; rank 0 waits for it in their own group."""
    job = Job()
    pair = job.group([0, 1], "pair")
    job.rounds(3)
    began = job.clock
    job.hang(without=[1], group=pair, enter=began + 1, gave_up=61)
    job.hang(without=[0, 2, 3], enter=began, gave_up=60)
    job.exits(0, 1, 2, 3, at=began + 70, code=1)
    verdict = job.report(ended=began + 71, exit_code=1).verdicts[0]
    assert verdict.structure_confidence != "high" or not {2, 3} & set(verdict.culprit_ranks)
