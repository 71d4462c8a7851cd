"""The jobs of a table: where their interrupted runs and their others ran, and what was named as culprit."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import polars as pl

from roundk.analyze.batch import hostnames
from roundk.analyze.batch.table import INTERRUPTED, Category
from roundk.analyze.names import Confidence, Status
from roundk.analyze.phrases import port_text

PROBLEM: Final = "error"
"""Status of a run that could not be judged."""

_SURE: Final = (Confidence.HIGH, Confidence.MEDIUM)
_BLAMES: Final = (*INTERRUPTED, Status.SLOW)


class Port(NamedTuple):
    """An end of a link."""

    host: str
    device: str
    port: int | None

    @property
    def text(self) -> str:
        """`node17:mlx5_3:1`."""
        return f"{self.host}:{port_text(self.device, self.port)}"


class Culprit(NamedTuple):
    """A host that was named, with the port of it where one was named."""

    host: str
    port: Port | None


@dataclass
class Job:
    """Attempts and restarts of one job; a run that no job is known of stands for itself.

    Attributes:
        key: Id of the job, else the run's name.
        hosts: Where its interrupted runs ran, each with the names of these runs.
        others: Hosts of its runs that were not interrupted.
        blamed: Who was named in its interrupted and slow runs with more than low confidence, and the runs' names.
    """

    key: str
    hosts: dict[str, list[str]] = field(default_factory=dict)
    others: set[str] = field(default_factory=set)
    blamed: dict[Culprit, list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Jobs:
    """The jobs of a table.

    Attributes:
        jobs: Each once, by key.
        times: When each run was interrupted, where that is known.
        causes: What each run's root verdict says.
        names: One name for every host that the table names.
    """

    jobs: tuple[Job, ...]
    times: Mapping[str, dt.datetime]
    causes: Mapping[str, str]
    names: Mapping[str, str]

    @property
    def hosts(self) -> frozenset[str]:
        """All hosts of the table."""
        return frozenset(self.names.values())


def when(row: Mapping[str, Any]) -> dt.datetime | None:
    """The time to put a run at: its onset, else its end, else its start."""
    found: dt.datetime | None = row["onset_at"] or row["ended_at"] or row["started_at"]
    return found


def of(runs: pl.DataFrame) -> Jobs:
    """The jobs of a table of runs.

    Args:
        runs: Rows of `RUNS`.
    """
    rows = list(runs.iter_rows(named=True))
    names = hostnames.alike(
        name
        for row in rows
        for name in (*row["hosts"], *row["culprit_hosts"], *(link["host"] for link in row["culprit_links"]))
    )
    made: dict[str, Job] = {}
    times: dict[str, dt.datetime] = {}
    causes: dict[str, str] = {}
    for row in rows:
        key = row["run"] if row["job"] is None else f"job {row['job']}"
        job = made.setdefault(key, Job(key))
        run, hosts = row["run"], {names[host] for host in row["hosts"]}
        at = when(row)
        if at is not None:
            times.setdefault(run, at)
        if row["cause"] is not None and row["verdict"] == 0:
            causes[run] = row["cause"]
        if row["status"] in INTERRUPTED:
            for host in hosts:
                _note(job.hosts.setdefault(host, []), run)
        elif row["status"] != PROBLEM:
            job.others |= hosts
        if row["status"] in _BLAMES:
            for culprit in culprits(row, names):
                _note(job.blamed.setdefault(culprit, []), run)
    return Jobs(tuple(made[key] for key in sorted(made)), times, causes, names)


def culprits(row: Mapping[str, Any], names: Mapping[str, str]) -> set[Culprit]:
    """Hosts and ports that a verdict names with more than low confidence.

    What the code did says nothing of the host it ran on: rank 0 is on the first host of most jobs.

    Args:
        row: A row of `RUNS`.
        names: One name for every host.
    """
    if row["category"] == Category.CODE:
        return set()
    ports = set()
    if row["cause_confidence"] in _SURE:
        ports = {Port(names[link["host"]], link["device"], link["port"]) for link in row["culprit_links"]}
    made = {Culprit(port.host, port) for port in ports}
    if row["structure_confidence"] in _SURE:
        made |= {Culprit(names[host], None) for host in row["culprit_hosts"]} - {
            Culprit(port.host, None) for port in ports
        }
    return made


def _note(names: list[str], run: str) -> None:
    if run not in names:
        names.append(run)


def ports(jobs: Iterable[Job]) -> dict[str, set[Port]]:
    """Ports of each host that were named anywhere."""
    made: dict[str, set[Port]] = {}
    for job in jobs:
        for culprit in job.blamed:
            if culprit.port is not None:
                made.setdefault(culprit.host, set()).add(culprit.port)
    return made
