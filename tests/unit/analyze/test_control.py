"""Calls that make and destroy process groups: they hang too, and they must not disturb what is said of collectives."""

from __future__ import annotations

from jobs import Job, outline

from roundk.analyze.case import build
from roundk.analyze.diagnose import report as report_on
from roundk.analyze.output import text
from roundk.analyze.plot import draw

PLAIN = {"numel": 0, "dtype": None, "shapes": None, "site": "module"}


def started(world=4, skew=0.0):
    """A job whose ranks came through init_process_group, `skew` seconds apart."""
    job = Job(world)
    job.init = job.control()
    job.made("init_process_group", late={rank: rank * skew for rank in range(world)})
    return job


def made(job, op, *, late=None, without=()):
    job.round(late=late, op=op, group=job.init, without=without, **PLAIN)
    return job


def stuck(job, op, *, without=(), gave_up=None):
    job.hang(without=without, op=op, group=job.init, gave_up=gave_up, **PLAIN)
    return job


Job.made = made
Job.stuck = stuck


def ended(job, *, code=1, after=2.0):
    return job.report(ended=job.clock + after, exit_code=code)


def test_control_calls_are_not_counted_as_rounds():
    job = started().rounds(10)
    job.made("destroy_process_group").clean(0, 1, 2, 3, at=job.clock)
    report = ended(job, code=0)
    assert outline(report) == ("HEALTHY", None, None, (), None, 0)
    assert "10 rounds in 1 group, 10 seen complete" in report.verdicts[0].summary


def test_job_without_collectives_is_healthy_all_the_same():
    job = started().made("destroy_process_group")
    job.clean(0, 1, 2, 3, at=job.clock)
    assert outline(ended(job, code=0))[0] == "HEALTHY"


def test_start_up_skew_and_slow_new_groups_are_no_straggler():
    job = started(skew=4.0).rounds(3)
    for _ in range(6):
        job.made("new_group", late={2: 3.0}).round()
    job.clean(0, 1, 2, 3, at=job.clock)
    assert outline(ended(job, code=0))[0] == "HEALTHY"


def test_rank_that_never_called_init_has_no_data_at_all():
    job = Job()
    job.init = job.control()
    job.stuck("init_process_group", without=[2], gave_up=30).rank(2, data="missing", last_alive_ns=None)
    report = ended(job)
    assert outline(report) == ("STUCK_IN_INIT", "SILENT", "UNDETERMINED", (2,), 1, 1)
    verdict = report.verdicts[0]
    assert verdict.op == "init_process_group"
    assert verdict.waiting_ranks == (0, 1, 3)
    assert (verdict.group.name, verdict.group.desc) == ("", "control")
    shown = text.render(report)
    assert "init_process_group #1 of process group creation (4 ranks)" in shown


def test_rank_that_raised_before_init():
    job = Job()
    job.init = job.control()
    job.stuck("init_process_group", without=[2]).rank(2, data="missing").raises(2, at=0.2)
    job.rank(2, last_alive_ns=None).exits(0, 1, 3, at=1.0, signal=15)
    assert outline(ended(job))[:5] == ("STUCK_IN_INIT", "DEAD", "EXCEPTION", (2,), 1)


def test_init_that_nobody_leaves_blames_nobody():
    job = Job()
    job.init = job.control()
    job.stuck("init_process_group", gave_up=60)
    report = ended(job)
    assert outline(report) == ("STUCK_IN_INIT", None, "UNDETERMINED", (), 1, 3)
    assert report.status == "failed"


def test_init_that_raises_at_once_on_one_rank():
    job = Job()
    job.init = job.control()
    for rank in range(4):
        end = 0.01 if rank == 3 else 60
        job.call(rank, 0, end, outcome="failed", op="init_process_group", group=job.init, issued_ns=None, **PLAIN)
    job.raises(3, at=0.02, kind="ValueError", message="no such backend")
    job.clock = 60
    assert outline(ended(job))[:5] == ("STUCK_IN_INIT", "RAISED", "EXCEPTION", (3,), 1)


def test_job_killed_during_its_start_blames_nobody():
    job = Job()
    job.init = job.control()
    job.stuck("init_process_group", without=[1]).exits(0, 1, 2, 3, at=3.0, signal=15)
    assert outline(ended(job))[3] == ()


def test_rank_that_never_came_to_new_group():
    job = started().rounds(5)
    job.stuck("new_group", without=[3], gave_up=30).exits(3, at=job.clock + 1, signal=15)
    report = ended(job)
    assert outline(report) == ("RANK_NOT_ENTERED", "IDLE", "UNDETERMINED", (3,), 2, 1)
    assert "new_group #2 of process group creation" in report.verdicts[0].summary


def test_who_destroys_its_groups_has_not_entered_the_new_group_of_its_peers():
    """Rank 1 raised, and a `finally` destroys its groups: its next control call, but not what the others wait in."""
    job = started().rounds(5)
    at = job.clock
    job.call(1, at, at + 0.01, op="destroy_process_group", group=job.init, **PLAIN).raises(1, at=at)
    job.hang(without=[1], op="new_group", group=job.init, gave_up=0.3, **PLAIN)
    assert outline(ended(job))[:5] == ("RANK_NOT_ENTERED", "DEAD", "EXCEPTION", (1,), 2)


