"""What is planted in a run, as the plan keeps it: the answer that the table is compared with."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict, dataclass, field

WHOLE, PARTLY, NOTHING = "whole", "partly", "nothing"
"""How much of a run's files can be read."""


@dataclass(frozen=True)
class Truth:
    """What was done to a run, and what may be said of it.

    Attributes:
        kind: Name of the fault.
        causes: Causes that are right; the first is the one it is planned under.
        structures: Structures that are right; empty: any that goes with the cause.
        guilty_ranks: Ranks that may be named; None: all but the innocent ones.
        innocent_ranks: Ranks that must not be named.
        guilty_hosts: Hosts that may be named; None: all but the innocent ones.
        innocent_hosts: Hosts that must not be named.
        links: Ends of links that may be named, `host/device`; None: any of a guilty host.
        goes_on: The run was slow and went on.
        lost: Ranks whose files were lost or damaged: they look as if they had died without a word, and may
            be named below high confidence.
    """

    kind: str
    causes: tuple[str, ...]
    structures: tuple[str, ...] = ()
    guilty_ranks: tuple[int, ...] | None = None
    innocent_ranks: tuple[int, ...] = ()
    guilty_hosts: tuple[str, ...] | None = None
    innocent_hosts: tuple[str, ...] = ()
    links: tuple[str, ...] | None = None
    goes_on: bool = False
    lost: tuple[int, ...] = ()


@dataclass
class Planned:
    """One run of the tree."""

    run: str
    """Path below the root."""
    source: str
    truth: Truth
    layout: str = ""
    job: str | None = None
    attempt: int | None = None
    damage: str | None = None
    readable: str = WHOLE
    is_told: bool = False
    """That something is damaged has to be said: the rest (a log that is no UTF-8) is read as it is."""


@dataclass
class Plan:
    """All runs of a tree."""

    seed: int
    runs: list[Planned] = field(default_factory=list)

    def write(self, folder):
        """`plan.json`, and `plan.csv` for the eye."""
        (folder / "plan.json").write_text(json.dumps(asdict(self), indent=1))
        with (folder / "plan.csv").open("w", newline="") as file:
            out = csv.writer(file)
            out.writerow(["run", "source", "layout", "job", "attempt", "kind", "cause", "ranks", "hosts", "damage"])
            for run in self.runs:
                named = [" ".join(map(str, value or ())) for value in (run.truth.guilty_ranks, run.truth.guilty_hosts)]
                told = [run.run, run.source, run.layout, run.job, run.attempt, run.truth.kind, run.truth.causes[0]]
                out.writerow([*told, *named, run.damage])


def read(path):
    """The plan that was written."""
    told = json.loads(path.read_text())
    runs = []
    for row in told["runs"]:
        truth = {name: tuple(value) if isinstance(value, list) else value for name, value in row.pop("truth").items()}
        runs.append(Planned(truth=Truth(**truth), **row))
    return Plan(told["seed"], runs)
