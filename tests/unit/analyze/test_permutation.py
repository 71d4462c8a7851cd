"""The verdict must not depend on which number a rank happens to have."""

from __future__ import annotations

import dataclasses

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import Job, S

from roundk.analyze.diagnose import diagnose

WORLD = 5


def killed():
    job = Job(WORLD).rounds(4)
    at = job.clock
    job.hang(without=[3], enter=at + 0.005, gave_up=0.01).exits(3, at=at, signal=9)
    return job.trace(ended=at + 3, exit_code=1)


def idle():
    job = Job(WORLD).rounds(4).hang(without=[1], gave_up=20)
    return job.trace(ended=job.clock + 3, exit_code=1)


def size():
    job = Job(WORLD).rounds(4)
    for rank in range(WORLD):
        job.call(rank, job.clock, job.clock + 20 - rank, outcome="failed", numel=8 if rank == 2 else 4)
    return job.trace(ended=job.clock + 30, exit_code=1)


def skipped():
    job = Job(WORLD)
    for number in range(12):
        for rank in range(WORLD):
            ahead = rank == 0 and number >= 6
            whole = number < 11
            if rank == 0 and not whole:
                continue
            site = ("loop_a", "loop_b")[(number + ahead) % 2]
            job.call(
                rank,
                job.clock,
                job.clock + (0.01 if whole else 9),
                outcome="completed" if whole else "failed",
                site=site,
            )
        job.clock += 0.05
    job.clean(0, at=job.clock)
    return job.trace(ended=job.clock + 12, exit_code=1)


def straggler():
    job = Job(WORLD)
    for _ in range(8):
        job.round(late={4: 0.4})
    job.clean(*range(WORLD), at=job.clock)
    return job.trace(ended=job.clock + 1, exit_code=0)


TRACES = [killed(), idle(), size(), skipped(), straggler()]


def renumbered(trace, order):
    """The same job with rank r called order[r]."""
    new = dict(enumerate(order))

    def renamed(column):
        return pl.col(column).replace_strict(new, default=None, return_dtype=pl.Int32)

    return dataclasses.replace(
        trace,
        calls=trace.calls.with_columns(renamed("rank"), renamed("root"), renamed("peer")).sort("rank", "enter_ns"),
        ranks=trace.ranks.with_columns(renamed("rank")).sort("rank"),
        facts=trace.facts.with_columns(renamed("rank")),
    )


def outline(trace):
    report = diagnose(trace, now_ns=trace.last_alive_ns + 3600 * S)
    v = report.verdicts[0]
    return (v.structure, v.detail, v.cause, v.seq, v.op, report.exit_code), set(v.culprit_ranks), set(v.waiting_ranks)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(TRACES), st.permutations(range(WORLD)))
def test_renaming_the_ranks_renames_the_culprits_and_changes_nothing_else(trace, order):
    same, culprits, waiting = outline(trace)
    same_there, culprits_there, waiting_there = outline(renumbered(trace, order))
    assert same_there == same
    assert culprits_there == {order[rank] for rank in culprits}
    assert waiting_there == {order[rank] for rank in waiting}
