"""What Python stacks add: where a live rank was instead of entering, who waits where it says, how it crashed."""

from __future__ import annotations

import pytest
from jobs import Job, outline

from roundk.analyze.output import text
from roundk.analyze.stacks import Dump, Frame

MAIN = ("/home/u/train.py:18 main", "/home/u/train.py:60 <module>")
LOADS = ("/home/u/data.py:57 load_batch", *MAIN)
TORCH = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:3252 all_reduce"
IN_CALL = (TORCH, "/home/u/train.py:21 main", "/home/u/train.py:60 <module>")
"""Where `jobs.SITES["loop_a"]` makes its calls."""


def hung(gave_up=20.0):
    """Rank 1 does not come to round 6; the others fail, and the launcher ends rank 1."""
    job = Job().rounds(5)
    onset = job.clock
    job.hang(without=[1], gave_up=gave_up)
    end = job.clock + 0.5
    job.exits(0, 2, 3, at=end, code=1).exits(1, at=end, signal=15)
    return job, onset, end


def judged(job, end):
    return job.report(ended=end + 1, exit_code=1)


def test_busy_rank_is_named_with_its_line_and_its_stack():
    job, onset, end = hung()
    job.stack(1, *LOADS, at=onset + 3, what="no call for 3.0 s")
    report = judged(job, end)
    assert outline(report) == ("RANK_NOT_ENTERED", "BUSY", "HOST_STALL", (1,), 6, 1)
    verdict = report.verdicts[0]
    assert "it was in data.py:57 load_batch; ranks 0, 2, 3 waited" in verdict.summary
    assert verdict.cause_confidence == "high"
    first = verdict.evidence[0]
    assert "data.py:57 load_batch < train.py:18 main < train.py:60 <module>" in first.what
    assert (first.rank, first.source) == (1, "a/rank-00001-101.stacks")
    assert not any("stack" in line.lower() for line in verdict.not_checked)


def test_live_rank_without_a_stack_is_idle_and_the_lack_is_told():
    job, onset, end = hung()
    job.stack(0, *IN_CALL, at=onset + 3)
    report = judged(job, end)
    assert outline(report)[:4] == ("RANK_NOT_ENTERED", "IDLE", "UNDETERMINED", (1,))
    assert any("What rank 1 did" in line and "no Python stack" in line for line in report.verdicts[0].not_checked)


def test_stack_from_before_the_last_call_tells_nothing():
    job, _, end = hung()
    job.stack(1, *LOADS, at=0.05)
    assert outline(judged(job, end))[1:3] == ("IDLE", "UNDETERMINED")


def test_stack_from_between_the_last_call_and_the_onset_is_a_weaker_hint():
    job = Job().rounds(5)
    idle_since = job.clock
    job.hang(without=[1], enter=idle_since + 40, gave_up=20)
    job.stack(1, *LOADS, at=idle_since + 30).exits(1, at=job.clock + 1, signal=15)
    verdict = judged(job, job.clock + 1).verdicts[0]
    assert (verdict.detail, verdict.cause, verdict.cause_confidence) == ("BUSY", "HOST_STALL", "medium")


def test_stack_that_sigterm_left_shows_where_it_hung():
    job, _, end = hung()
    job.stack(1, *LOADS, trigger="term")
    verdict = judged(job, end).verdicts[0]
    assert (verdict.detail, verdict.cause, verdict.cause_confidence) == ("BUSY", "HOST_STALL", "medium")
    assert "data.py:57 load_batch" in verdict.summary


def test_stack_of_a_sigterm_that_the_process_survived_is_not_taken_for_its_last():
    job, onset, end = hung()
    job.stack(1, *LOADS, trigger="term").stack(1, *MAIN, at=onset + 3)
    assert "it was in train.py:18 main" in judged(job, end).verdicts[0].summary


def test_held_interpreter_is_said():
    """The timer's dump has no time; that the signs of life had ended shows that it belongs to this stall."""
    job, onset, end = hung()
    job.rank(1, last_alive_ns=onset - 0.005).stack(1, *LOADS, trigger="timer", what="the interpreter was not let go")
    report = judged(job, end)
    assert outline(report) == ("RANK_NOT_ENTERED", "BUSY", "HOST_STALL", (1,), 6, 1)
    assert "data.py:57 load_batch, and the interpreter was not let go" in report.verdicts[0].summary
    assert report.verdicts[0].cause_confidence == "high"


def test_rank_that_held_the_interpreter_had_not_died_first():
    """Nobody's call fails, and the whole job is killed: the signs of life of rank 1 ended 40 s earlier all the same."""
    job = Job().rounds(5)
    onset = job.clock
    job.hang(without=[1]).exits(0, 1, 2, 3, at=onset + 40, signal=9)
    job.rank(1, last_alive_ns=onset).stack(1, *LOADS, trigger="timer")
    assert outline(judged(job, onset + 40))[:4] == ("RANK_NOT_ENTERED", "BUSY", "HOST_STALL", (1,))


def test_timer_that_fired_long_ago_is_no_evidence():
    """A long start-up in C had fired the timer; now the rank sleeps with its signs of life going on."""
    job, _, end = hung()
    job.stack(1, *LOADS, trigger="timer")
    assert outline(judged(job, end))[1:3] == ("IDLE", "UNDETERMINED")


