"""Calls of which no source told when they were entered: a round is judged all the same, and no time is made up."""

from __future__ import annotations

import dataclasses

import polars as pl
import pytest
from jobs import Job, ns, outline

from roundk.analyze.diagnose import diagnose
from roundk.analyze.output.text import render
from roundk.analyze.phrases import NS_PER_S, duration, group_text


def untimed(job, *, ranks=None, post_mortem=True, **trace):
    """The report on a job of which no call has an enter time, or only those of these ranks have none."""
    made = job.trace(**trace)
    gone = pl.lit(value=True) if ranks is None else pl.col("rank").is_in(ranks)
    blank = [pl.when(~gone).then(name).alias(name) for name in ("enter_ns", "issued_ns")]
    made = dataclasses.replace(made, calls=made.calls.with_columns(blank), is_post_mortem=post_mortem)
    return diagnose(made, now_ns=ns(job.clock + 3600))


@pytest.mark.parametrize("post_mortem", [True, False])
@pytest.mark.parametrize("gave_up", [None, 20])
def test_rank_that_never_entered_is_named_without_a_waiting_time(post_mortem, gave_up):
    report = untimed(Job().rounds(5).hang(without=[1], gave_up=gave_up), post_mortem=post_mortem)
    verdict = report.verdicts[0]
    assert (outline(report)[0], verdict.culprit_ranks, verdict.seq) == ("RANK_NOT_ENTERED", (1,), 6)
    assert verdict.onset_ns is None
    assert verdict.waiting_ranks == (0, 2, 3)
    text = render(report)
    assert "waited" not in text
    assert "onset" not in text


@pytest.mark.parametrize("post_mortem", [True, False])
def test_round_that_everyone_entered_is_judged(post_mortem):
    report = untimed(Job().rounds(5).hang(), post_mortem=post_mortem)
    verdict = report.verdicts[0]
    assert (outline(report)[0], verdict.culprit_ranks, verdict.seq) == ("ALL_ENTERED_NONE_COMPLETED", (), 6)
    assert verdict.onset_ns is None
    assert "first" not in render(report)


def test_order_deadlock_is_judged():
    job = Job(2)
    other = job.group([0, 1], "b")
    job.rounds(3).rounds(3, group=other)
    job.call(0, job.clock).call(1, job.clock, group=other)
    report = untimed(job)
    verdict = report.verdicts[0]
    assert verdict.structure.value == "ORDER_DEADLOCK"
    assert verdict.onset_ns is None
    assert verdict.waiting_ranks == (0, 1)


def test_onset_is_that_of_the_members_with_a_time():
    job = Job().rounds(5)
    onset = job.clock
    report = untimed(job.hang(without=[1], gave_up=20), ranks=[0])
    verdict = report.verdicts[0]
    assert verdict.culprit_ranks == (1,)
    assert verdict.onset_ns == ns(onset + 0.0002)  # rank 2's, who entered second


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.035, "35 ms"),
        (250, "4 min 10 s"),
        (7200, "120 min 0 s"),
        (3 * 3600 + 12 * 60 + 5, "3 h 12 min"),
        (7 * 86400 + 4 * 3600 + 60, "7 d 4 h"),
    ],
)
def test_duration_has_two_units_that_fit_its_length(seconds, text):
    assert duration(seconds * NS_PER_S) == text


def test_group_that_nobody_named_is_said_to_be_unnamed():
    assert group_text("", "") == "an unnamed group"
    assert group_text("", "undefined") == "an unnamed group"
    assert group_text("3", "undefined") == "group 3"


def test_unknown_number_of_ranks_is_said_in_words():
    made = dataclasses.replace(Job().rounds(2).trace(), world_size=None)
    report = diagnose(made, now_ns=ns(3600))
    report = dataclasses.replace(
        report, coverage=dataclasses.replace(report.coverage, ranks_seen=0, ranks_missing=(), world_size=None)
    )
    assert render(report).replace("\n", " ").endswith("Read: no rank's calls; how many ranks there are is not told.")
