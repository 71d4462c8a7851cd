"""Everything that is not a missing rank: divergence, rounds nobody leaves, slow runs, runs with nothing to say."""

from __future__ import annotations

from jobs import Job, outline


def ended(job, *, code=1, after=2.0):
    return job.report(ended=job.clock + after, exit_code=code)


# Healthy and under way


def test_healthy():
    job = Job().rounds(10)
    job.clean(0, 1, 2, 3, at=job.clock)
    report = job.report(ended=job.clock + 1, exit_code=0)
    assert outline(report) == ("HEALTHY", None, None, (), None, 0)
    assert report.status == "healthy"


def test_healthy_although_some_calls_never_show_an_end():
    """A `Work` that nobody waits for may never be seen to end; a later round of the group shows that it did."""
    job = Job().rounds(3)
    for rank in range(4):
        job.call(rank, job.clock)
    job.rounds(3)
    job.clean(0, 1, 2, 3, at=job.clock)
    assert outline(job.report(ended=job.clock + 1, exit_code=0))[0] == "HEALTHY"


def test_noise_is_no_straggler():
    """Single wake-ups late by up to 120 ms on different ranks, as an oversubscribed machine makes them."""
    job = Job()
    for number in range(40):
        job.round(late={number % 4: 0.12} if number % 9 == 8 else {})
    job.clean(0, 1, 2, 3, at=job.clock)
    assert outline(job.report(ended=job.clock + 1, exit_code=0))[0] == "HEALTHY"


def test_slow_start_is_no_straggler():
    job = Job().round(late={2: 3.0}).round(late={2: 1.0}).rounds(10)
    job.clean(0, 1, 2, 3, at=job.clock)
    assert outline(job.report(ended=job.clock + 1, exit_code=0))[0] == "HEALTHY"


def test_open_round_of_a_living_job_is_in_progress():
    job = Job().rounds(5).hang(without=[1])
    report = job.report(alive=job.clock + 5, now=job.clock + 6)
    assert outline(report) == ("IN_PROGRESS", None, None, (), None, 0)
    assert report.status == "in_progress"


def test_living_job_is_stuck_from_the_threshold_on():
    job = Job().rounds(5).hang(without=[1])
    report = job.report(alive=job.clock + 31, now=job.clock + 32)
    assert outline(report)[:4] == ("RANK_NOT_ENTERED", "IDLE", "UNDETERMINED", (1,))
    assert report.status == "stuck"
    assert outline(job.report(alive=job.clock + 31, now=job.clock + 32, stall_s=60))[0] == "IN_PROGRESS"


# Nobody to blame


def test_whole_job_killed_with_nothing_stuck_blames_nobody():
    job = Job().rounds(10).hang(without=[2])
    job.exits(0, 1, 2, 3, at=job.clock + 0.05, signal=9)
    report = ended(job)
    assert outline(report) == ("INSUFFICIENT_EVIDENCE", None, "PROCESS_KILLED", (), None, 3)
    assert report.status == "undetermined"


def test_whole_job_killed_in_the_middle_of_a_round_blames_nobody():
    job = Job().rounds(10).hang()
    job.exits(0, 1, 2, 3, at=job.clock + 0.05, signal=15)
    assert outline(ended(job))[:4] == ("INSUFFICIENT_EVIDENCE", None, "PROCESS_KILLED", ())


def test_whole_job_killed_while_one_rank_had_long_been_missing():
    job = Job().rounds(10).hang(without=[2])
    job.exits(0, 1, 2, 3, at=job.clock + 3, signal=9)
    assert outline(ended(job, after=5)) == ("RANK_NOT_ENTERED", "IDLE", "UNDETERMINED", (2,), 11, 1)


def test_usual_pause_of_one_rank_is_no_absence():
    """Rank 0 saves for two seconds every few rounds, and the job is killed during such a save."""
    job = Job()
    for number in range(12):
        job.round(late={0: 2.0} if number % 4 == 3 else {})
    job.hang(without=[0]).exits(0, 1, 2, 3, at=job.clock + 1.8, signal=9)
    report = ended(job, after=4)
    assert [v.structure for v in report.verdicts] == ["STRAGGLER"]
    assert report.verdicts[0].culprit_ranks == (0,)


def test_no_calls():
    assert outline(Job().report(ended=5, exit_code=0)) == ("INSUFFICIENT_EVIDENCE", None, "UNDETERMINED", (), None, 3)


def test_error_between_rounds_with_nobody_waiting():
    job = Job().rounds(5).raises(1, at=5.0)
    job.exits(0, 2, 3, at=5.4, signal=15)
    report = job.report(ended=6, exit_code=1)
    assert outline(report) == ("ERROR_REPORTED", None, "EXCEPTION", (1,), None, 1)


