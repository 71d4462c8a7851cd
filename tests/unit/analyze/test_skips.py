"""Skipped calls that show only by what is usual: a call new to all, a call in another group."""

from __future__ import annotations

from jobs import Job, outline


def ended(job):
    return job.report(ended=job.clock + 2, exit_code=1)


def new_call(site, *, own="loop_a", before=5):
    """Ranks 0-2 make a barrier that nobody has made before; rank 3 goes on with its usual calls."""
    job = Job()
    for _ in range(before):
        job.round(site="loop_a").round(op="all_gather", site="loop_b")
    at = job.clock
    for rank in (0, 1, 2):
        job.call(rank, at, at + 10, outcome="failed", op="barrier", site=site, numel=0)
    job.call(3, at, at + 10, outcome="failed", site=own)
    job.clock = at + 10
    return job


def test_rank_that_goes_on_as_usual_skipped_the_call_that_is_new_to_all():
    report = ended(new_call("other"))
    assert outline(report) == ("SKIPPED_CALL", None, "CODE_DIVERGENCE", (3,), 11, 1)
    assert report.verdicts[0].op == "barrier"
    assert report.verdicts[0].structure_confidence == "medium"


def test_rank_that_goes_on_when_its_peers_have_left_the_loop_made_a_call_more():
    assert outline(ended(new_call("after")))[:4] == ("EXTRA_CALL", None, "CODE_DIVERGENCE", (3,))


def test_rank_that_makes_a_call_new_to_all_alone_skipped_nothing():
    job = Job()
    for _ in range(5):
        job.round(site="loop_a").round(op="all_gather", site="loop_b")
    at = job.clock
    for rank in (0, 1, 2):
        job.call(rank, at, at + 10, outcome="failed")
    job.call(3, at, at + 10, outcome="failed", op="barrier", site="other", numel=0)
    job.clock = at + 10
    assert outline(ended(job))[0] == "SIGNATURE_MISMATCH"


def two_groups(members, *, steps, skips, gave_up=10):
    """Each step calls a sub-group and then the world; in the last step `skips` leaves the sub-group's call out."""
    job = Job(5)
    sub = job.group(members)
    for _ in range(steps):
        job.round(group=sub).round(site="loop_b")
    at = job.clock
    waiting = [rank for rank in members if rank != skips]
    job.hang(only=waiting, group=sub, enter=at, gave_up=gave_up)
    job.hang(without=waiting, enter=at + 0.01, gave_up=gave_up, site="loop_b")
    job.clock = at + gave_up
    return job


def test_rank_that_left_out_the_call_of_a_sub_group_is_named():
    report = ended(two_groups([0, 2, 4], steps=4, skips=2))
    assert outline(report) == ("SKIPPED_CALL", None, "CODE_DIVERGENCE", (2,), 5, 1)
    verdict = report.verdicts[0]
    assert verdict.structure_confidence == "medium"
    assert verdict.waiting_ranks == (0, 4)
    assert verdict.group.size == 3


def test_rank_that_left_out_the_call_of_a_pair_is_only_hinted_at():
    report = ended(two_groups([1, 3], steps=4, skips=3))
    assert outline(report)[:4] == ("ORDER_DEADLOCK", None, "CODE_DIVERGENCE", ())
    assert "rank 3 had called" in report.verdicts[0].evidence[0].what


def test_one_step_before_makes_no_habit():
    report = ended(two_groups([0, 2, 4], steps=1, skips=2))
    assert outline(report)[:4] == ("ORDER_DEADLOCK", None, "CODE_DIVERGENCE", ())
    assert not any("had called" in e.what for e in report.verdicts[0].evidence)


def test_call_that_the_others_added_in_a_sub_group_is_not_skipped():
    """All have made their call of the step; ranks 0 and 4 make another one that rank 2 does not."""
    job = Job(5)
    sub = job.group([0, 2, 4])
    for _ in range(4):
        job.round(group=sub).round(site="loop_b")
    job.round(group=sub)
    at = job.clock
    job.hang(only=[0, 4], group=sub, enter=at, gave_up=10)
    job.hang(without=[0, 4], enter=at + 0.01, gave_up=10, site="loop_b")
    assert outline(ended(job))[:4] == ("ORDER_DEADLOCK", None, "CODE_DIVERGENCE", ())