def test_rank_waiting_in_destroy_is_a_victim_of_who_holds_up_an_ordinary_round():
    """Rank 0 is done and waits in destroy for 1, 2 and 3; those hang in a group of their own, which lacks rank 2."""
    job = started().rounds(5)
    group = job.group([1, 2, 3])
    at = job.clock
    job.call(0, at, op="destroy_process_group", group=job.init, **PLAIN)
    job.hang(without=[2], enter=at + 1, group=group).exits(0, 1, 2, 3, at=at + 60, signal=9)
    report = job.report(ended=at + 61, exit_code=1)
    assert outline(report)[:5] == ("RANK_NOT_ENTERED", "IDLE", "UNDETERMINED", (2,), 1)
    assert report.verdicts[0].op == "all_reduce"
    assert report.verdicts[0].victims.ranks == 3


def test_rank_that_went_on_to_destroy_while_its_peers_wait_for_it_is_no_victim():
    job = started().rounds(5)
    at = job.clock
    job.call(0, at, op="destroy_process_group", group=job.init, **PLAIN)
    job.hang(without=[0], enter=at).exits(0, 1, 2, 3, at=at + 60, signal=9)
    report = job.report(ended=at + 61, exit_code=1)
    assert outline(report)[2:5] == ("CODE_DIVERGENCE", (0,), 6)
    assert outline(report)[0] in ("SKIPPED_CALL", "RANK_NOT_ENTERED")


def test_skipped_collective_is_found_beside_control_calls():
    job = started()
    for number in range(10):
        job.made("new_group")
        for rank in range(4):
            sites = ["loop_b"] if rank == 2 and number == 5 else ["loop_a", "loop_b"]
            for at, site in enumerate(sites):
                job.call(rank, job.clock + at, job.clock + at + 0.01, site=site)
        job.clock += 3
    job.calls = [c for c in job.calls if not (c["group"] == 0 and c["seq"] == 20)]
    for rank in (0, 1, 3):
        job.seqs[0, rank] = 19
        job.call(rank, job.clock, job.clock + 15, outcome="failed", site="loop_b")
    job.clean(2, at=job.clock)
    job.clock += 15
    assert outline(ended(job))[:5] == ("SKIPPED_CALL", None, "CODE_DIVERGENCE", (2,), 11)


def test_groups_made_in_another_order_by_a_healthy_job_are_no_finding():
    """new_group need not wait for anybody: who makes an extra one is ahead by one for good."""
    job = started().rounds(3)
    job.call(0, job.clock, job.clock + 0.01, op="new_group", group=job.init, **PLAIN)
    job.made("split_group").made("new_group").rounds(3).made("destroy_process_group")
    job.clean(0, 1, 2, 3, at=job.clock)
    assert outline(ended(job, code=0))[0] == "HEALTHY"


def test_coalesced_collectives_of_one_number_are_one_call():
    job = Job().rounds(3)
    for _ in range(4):
        for rank in range(4):
            job.call(rank, job.clock, job.clock + 0.02)
            seq = job.seqs[0, rank]
            job.call(rank, job.clock + 0.001, job.clock + 0.02, seq=seq, numel=8)
            job.call(rank, job.clock + 0.002, job.clock + 0.05, seq=seq, op="coalescing_end", **PLAIN)
        job.clock += 0.1
    job.hang(without=[3], gave_up=20).exits(3, at=job.clock + 1, signal=15)
    case = build(job.trace(ended=job.clock + 2), now_ns=0, stall_ns=1)
    call = case.call(0, 4, 2)
    assert (call["op"], call["numel"], call["shapes"]) == ("all_reduce_coalesced", 12, "[[4]], [[8]]")
    assert (call["end_ns"] - call["enter_ns"]) // 1_000_000 == 50
    assert case.rounds["entered"].to_list() == [4] * 7 + [3]
    assert outline(ended(job))[:5] == ("RANK_NOT_ENTERED", "IDLE", "UNDETERMINED", (3,), 8)


def test_coalesced_round_that_one_rank_does_not_finish():
    job = Job().rounds(3)
    at = job.clock
    for rank in range(4):
        for part in range(2):
            job.call(rank, at, at + 0.01, seq=4, op="broadcast" if part else "all_reduce")
        job.call(rank, at, None if rank == 1 else at + 0.05, seq=4, op="coalescing_end", **PLAIN)
    report = job.report(ended=at + 60, alive=at + 50)
    assert outline(report)[0] == "PARTIAL_COMPLETION"
    assert (report.verdicts[0].op, report.verdicts[0].waiting_ranks) == ("coalesced", (1,))


def test_end_of_coalescing_has_a_name():
    job = started().rounds(5)
    ends = job.control(name="0/coalescing")
    job.hang(without=[3], group=ends, op="coalescing_end", gave_up=30, **PLAIN).exits(3, at=job.clock + 1, signal=15)
    report = ended(job)
    assert outline(report)[:4] == ("RANK_NOT_ENTERED", "IDLE", "UNDETERMINED", (3,))
    assert "coalescing_end #1 of coalescing in group 0" in report.verdicts[0].summary


def test_charts_show_collectives_and_not_the_long_start(tmp_path):
    job = started(skew=20).rounds(8).hang(without=[1], gave_up=5)
    case = build(job.trace(ended=job.clock + 1, exit_code=1), now_ns=0, stall_ns=1)
    draw(case, report_on(case), tmp_path / "chart.svg")
    drawn = (tmp_path / "chart.svg").read_text()
    assert "rank 1 never entered all_reduce #9" in drawn
    assert "#8" in drawn
    stuck_start = Job()
    stuck_start.init = stuck_start.control()
    stuck_start.stuck("init_process_group", without=[2], gave_up=30).rank(2, data="missing", last_alive_ns=None)
    case = build(stuck_start.trace(ended=40, exit_code=1), now_ns=0, stall_ns=1)
    draw(case, report_on(case), tmp_path / "init.svg")
    assert "rank 2 never called init_process_group" in (tmp_path / "init.svg").read_text()