def test_failed_command_without_any_sign():
    job = Job().rounds(5)
    assert outline(ended(job))[0] == "INSUFFICIENT_EVIDENCE"


# Everyone is in


def test_all_entered_none_completed():
    job = Job().rounds(5).hang(gave_up=20)
    report = ended(job)
    assert outline(report) == ("ALL_ENTERED_NONE_COMPLETED", None, "UNDETERMINED", (), 6, 3)
    assert report.status == "failed"


def test_stopped_inside_the_round():
    job = Job().rounds(5)
    at = job.clock
    for rank in (0, 1, 2, 3):
        end = None if rank == 2 else at + 20
        job.call(rank, at, end, outcome="open" if rank == 2 else "failed")
    job.rank(2, process_state="T", process_state_ns=at + 0.3, last_alive_ns=at + 0.3)
    assert outline(job.report(ended=at + 22, exit_code=1)) == (
        "ALL_ENTERED_NONE_COMPLETED",
        None,
        "PROCESS_STOPPED",
        (2,),
        6,
        1,
    )


def test_killed_inside_the_round():
    job = Job().rounds(5)
    at = job.clock
    for rank in (0, 1, 2, 3):
        end = None if rank == 2 else at + 0.51
        job.call(rank, at, end, outcome="open" if rank == 2 else "failed")
    job.exits(2, at=at + 0.5, signal=9)
    assert outline(job.report(ended=at + 3, exit_code=1)) == (
        "ALL_ENTERED_NONE_COMPLETED",
        None,
        "PROCESS_KILLED",
        (2,),
        6,
        1,
    )


def test_partial_completion():
    job = Job().rounds(5)
    at = job.clock
    for rank in range(4):
        job.call(rank, at, None if rank == 2 else at + 0.01)
    report = job.report(ended=at + 50, alive=at + 45)
    assert outline(report)[0] == "PARTIAL_COMPLETION"
    assert report.verdicts[0].waiting_ranks == (2,)


# Divergence


def test_another_size_is_named_and_not_who_aborted_first():
    job = Job().rounds(5)
    at = job.clock
    for rank in range(4):
        failed = {1: 0.01, 0: 0.3, 3: 0.3, 2: 0.4}[rank]
        job.call(rank, at, at + failed, outcome="failed", numel=8 if rank == 2 else 4)
    job.raises(1, at=at + 0.02, kind="RuntimeError", message="aborted")
    report = ended(job)
    assert outline(report) == ("SIGNATURE_MISMATCH", "SIZE", "CODE_DIVERGENCE", (2,), 6, 1)
    assert "train.py:21" in report.verdicts[0].summary


def test_another_operation_in_the_same_loop():
    job = Job().rounds(5)
    at = job.clock
    for rank in range(4):
        extra = {"op": "broadcast", "site": "other", "root": 0} if rank == 2 else {}
        job.call(rank, at, at + 20, outcome="failed", **extra)
    report = ended(job)
    assert outline(report) == ("SIGNATURE_MISMATCH", "OP", "CODE_DIVERGENCE", (2,), 6, 1)
    assert report.verdicts[0].op == "all_reduce"


def test_another_operation_that_ends_at_once_and_goes_on():
    """As the source of its broadcast rank 2 is done with it, and hangs one round further on than its peers."""
    job = Job().rounds(5)
    at = job.clock
    for rank in (0, 1, 3):
        job.call(rank, at, at + 20, outcome="failed")
    job.call(2, at, at + 0.001, op="broadcast", site="other", root=2).call(2, at + 0.02, at + 20, outcome="failed")
    assert outline(ended(job))[:5] == ("SIGNATURE_MISMATCH", "OP", "CODE_DIVERGENCE", (2,), 6)


def test_other_columns_of_the_signature():
    for columns, detail in (
        ({"dtype": "float16"}, "DTYPE"),
        ({"reduce_op": "MAX"}, "REDUCE_OP"),
    ):
        job = Job().rounds(5)
        for rank in range(4):
            job.call(rank, job.clock, job.clock + 20, outcome="failed", **(columns if rank == 3 else {}))
        job.clock += 20
        assert outline(ended(job)) == ("SIGNATURE_MISMATCH", detail, "CODE_DIVERGENCE", (3,), 6, 1)


def test_another_root():
    job = Job().rounds(5, op="broadcast", root=0)
    for rank in range(4):
        job.call(rank, job.clock, job.clock + 20, outcome="failed", op="broadcast", root=1 if rank == 3 else 0)
    job.clock += 20
    assert outline(ended(job)) == ("SIGNATURE_MISMATCH", "ROOT", "CODE_DIVERGENCE", (3,), 6, 1)


