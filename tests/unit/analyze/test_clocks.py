"""Clocks that are far apart: put right by rounds that end together, and no cause to blame anybody."""

from __future__ import annotations

import re
from dataclasses import replace

import polars as pl
import pytest
from jobs import Job, S, outline

from roundk.analyze.clocks import aligned
from roundk.analyze.diagnose import diagnose

SECONDS = {0: 0.0, 1: 0.0, 2: 0.0, 3: 0.0, 4: 3600.0, 5: 3600.0, 6: -90.0, 7: -90.0}
"""How far the clock of each rank is ahead: the last four are on two hosts whose clocks nobody set."""


def skewed(trace, seconds=SECONDS):
    """The trace as it would have been written with these clocks."""
    by_rank = pl.DataFrame(
        {"rank": list(seconds), "by": [round(s * S) for s in seconds.values()]},
        schema={"rank": pl.Int32, "by": pl.Int64},
    )

    def moved(table, names):
        return (
            table.join(by_rank, on="rank", maintain_order="left").with_columns(pl.col(names) + pl.col("by")).drop("by")
        )

    return replace(
        trace,
        calls=moved(trace.calls, ["enter_ns", "issued_ns", "end_ns"]),
        ranks=moved(trace.ranks, [n for n in trace.ranks.columns if n.endswith("_ns")]),
        clock_error_ns=None,
    )


def mesh():
    """Two groups within hosts and across them, so that no group tells of all clocks."""
    job = Job(8)
    tp = [job.group([r, r + 1], f"tp{r}") for r in (0, 2, 4, 6)]
    dp = [job.group(range(r, 8, 2), f"dp{r}") for r in (0, 1)]
    for _ in range(6):
        for group in tp + dp:
            job.round(group=group)
    return job, tp, dp


def test_times_are_put_on_one_clock_over_groups_that_only_overlap():
    job, _, _ = mesh()
    before = job.trace()
    after = aligned(skewed(before))
    off = (after.calls["enter_ns"] - before.calls["enter_ns"]).abs().max()
    assert off < S // 100
    assert "ranks 4-7" in after.notes[-1]
    assert "1 h" in after.notes[-1] or "60 min" in after.notes[-1]
    assert after.clock_error_ns < S // 100


def test_clocks_that_agree_are_left_alone():
    job, _, _ = mesh()
    trace = job.trace()
    assert aligned(trace) is trace


def test_a_straggler_is_no_clock_that_is_ahead():
    job = Job(4)
    for _ in range(12):
        job.round(late={2: 3.0})
    job.clean(0, 1, 2, 3, at=job.clock)
    trace = job.trace(ended=job.clock + 1, exit_code=0)
    assert aligned(trace) is trace
    assert outline(job.report(ended=job.clock + 1, exit_code=0))[0] == "STRAGGLER"


@pytest.mark.parametrize("rounds", [0, 8])
def test_nobody_is_said_to_have_waited_for_the_offset_of_two_clocks(rounds):
    job = Job(8).rounds(rounds).hang(without=[3])
    trace = replace(skewed(job.trace()), is_post_mortem=True)
    report = diagnose(trace, now_ns=trace.last_alive_ns, stall_ns=30 * S)
    verdict = report.verdicts[0]
    assert verdict.culprit_ranks == (3,)
    assert any("clocks of ranks 4-7 are off" in said for said in verdict.not_checked) is bool(rounds)
    assert not re.search(r"\d (s|min|h)\b", verdict.summary)  # it ends where the waiting begins
