"""Step time, and whether it differs by more than it varies within each run."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Final

import polars as pl

from roundk.analyze.difference.found import Found, Row, Topic
from roundk.analyze.difference.run import Run
from roundk.analyze.phrases import duration, number_of

BLOCKS: Final = 5
"""Parts that a run is cut into, one after another: if nothing differs, the chance that all medians of one run lie above
all of the other is 2 in 252 (Mann and Whitney's U at its end, 5 against 5), however steps that follow each other hang
together, as long as parts of a fifth of the run do not."""
LEAST_STEPS: Final = 4 * BLOCKS
"""The median of four is not moved by one slow step, such as the one with a checkpoint."""
LEAST_SHARE: Final = 0.02
"""Less than this is not told, however sure: two healthy runs on other hosts differ by as much."""
_HIGH: Final = 0.95


@dataclass(frozen=True)
class _Time:
    median: float
    mean: float
    high: float
    medians: tuple[float, ...]
    means: tuple[float, ...]
    steps: int
    slowest: tuple[int, float] | None

    @property
    def text(self) -> str:
        return f"median {duration(self.median)}, p95 {duration(self.high)}, {number_of(self.steps, 'step')}"


def compare(a: Run, b: Run, found: Found) -> None:
    """Compare the step times of two runs.

    Different they are where the medians of all fifths of one run lie above those of all fifths of the other, and the
    medians of the whole runs are 2 % apart or more; where they do not, the same is asked of the means, which tell of
    single long steps. A step takes the median over the ranks.

    Args:
        a: One run.
        b: The other one.
        found: Takes what is found.
    """
    topic, name = Topic.STEP_TIME, "time of a step"
    of_a, of_b = _times(a), _times(b)
    few = [of is None or of.steps < LEAST_STEPS for of in (of_a, of_b)]
    if of_a is None or of_b is None or any(few):
        counts = ", ".join(f"{side} has {0 if of is None else of.steps}" for side, of in (("A", of_a), ("B", of_b)))
        why = f"{LEAST_STEPS} steps are needed, {counts}" if of_a or of_b else ""
        found.is_untold(topic, name, a=few[0], b=few[1], why=why)
        return
    if _are_apart(of_a.medians, of_b.medians, of_a.median, of_b.median):
        found.texts(topic, name, of_a.text, f"{of_b.text}: {_ratio(of_a.median, of_b.median)}")
    elif _are_apart(of_a.means, of_b.means, of_a.mean, of_b.mean):
        said = [f"mean {duration(of.mean)}, {of.text}" for of in (of_a, of_b)]
        found.texts(topic, "mean time of a step", said[0], f"{said[1]}: {_ratio(of_a.mean, of_b.mean)}")
    else:
        found.is_same(topic, f"{name} (within its spread)")
        found.told.append(
            Row(topic, name, f"mean {duration(of_a.mean)}, {of_a.text}", f"mean {duration(of_b.mean)}, {of_b.text}")
        )
    if of_a.slowest and of_b.slowest:
        slow = [f"rank {rank}: {share:.2f} x median" for rank, share in (of_a.slowest, of_b.slowest)]
        found.told.append(Row(topic, "slowest rank", slow[0], slow[1]))


def _are_apart(a: tuple[float, ...], b: tuple[float, ...], whole_a: float, whole_b: float) -> bool:
    """All parts of one run lie above all of the other, and by enough to tell."""
    is_apart = min(a) > max(b) or min(b) > max(a)
    return is_apart and abs(whole_b - whole_a) >= LEAST_SHARE * min(whole_a, whole_b)


def _ratio(a: float, b: float) -> str:
    return f"{b / a:.2f} x A" if a > 0 else "A took no time"


def _times(run: Run) -> _Time | None:
    timed = run.trace.steps.filter(pl.col("start_ns").is_not_null()).with_columns(
        ns=pl.col("end_ns") - pl.col("start_ns")
    )
    if timed.is_empty():
        return None
    of_step = timed.group_by("step").agg(pl.col("ns").median()).sort("step")["ns"]
    cuts = [round(at * len(of_step) / BLOCKS) for at in range(BLOCKS + 1)]
    parts = [of_step[first:last] for first, last in itertools.pairwise(cuts) if last > first]
    medians = tuple(_float(part.median()) for part in parts)
    means = tuple(_float(part.mean()) for part in parts)
    of_rank = timed.group_by("rank").agg(pl.col("ns").median()).sort("ns", "rank", descending=[True, False])
    middle = _float(of_rank["ns"].median())
    slowest = (of_rank["rank"][0], _float(of_rank["ns"][0]) / middle) if of_rank.height > 1 and middle else None
    return _Time(
        median=_float(of_step.median()),
        mean=_float(of_step.mean()),
        high=_float(of_step.quantile(_HIGH)),
        medians=medians,
        means=means,
        steps=len(of_step),
        slowest=slowest,
    )


def _float(value: object) -> float:
    if not isinstance(value, int | float):
        raise TypeError(f"a number was expected, not {value!r}")
    return float(value)