def test_uneven_all_to_all_is_legal():
    job = Job()
    for number in range(6):
        for rank in range(4):
            job.call(rank, number, number + 0.01, op="all_to_all_single", numel=4 + rank)
    job.clean(0, 1, 2, 3, at=7)
    assert outline(job.report(ended=8, exit_code=0))[0] == "HEALTHY"


def test_two_sides_without_majority_are_both_named_and_none_is_blamed():
    job = Job(2).rounds(5)
    for rank in range(2):
        job.call(rank, job.clock, job.clock + 20, outcome="failed", numel=8 if rank else 4)
    job.clock += 20
    report = ended(job)
    assert outline(report) == ("SIGNATURE_MISMATCH", "SIZE", "CODE_DIVERGENCE", (), 6, 1)
    summary = report.verdicts[0].summary
    assert "rank 0 called" in summary
    assert "rank 1 called" in summary


def alternating(job, iterations, *, skip=None, rank=2):
    """Two collectives per iteration; `rank` leaves out the first one of iteration `skip`."""
    sequence = {r: [] for r in range(job.world)}
    for number in range(iterations):
        for r in range(job.world):
            if not (r == rank and number == skip):
                sequence[r].append("loop_a")
            sequence[r].append("loop_b")
    return sequence


def played(job, sequence, *, gave_up=15.0):
    """Calls pair up by count; where somebody has no call left, the others hang and fail."""
    longest = max(len(s) for s in sequence.values())
    for number in range(longest):
        there = [r for r, s in sequence.items() if number < len(s)]
        for r in there:
            whole = len(there) == len(sequence)
            at = job.clock + 0.0002 * r
            site, *more = [sequence[r][number]] if isinstance(sequence[r][number], str) else sequence[r][number]
            end = job.clock + (0.01 if whole else gave_up)
            job.call(r, at, end, outcome="completed" if whole else "failed", site=site, **(more[0] if more else {}))
        job.clock += 0.03
        if len(there) < len(sequence):
            job.clean(*(r for r in sequence if r not in there), at=job.clock)
            job.clock += gave_up
            return job
    return job


def test_skipped_call_is_found_where_the_call_sites_first_differ():
    job = Job()
    played(job, alternating(job, 10, skip=5))
    report = ended(job)
    assert outline(report) == ("SKIPPED_CALL", None, "CODE_DIVERGENCE", (2,), 11, 1)
    assert "#20" in report.verdicts[0].summary


def test_skipped_call_is_found_when_the_hang_comes_at_once():
    """Sizes differ, so nothing re-pairs: the only call that differs is the one that hangs."""
    job = Job().rounds(1, site="loop_a").round(site="loop_b", numel=1)
    for _ in range(3):
        job.round(site="loop_a").round(site="loop_b", numel=1)
    for rank in range(4):
        columns = {"site": "loop_b", "numel": 1} if rank == 2 else {"site": "loop_a"}
        job.call(rank, job.clock, job.clock + 15, outcome="failed", **columns)
    job.clock += 15
    assert outline(ended(job))[:5] == ("SKIPPED_CALL", None, "CODE_DIVERGENCE", (2,), 9)


def test_two_of_three_calls_skipped_are_told_from_the_third_made_twice_by_who_waits():
    job = Job()
    loop = ["loop_a", "other", "loop_b"]
    sequence = dict.fromkeys(range(4), loop * 6)
    sequence[2] = loop * 3 + ["loop_b"] + loop * 2
    played(job, sequence)
    assert outline(ended(job)) == ("SKIPPED_CALL", None, "CODE_DIVERGENCE", (2,), 10, 1)
    job = Job()
    sequence = dict.fromkeys(range(4), loop * 6)
    sequence[2] = loop * 3 + ["loop_b"] + loop * 3
    played(job, sequence)
    assert outline(ended(job)) == ("EXTRA_CALL", None, "CODE_DIVERGENCE", (2,), 10, 1)


def test_skipped_call_where_all_calls_look_alike_shows_by_the_count():
    job = Job()
    played(job, {r: ["loop_a"] * (9 if r == 2 else 10) for r in range(4)})
    report = ended(job)
    assert outline(report) == ("SKIPPED_CALL", None, "CODE_DIVERGENCE", (2,), 10, 1)
    assert report.verdicts[0].structure_confidence == "medium"
    assert "exact seq cannot be seen" in report.verdicts[0].summary


