"""Skipped and added calls: by what is usual, by the place in the code, by what aligns afterwards; what is neither."""

from __future__ import annotations

import time

import dumps
import pytest
from jobs import Job, outline

from roundk.analyze import sources
from roundk.analyze.diagnose import diagnose


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


# Dumps without stacks: only the order of the calls tells


A, B, C, D = "nccl:all_reduce", "nccl:all_to_all", "nccl:broadcast", "nccl:barrier"


def dumped(folder, calls, *, done):
    """What dumps say of ranks that made these calls, of which the first `done` completed."""
    files = {}
    for rank, ops in enumerate(calls):
        made = [(dumps.entry if at < done else dumps.scheduled)(at, op) for at, op in enumerate(ops)]
        told = dumps.status(len(made), -1, done)
        files[f"trace_rank_{rank}"] = dumps.dump(made, world=len(calls), counters={"0": told})
    dumps.write(folder, files)
    trace, _ = sources.load([str(folder)])
    return diagnose(trace, now_ns=time.time_ns())


@pytest.mark.parametrize(
    ("usual", "own", "done"),
    [
        ([A, A, A, C], [A, A, A, A], 3),  # it goes on as usual, its peers do something new
        ([A, B, A, B, A], [A, B, A, B, B], 4),  # it does what would come next
        ([C], [A], 0),  # there is nothing before it
        ([C, A], [D, B], 0),  # nor anything alike after it
        ([C, A], [D, A], 0),  # what comes after it is in its place
    ],
)
def test_another_call_and_nothing_that_aligns_after_it_is_a_mismatch(tmp_path, usual, own, done):
    report = dumped(tmp_path, [usual, usual, own, usual], done=done)
    assert outline(report)[:5] == ("SIGNATURE_MISMATCH", "OP", "CODE_DIVERGENCE", (2,), done + 1)
    assert not any("shift" in text for text in report.verdicts[0].contradictions)


@pytest.mark.parametrize(
    ("usual", "own", "seq"),
    [
        ([C, A], [A, D], 1),  # the first of all, with what its peers have not come to behind it
        ([C, A, B], [A, B, D], 1),
        ([C, A], [A], 1),  # it has made fewer
        ([A, C, A, B], [A, A, B, D], 2),
    ],
)
def test_call_left_out_with_later_ones_enqueued_is_a_skip(tmp_path, usual, own, seq):
    report = dumped(tmp_path, [usual, usual, own, usual], done=seq - 1)
    assert outline(report) == ("SKIPPED_CALL", None, "CODE_DIVERGENCE", (2,), seq, 1)


@pytest.mark.parametrize(("usual", "own"), [([C, A], [D, C]), ([C, A, B], [D, C, A])])
def test_call_put_in_before_all_others_is_an_addition(tmp_path, usual, own):
    report = dumped(tmp_path, [usual, usual, own, usual], done=0)
    assert outline(report) == ("EXTRA_CALL", None, "CODE_DIVERGENCE", (2,), 1, 1)


def test_skip_that_only_the_place_in_the_code_tells_says_so():
    report = ended(new_call("other"))
    assert "no later call shows the shift, only the places in the code that the calls come from" in (
        report.verdicts[0].contradictions
    )


def test_another_call_from_the_usual_place_is_no_skip():
    """One line calls what a variable holds."""
    job = Job()
    for _ in range(5):
        job.round(site="loop_a").round(op="all_gather", site="loop_b")
    at = job.clock
    for rank in range(4):
        op = {"op": "all_reduce"} if rank == 3 else {"op": "barrier", "numel": 0}
        job.call(rank, at, at + 10, outcome="failed", site="loop_a", **op)
    job.clock = at + 10
    assert outline(ended(job))[:4] == ("SIGNATURE_MISMATCH", "OP", "CODE_DIVERGENCE", (3,))


def test_difference_without_a_time_comes_after_one_with_a_time(tmp_path):
    """Two groups hang in different calls; when those of the first were made is not recorded."""
    groups = {"1": dumps.group("1", [0, 1, 2], "untimed"), "2": dumps.group("2", [3, 4, 5], "timed")}
    files = {}
    for rank in range(6):
        name = "1" if rank < 3 else "2"
        made = dumps.scheduled(
            0, C if rank in (0, 3) else A, process_group=(name, groups[name]["desc"]), pg_id=int(name)
        )
        if rank < 3:
            made["time_created_ns"] = None
        files[f"trace_rank_{rank}"] = dumps.dump(
            [made], world=6, groups=groups, counters={name: dumps.status(1, -1, -1)}
        )
    dumps.write(tmp_path, files)
    trace, _ = sources.load([str(tmp_path)])
    verdicts = diagnose(trace, now_ns=time.time_ns()).verdicts
    assert [(v.structure, v.culprit_ranks) for v in verdicts] == [
        ("SIGNATURE_MISMATCH", (3,)),
        ("SIGNATURE_MISMATCH", (0,)),
    ]
