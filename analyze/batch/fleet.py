"""What many runs say together: what interrupts them, what it costs, what comes back."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from roundk.analyze.batch import blame, planes, presence, repeats, shares, trends
from roundk.analyze.batch import jobs as jobs_of
from roundk.analyze.batch.jobs import PROBLEM
from roundk.analyze.batch.offenders import Answer
from roundk.analyze.batch.planes import Part, Shared
from roundk.analyze.batch.repeats import Repeat
from roundk.analyze.batch.table import INTERRUPTED, Category
from roundk.analyze.batch.topology import Kind, Placed, Topology
from roundk.analyze.batch.trends import Trend
from roundk.analyze.names import Cause, Confidence, Status

_HOUR: Final = 3600.0
_SURE: Final = tuple(Confidence)


@dataclass(frozen=True)
class Counted:
    """How many runs something counts for, and how sure that is.

    Attributes:
        name: What is counted: a cause, or a category.
        category: Where it lies.
        count: How many.
        total: Of how many.
        sure: Of these, how many at each confidence of the cause.
        gpu_hours_lost: Of those of which it is known.
        lost_of: How many that is known of.
    """

    name: str
    category: Category
    count: int
    total: int
    sure: Mapping[Confidence, int]
    gpu_hours_lost: float
    lost_of: int

    @property
    def share(self) -> float | None:
        """Percent of the total; None where the total is 0."""
        return shares.percent(self.count, self.total)


@dataclass(frozen=True)
class States:
    """How many runs there are, each counted once.

    Attributes:
        total: Runs.
        interrupted: Failed, stuck, or interrupted in a way that could not be told.
        slow: Went on, slowly.
        healthy: Nothing is wrong.
        in_progress: Still running when they were looked at.
        problems: Could not be judged.
        other: In any further state.
        partly: Judged without some of their files; counted among the above too.
    """

    total: int
    interrupted: int
    slow: int
    healthy: int
    in_progress: int
    problems: int
    other: int
    partly: int


@dataclass(frozen=True)
class Between:
    """How long a job runs between failures.

    Mean time between failures is the functioning life of a population over the number of its failures (Source:
    MIL-HDBK-338B, section 3). The unit is a job: each run counts with its whole time from start to end, and the times
    of runs beside each other are summed. It is the mean time until a running job is interrupted, not the time between
    two interruptions anywhere.

    Attributes:
        runs: Runs whose start and end are known.
        interruptions: How many of these were interrupted.
        hours: Hours of these runs.
        hours_between: Hours of a run to an interruption.
        gpu_runs: Runs whose GPU-hours are known.
        gpu_interruptions: How many of these were interrupted.
        gpu_hours: GPU-hours of these runs.
        gpu_hours_between: GPU-hours to an interruption.
        only_interrupted: Whether no run ended without an interruption: then times between failures are those of runs
            that failed, and too short.
    """

    runs: int
    interruptions: int
    hours: float
    hours_between: float | None
    gpu_runs: int
    gpu_interruptions: int
    gpu_hours: float
    gpu_hours_between: float | None
    only_interrupted: bool


@dataclass(frozen=True)
class Lost:
    """GPU-hours from onset to end of the interrupted runs.

    Attributes:
        gpu_hours: Those that are known.
        known: Of how many interrupted runs.
        of: How many interrupted runs there are.
    """

    gpu_hours: float
    known: int
    of: int


@dataclass(frozen=True)
class Layout:
    """What the topology file told.

    Attributes:
        source: The file.
        hosts: How many hosts it names.
        kinds: What it tells of the hosts of the runs.
        missing: Hosts of the runs that it does not name.
    """

    source: str
    hosts: int
    kinds: tuple[Kind, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Fleet:
    """What many runs say together.

    Attributes:
        states: How many runs, by state.
        categories: Interruptions by category, all five, the most frequent first.
        causes: Interruptions by cause, the most frequent first.
        untold: Structures of the interruptions whose cause is not determined, with how many.
        slow: Slow runs by cause.
        lost: GPU-hours lost.
        between: Time between failures.
        first: Time of the first interruption, where any is known.
        last: Time of the last.
        trend: Interruptions by week.
        repeats: Jobs that failed the same way more than once.
        presence: Hosts that are in more interrupted jobs than their use explains.
        blame: Units that are named in more jobs than an even spread of the blame allows.
        layout: What the topology file told; None: there is none.
        parts: What each rail and plane accounts for.
        shared: Runs whose culprits all lie in one place.
        runs: Root verdicts, one row of `RUNS` per run.
        problems: Name and problem of the runs that could not be judged, or were judged without some of their files.
        left_out: Files and folders that could not be listed, or belong to no run that could be told.
    """

    states: States
    categories: tuple[Counted, ...]
    causes: tuple[Counted, ...]
    untold: tuple[tuple[str, int], ...]
    slow: tuple[Counted, ...]
    lost: Lost
    between: Between
    first: dt.datetime | None
    last: dt.datetime | None
    trend: Trend
    repeats: tuple[Repeat, ...]
    presence: Answer
    blame: Answer
    layout: Layout | None
    parts: tuple[Part, ...]
    shared: tuple[Shared, ...]
    runs: pl.DataFrame
    problems: tuple[tuple[str, str], ...]
    left_out: tuple[str, ...] = ()


def fleet(runs: pl.DataFrame, topology: Topology | None = None, left_out: Iterable[str] = ()) -> Fleet:
    """What many runs say together.

    Args:
        runs: Rows of `RUNS`.
        topology: Where hosts and ports lie.
        left_out: What belongs to no run; see `Fleet`.
    """
    roots = runs.filter(pl.col("verdict") == 0).sort("run")
    rows = list(roots.iter_rows(named=True))
    stopped = [row for row in rows if row["status"] in INTERRUPTED]
    jobs = jobs_of.of(runs)
    placed = Placed(topology, jobs.hosts)
    times = [at for row in stopped if (at := jobs_of.when(row)) is not None]
    lost = [row["gpu_hours_lost"] for row in stopped if row["gpu_hours_lost"] is not None]
    untold = Counter(row["structure"] or "no verdict" for row in stopped if _cause(row) == Cause.UNDETERMINED)
    return Fleet(
        states=_states(rows),
        categories=_counted(stopped, _category, tuple(Category)),
        causes=_counted(stopped, _cause),
        untold=_ranked(untold),
        slow=_counted([row for row in rows if row["status"] == Status.SLOW], _cause),
        lost=Lost(sum(lost), len(lost), len(stopped)),
        between=_between(rows),
        first=min(times, default=None),
        last=max(times, default=None),
        trend=trends.find(roots),
        repeats=repeats.find(roots, jobs.names),
        presence=presence.find(jobs, placed.hosts),
        blame=blame.find(jobs, placed),
        layout=None if topology is None else Layout(topology.source, placed.hosts, placed.kinds, placed.missing),
        parts=planes.parts(jobs, placed),
        shared=planes.shared(runs, jobs, placed),
        runs=roots,
        problems=tuple((row["run"], row["problem"] or "no reason is told") for row in rows if _has_problem(row)),
        left_out=tuple(left_out),
    )


def _states(rows: Iterable[Mapping[str, Any]]) -> States:
    counts = Counter(row["status"] for row in rows)
    told = {
        "interrupted": sum(counts[status] for status in INTERRUPTED),
        "slow": counts[Status.SLOW],
        "healthy": counts[Status.HEALTHY],
        "in_progress": counts[Status.IN_PROGRESS],
        "problems": counts[PROBLEM],
    }
    other = counts.total() - sum(told.values())
    partly = sum(row["status"] != PROBLEM and _has_problem(row) for row in rows)
    return States(total=counts.total(), other=other, partly=partly, **told)


def _has_problem(row: Mapping[str, Any]) -> bool:
    return row["status"] == PROBLEM or row["problem"] is not None


def _cause(row: Mapping[str, Any]) -> str:
    return row["cause"] or Cause.UNDETERMINED.value


def _category(row: Mapping[str, Any]) -> str:
    return row["category"] or Category.UNDETERMINED.value


def _counted(
    rows: list[dict[str, Any]], key: Callable[[Mapping[str, Any]], str], always: Iterable[str] = ()
) -> tuple[Counted, ...]:
    groups: dict[str, list[Mapping[str, Any]]] = {str(name): [] for name in always}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    made = []
    for name, group in groups.items():
        sure = Counter(row["cause_confidence"] or Confidence.NONE for row in group)
        lost = [row["gpu_hours_lost"] for row in group if row["gpu_hours_lost"] is not None]
        category = Category(_category(group[0]) if group else name)
        made.append(
            Counted(name, category, len(group), len(rows), {one: sure[one] for one in _SURE}, sum(lost), len(lost))
        )
    # What is not known comes last among equals.
    return tuple(sorted(made, key=lambda one: (-one.count, one.category is Category.UNDETERMINED, one.name)))


def _ranked(counts: Counter[str]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(counts.items(), key=lambda one: (-one[1], one[0])))


def _between(rows: Iterable[Mapping[str, Any]]) -> Between:
    judged = [row for row in rows if row["status"] != PROBLEM]
    timed = [row for row in judged if row["started_at"] and row["ended_at"] and row["ended_at"] >= row["started_at"]]
    hours = sum((row["ended_at"] - row["started_at"]).total_seconds() for row in timed) / _HOUR
    sized = [row for row in judged if row["gpu_hours"] is not None]
    gpu_hours = sum(row["gpu_hours"] for row in sized)
    stopped, gpu_stopped = (sum(row["status"] in INTERRUPTED for row in some) for some in (timed, sized))
    return Between(
        runs=len(timed),
        interruptions=stopped,
        hours=hours,
        hours_between=hours / stopped if stopped and hours else None,
        gpu_runs=len(sized),
        gpu_interruptions=gpu_stopped,
        gpu_hours=gpu_hours,
        gpu_hours_between=gpu_hours / gpu_stopped if gpu_stopped and gpu_hours else None,
        only_interrupted=bool(judged) and all(row["status"] in INTERRUPTED for row in judged),
    )