def test_rank_that_has_left_the_loop_of_its_peers_skipped_a_call():
    job = Job().rounds(9)
    for rank in range(4):
        extra = {"op": "barrier", "site": "after", "dtype": None} if rank == 2 else {}
        job.call(rank, job.clock, job.clock + 15, outcome="failed", **extra)
    job.clock += 15
    report = ended(job)
    assert outline(report)[:5] == ("SKIPPED_CALL", None, "CODE_DIVERGENCE", (2,), 10)
    assert report.verdicts[0].structure_confidence == "medium"


def test_rank_that_has_left_a_loop_that_calls_through_a_helper_skipped_a_call():
    job = Job().rounds(9, site="helper")
    for rank in range(4):
        extra = {"op": "barrier", "site": "after_helper", "dtype": None} if rank == 2 else {"site": "helper"}
        job.call(rank, job.clock, job.clock + 15, outcome="failed", **extra)
    job.clock += 15
    assert outline(ended(job))[:5] == ("SKIPPED_CALL", None, "CODE_DIVERGENCE", (2,), 10)


def test_two_helpers_of_one_loop_are_no_way_out_of_it():
    job = Job().rounds(9, site="helper")
    for rank in range(4):
        extra = {"op": "broadcast", "site": "other_helper"} if rank == 2 else {"site": "helper"}
        job.call(rank, job.clock, job.clock + 15, outcome="failed", **extra)
    job.clock += 15
    assert outline(ended(job))[:5] == ("SIGNATURE_MISMATCH", "OP", "CODE_DIVERGENCE", (2,), 10)


def test_of_two_ranks_that_pass_different_sizes_neither_is_blamed():
    job = Job(2).rounds(9)
    for rank, numel in ((0, 111), (1, 4)):
        job.call(rank, job.clock, job.clock + 1, outcome="failed", numel=numel)
    job.clock += 1
    report = ended(job)
    assert outline(report)[:5] == ("SIGNATURE_MISMATCH", "SIZE", "CODE_DIVERGENCE", (), 10)
    assert "111" in report.verdicts[0].summary
    assert "[[4]]" in report.verdicts[0].summary


def test_rank_in_another_function_than_its_peers_makes_another_call():
    """Nothing tells whether the call in the other function comes before or after the loop."""
    job = Job().rounds(9)
    for rank in range(4):
        extra = {"op": "barrier", "site": "module", "dtype": None} if rank == 2 else {}
        job.call(rank, job.clock, job.clock + 15, outcome="failed", **extra)
    job.clock += 15
    assert outline(ended(job))[:5] == ("SIGNATURE_MISMATCH", "OP", "CODE_DIVERGENCE", (2,), 10)


def test_rank_still_in_the_loop_that_its_peers_have_left_added_a_call():
    job = Job().rounds(9)
    for rank in range(4):
        extra = {} if rank == 2 else {"op": "barrier", "site": "after", "dtype": None}
        job.call(rank, job.clock, job.clock + 15, outcome="failed", **extra)
    job.clock += 15
    assert outline(ended(job))[:5] == ("EXTRA_CALL", None, "CODE_DIVERGENCE", (2,), 10)


def test_extra_call_that_pairs_with_a_later_one():
    """Rank 0 alone has a barrier in its save; it pairs with everybody's last barrier, and rank 0's last one hangs."""
    job = Job()
    barrier = {"op": "barrier", "dtype": None}
    common = ["loop_a"] * 6
    sequence = {r: [*common, ("after", barrier)] for r in (1, 2, 3)}
    sequence[0] = [*common, ("save", barrier), ("after", barrier)]
    played(job, sequence)
    assert outline(ended(job)) == ("EXTRA_CALL", None, "CODE_DIVERGENCE", (0,), 7, 1)


def test_one_iteration_too_many_on_one_rank():
    job = Job()
    played(job, {r: ["loop_a"] * (11 if r == 1 else 10) for r in range(4)})
    assert outline(ended(job))[:4] == ("EXTRA_CALL", None, "CODE_DIVERGENCE", (1,))


def test_call_sites_that_always_differ_by_rank_do_not_distract():
    job = Job()
    for _ in range(8):
        for rank in range(4):
            job.call(rank, job.clock, job.clock + 0.01, site="other" if rank == 0 else "loop_a")
        job.clock += 0.03
    at = job.clock
    job.hang(without=[3], enter=at + 0.01, gave_up=0.02, site="loop_a").exits(3, at=at, signal=9)
    assert outline(ended(job)) == ("RANK_NOT_ENTERED", "DEAD", "PROCESS_KILLED", (3,), 9, 1)


# Circles and pairs