def test_rank_that_came_after_all_is_judged_by_what_it_did_until_then():
    job, onset, end = hung()
    job.stack(1, *LOADS, at=onset + 3).call(1, onset + 20.2, onset + 20.3, outcome="failed")
    job.stack(1, *IN_CALL, trigger="term", after=onset + 3)
    verdict = judged(job, end).verdicts[0]
    assert (verdict.detail, verdict.cause_confidence) == ("BUSY", "medium")
    assert "only after its peers had given up: it was in data.py:57 load_batch" in verdict.summary


def test_two_stalled_ranks_in_one_verdict():
    job = Job().rounds(5)
    onset = job.clock
    job.hang(without=[1, 2], gave_up=20)
    job.stack(1, *LOADS, at=onset + 3).stack(2, *LOADS, at=onset + 3).exits(1, 2, at=job.clock + 1, signal=15)
    report = judged(job, job.clock + 1)
    assert outline(report)[:4] == ("RANK_NOT_ENTERED", "BUSY", "HOST_STALL", (1, 2))
    assert "rank 1 was in data.py:57 load_batch" in report.verdicts[0].summary


def test_stacks_of_waiting_ranks_confirm_their_call():
    job, onset, end = hung()
    for rank in (0, 2):
        job.stack(rank, *IN_CALL, at=onset + 3, what="in a call for 3.0 s")
    verdict = judged(job, end).verdicts[0]
    assert any("the stacks of ranks 0, 2 show them in that call" in e.what for e in verdict.evidence)
    assert verdict.structure_confidence == "high"


def test_stack_that_contradicts_the_call_of_a_waiting_rank_is_told():
    job = Job().rounds(5)
    onset = job.clock
    for rank in (0, 2, 3):
        job.call(rank, onset, onset + 20, outcome="failed", thread=100 + rank)
    job.clock = onset + 20
    job.stack(3, *LOADS, at=onset + 3).exits(1, at=job.clock, signal=15)
    verdict = judged(job, job.clock).verdicts[0]
    assert any(
        "rank 3 shows data.py:57 load_batch, not its all_reduce at train.py:21" in c for c in verdict.contradictions
    )
    assert verdict.structure_confidence == "medium"


def test_call_on_a_device_lets_its_thread_go_on():
    job = Job()
    job.groups[0] = ("0", "default_pg", "nccl", [0, 1, 2, 3])
    job.rounds(5)
    onset = job.clock
    for rank in (0, 2, 3):
        job.call(rank, onset, onset + 20, outcome="failed", thread=100 + rank)
    job.clock = onset + 20
    job.stack(3, *LOADS, at=onset + 3).exits(1, at=job.clock, signal=15)
    assert not judged(job, job.clock).verdicts[0].contradictions


def test_crash_names_signal_and_line():
    job = Job().rounds(5)
    at = job.clock
    job.hang(without=[2], enter=at + 0.01, gave_up=0.02).exits(2, at=at, signal=11)
    job.stack(
        2, "/usr/lib/python3.12/ctypes/__init__.py:519 string_at", *LOADS, trigger="fatal", what="Segmentation fault"
    )
    report = judged(job, at + 3)
    assert outline(report) == ("RANK_NOT_ENTERED", "DEAD", "PROCESS_KILLED", (2,), 6, 1)
    assert "killed by SIGSEGV in data.py:57 load_batch" in report.verdicts[0].summary
    assert any("segmentation fault in data.py:57 load_batch" in e.what for e in report.verdicts[0].evidence)


def test_crash_is_known_although_no_parent_told_the_signal():
    job = Job().rounds(5)
    at = job.clock
    job.hang(without=[2], enter=at + 0.01, gave_up=0.02).exits(2, at=at, source="vanished")
    job.stack(2, *LOADS, trigger="fatal", what="Aborted")
    report = judged(job, at + 3)
    assert outline(report) == ("RANK_NOT_ENTERED", "DEAD", "PROCESS_KILLED", (2,), 6, 1)
    assert "SIGABRT" in report.verdicts[0].summary


def test_stack_fits_the_text_report():
    job, onset, end = hung()
    job.stack(1, *(f"/home/u/deep.py:{n} f{n}" for n in range(30)), at=onset + 3)
    lines = text.render(judged(job, end)).splitlines()
    assert max(map(len, lines)) <= 80
    assert any("< ..." in line for line in lines)


@pytest.mark.parametrize(
    ("frames", "place"),
    [
        (LOADS, "data.py:57 load_batch"),
        (IN_CALL, "train.py:21 main, inside distributed_c10d.py:3252 all_reduce"),
        (("/x/src/roundk/hooks/works.py:98 wait", *LOADS), "data.py:57 load_batch"),
        (("/usr/lib/python3.12/threading.py:355 wait", *LOADS), "data.py:57 load_batch"),
        (("/opt/conda/lib/python3.13/site-packages/datasets/table.py:7 read", *MAIN), "table.py:7 read"),
        (("<frozen importlib._bootstrap>:241 _call", *MAIN), "train.py:18 main"),
        (("/usr/lib/python3.12/threading.py:355 wait",), "threading.py:355 wait"),
        ((), "no Python code"),
    ],
)  # fmt: skip
def test_place_is_the_innermost_frame_of_the_users_code(frames, place):
    parsed = []
    for frame in frames:
        where, function = frame.rsplit(" ", 1)
        file, line = where.rsplit(":", 1)
        parsed.append(Frame(file, int(line), function))
    assert Dump(0, "stall", 1, 1, "", tuple(parsed), "").place == place
