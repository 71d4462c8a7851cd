"""What the benches rest on: their dumps are a job with one hung rank, and answers are judged as they state."""

from __future__ import annotations

import fr_dumps
import pytest
from peers import Answer, Case, judged

from roundk.analyze import sources
from roundk.analyze.diagnose import diagnose


@pytest.mark.parametrize("mix", ["megatron", "world"])
@pytest.mark.parametrize("with_frames", [False, True])
def test_the_dumps_of_the_bench_hang_where_they_say(tmp_path, mix, with_frames):
    hung = fr_dumps.write(tmp_path / "dumps", 32, 200, mix, with_frames=with_frames)
    trace, _ = sources.load([str(tmp_path / "dumps")])
    assert trace.calls.height == 32 * 200
    assert trace.world_size == 32
    assert bool(trace.sites.height) == with_frames
    report = diagnose(trace, now_ns=fr_dumps.T0)
    assert [(verdict.structure, verdict.culprit_ranks) for verdict in report.verdicts] == [
        ("RANK_NOT_ENTERED", (hung,))
    ]


STUCK = Case("", [], [{"structure": "RANK_NOT_ENTERED", "culprit_ranks": [2]}])
LOCKED = Case("", [], [{"structure": "ORDER_DEADLOCK", "culprit_ranks": []}])
FINE = Case("", [], [{"structure": "HEALTHY"}])


@pytest.mark.parametrize(
    ("case", "answer", "how"),
    [
        (STUCK, Answer({2}, True), "right"),
        (STUCK, Answer({2, 3}, True), "wrong"),
        (STUCK, Answer({1}, True), "wrong"),
        (STUCK, Answer(set(), False), "silent"),
        (STUCK, Answer(set(), True), "silent"),
        (STUCK, Answer(set(), False, "KeyError: 1"), "crashed"),
        (LOCKED, Answer(set(), True), "right"),
        (LOCKED, Answer(set(), False), "silent"),
        (LOCKED, Answer({0}, True), "wrong"),
        (FINE, Answer(set(), False), "right"),
        (FINE, Answer(set(), True), "wrong"),
        (FINE, Answer({1}, True), "wrong"),
    ],
)
def test_answers_are_judged_by_who_is_named(case, answer, how):
    assert judged(case, answer) == how