def test_circle_of_groups_blames_no_single_rank():
    job = Job()
    one, two = job.group([0, 1]), job.group([0, 1], name="two")
    job.rounds(2).hang(only=[0], group=one, gave_up=20).hang(only=[1], group=two, enter=job.clock - 20, gave_up=20)
    report = ended(job)
    assert outline(report)[:4] == ("ORDER_DEADLOCK", None, "CODE_DIVERGENCE", ())
    assert "rank 0" in report.verdicts[0].summary
    assert "rank 1" in report.verdicts[0].summary


def test_both_receive_first():
    job = Job(2).rounds(2)
    job.call(0, job.clock, op="recv", peer=1).call(1, job.clock, op="recv", peer=0)
    job.exits(0, 1, at=job.clock + 40, signal=9)
    assert outline(ended(job, after=41))[:4] == ("ORDER_DEADLOCK", None, "CODE_DIVERGENCE", ())


def test_receive_from_a_dead_rank():
    job = Job().rounds(2)
    at = job.clock
    job.call(0, at, at + 0.5, outcome="failed", op="recv", peer=3).exits(3, at=at + 0.4, signal=9)
    assert outline(ended(job))[:4] == ("RANK_NOT_ENTERED", "DEAD", "PROCESS_KILLED", (3,))


def test_send_that_nobody_receives():
    job = Job().rounds(2)
    job.call(0, job.clock, op="send", peer=1).clean(1, 2, 3, at=job.clock + 1)
    job.exits(0, at=job.clock + 40, signal=9)
    assert outline(ended(job, after=41))[0] == "P2P_UNPAIRED"


def test_send_without_a_seen_end_is_harmless():
    job = Job()
    for number in range(5):
        job.call(0, number, op="send", peer=1).call(1, number, number + 0.1, op="recv", peer=0)
    job.clean(0, 1, 2, 3, at=6)
    job.rounds(1)
    assert outline(job.report(ended=7, exit_code=0))[0] == "HEALTHY"


# Slow


def test_persistent_straggler():
    job = Job().rounds(2)
    for _ in range(10):
        job.round(late={1: 0.3})
    job.clean(0, 1, 2, 3, at=job.clock)
    report = job.report(ended=job.clock + 1, exit_code=0)
    assert outline(report)[:4] == ("STRAGGLER", None, "HOST_STALL", (1,))
    assert report.status == "slow"
    assert report.exit_code == 1
    assert [o.seq for o in report.verdicts[0].occurrences] == list(range(3, 13))


def test_straggler_and_missing_rank_are_both_named():
    job = Job().rounds(8).round(late={1: 0.3}).rounds(4).hang(without=[2])
    job.exits(0, 1, 2, 3, at=job.clock + 4, signal=9)
    report = ended(job, after=5)
    assert outline(report)[:5] == ("RANK_NOT_ENTERED", "IDLE", "UNDETERMINED", (2,), 14)
    assert outline(report, 1)[:5] == ("STRAGGLER", None, "HOST_STALL", (1,), 9)


def test_rank_held_up_in_another_group_is_no_straggler():
    """Rank 1 waits for rank 0 in their own group every time; in the world group it is rank 1 that comes last."""
    job = Job()
    pair = job.group([0, 1])
    for _ in range(10):
        at = job.clock
        job.call(1, at, at + 0.31, group=pair).call(0, at + 0.3, at + 0.31, group=pair)
        for rank in range(4):
            job.call(rank, at + (0.312 + rank / 1e4 if rank < 2 else 0.01), at + 0.33)
        job.clock = at + 0.4
    job.clean(0, 1, 2, 3, at=job.clock)
    report = job.report(ended=job.clock + 1, exit_code=0)
    assert outline(report)[3] == (0,)


def test_clock_that_is_ahead_is_no_straggler():
    """Rank 3's host is 300 ms ahead: it seems to enter late, but it also seems to leave late."""
    job = Job()
    for _ in range(10):
        at = job.clock
        for rank in range(4):
            off = 0.3 if rank == 3 else 0.0
            job.call(rank, at + off + rank / 1e4, at + off + 0.01)
        job.clock = at + 0.05
    job.rank(3, host="b").clean(0, 1, 2, 3, at=job.clock + 1)
    assert outline(job.report(ended=job.clock + 2, exit_code=0))[0] == "HEALTHY"


def test_command_that_hides_the_exit_code_of_its_ranks():
    job = Job().rounds(5)
    at = job.clock
    job.hang(without=[3], enter=at, gave_up=0.01).exits(3, at=at, signal=9)
    assert outline(job.report(ended=at + 3, exit_code=0))[:4] == ("RANK_NOT_ENTERED", "DEAD", "PROCESS_KILLED", (3,))
