"""What one rail or plane of a network accounts for, and hangs whose culprits all lie in one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from roundk.analyze.batch.blame import Uses
from roundk.analyze.batch.jobs import Culprit, Job, Jobs, culprits
from roundk.analyze.batch.table import INTERRUPTED
from roundk.analyze.batch.topology import PLACES, Kind, Placed

_MIN_CULPRITS: Final = 2


@dataclass(frozen=True)
class Part:
    """What one rack, rail or plane accounts for.

    Attributes:
        kind: Which of these.
        name: Its name.
        jobs: Jobs that name something in it.
        of: Jobs that name something of this kind.
        expected: How many jobs an even spread of the blame would give it; over all parts it adds up as `jobs` does.
    """

    kind: Kind
    name: str
    jobs: int
    of: int
    expected: float


@dataclass(frozen=True)
class Shared:
    """A run whose culprits all lie in one place although it ran in several.

    Attributes:
        run: Its name.
        verdict: Number of the verdict.
        kind: Rack, rail or plane.
        name: Its name.
        culprits: How many ports or hosts are named.
        of: In how many such places the run ran.
        confidence: Of the verdict's structure.
    """

    run: str
    verdict: int
    kind: Kind
    name: str
    culprits: int
    of: int
    confidence: str


def parts(jobs: Jobs, placed: Placed) -> tuple[Part, ...]:
    """What each rail and plane accounts for, by kind, the largest first."""
    blaming = [job for job in jobs.jobs if job.blamed]
    uses = Uses(blaming, placed)
    made = []
    for kind in (kind for kind in placed.kinds if kind is not Kind.RACK):
        named = [(job, {unit for one in job.blamed if (unit := uses.unit(kind, one))}) for job in blaming]
        named = [(job, units) for job, units in named if units]
        spread = [uses.expected(kind, job, len(units)) for job, units in named]
        every = sorted({unit for one in spread for unit in one})
        rows = [
            Part(
                kind,
                unit,
                sum(unit in units for _, units in named),
                len(named),
                sum(one.get(unit, 0.0) for one in spread),
            )
            for unit in every
        ]
        made += sorted(rows, key=lambda one: (-one.jobs, one.name))
    return tuple(made)


def shared(runs: pl.DataFrame, jobs: Jobs, placed: Placed) -> tuple[Shared, ...]:
    """Interrupted runs whose culprits, two or more, all lie in one place although the run used several.

    Args:
        runs: Rows of `RUNS`.
        jobs: Their jobs.
        placed: Where hosts and ports lie.
    """
    if not placed.kinds:
        return ()
    rows = runs.filter(pl.col("status").is_in(INTERRUPTED)).iter_rows(named=True)
    return tuple(one for row in rows for kind in PLACES if (one := _shared(row, kind, jobs, placed)) is not None)


def _shared(row: Mapping[str, Any], kind: Kind, jobs: Jobs, placed: Placed) -> Shared | None:
    named: set[Culprit] = culprits(row, jobs.names)
    if len(named) < _MIN_CULPRITS or kind not in placed.kinds:
        return None
    alone = Job(row["run"], blamed={one: [row["run"]] for one in named})
    alone.hosts = {jobs.names[host]: [row["run"]] for host in row["hosts"]}
    uses = Uses([alone], placed)
    units = {uses.unit(kind, one) for one in named}
    unit = units.pop() if len(units) == 1 else None
    count = uses.of(kind, alone)[0]
    if unit is None or count < 2 or (kind is Kind.RACK and len({one.host for one in named}) < _MIN_CULPRITS):
        return None
    return Shared(row["run"], row["verdict"], kind, unit, len(named), count, row["structure_confidence"])
