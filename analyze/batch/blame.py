"""Hosts, ports, racks, rails and planes that are named as culprit in more jobs than an even spread of the blame allows.

The unit of count is the job, with all that its runs name at more than low confidence. If a job names k of the n units
of a kind that it used, each of them is named with chance k / n; of racks, rails and planes, which may have unequal
parts in a job, with k times the larger of 1 / n and its part of the job's hosts or ports, which is not too small
either way. The number of jobs that name a unit is then Poisson binomial. Of ports, the table names only culprits: a
job used those of its hosts that the topology file names or that were named anywhere, and at least one on each host.

One fault is seen at several sizes: a bad rail blames the hosts it joins, a bad host blames its rack. Of all units
that are named too often, of whatever kind, the one with the smallest probability is taken, the smaller one where two
are equal; the blame that it explains is taken away; and what is left is tested again, until nothing stands out
(Holm's correction over all units of all kinds).

Source: `exact.py` for the distribution and the correction.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from roundk.analyze.batch import exact
from roundk.analyze.batch.jobs import Culprit, Job, Jobs, Port, ports
from roundk.analyze.batch.offenders import Answer, Finding, Unit, finding
from roundk.analyze.batch.topology import Kind, Placed
from roundk.analyze.phrases import number_of

MIN_JOBS: Final = 2
_MOST: Final = 3
_ORDER: Final = tuple(Kind)

TEST: Final = (
    "exact Poisson binomial test, one-sided, of how many jobs name each {kinds} against an even spread of the blame "
    "over those that the jobs used; Holm's correction at 5 %"
)


class Uses:
    """Which units of each kind a job used, and of how many hosts or ports each of them consists there."""

    def __init__(self, jobs: Iterable[Job], placed: Placed) -> None:
        self._placed = placed
        self._named = ports(jobs)
        self._devices: dict[str, int] = {}
        self._cached: dict[tuple[Kind, frozenset[str]], tuple[int, int, Mapping[str, int]]] = {}

    def unit(self, kind: Kind, culprit: Culprit) -> str | None:
        """The unit of a kind that a culprit is, or lies in; None: in none, or not told."""
        if kind is Kind.HOST:
            return culprit.host
        if kind is Kind.PORT:
            return None if culprit.port is None else self.port(culprit.port).text
        port = culprit.port
        return self._placed.label(kind, culprit.host, *(() if port is None else port[1:]))

    def port(self, port: Port) -> Port:
        """The port as it is named most closely: with its number where another verdict tells it."""
        if port.port is not None:
            return port
        closer = {one for one in self._named[port.host] if one.device == port.device and one.port is not None}
        return closer.pop() if len(closer) == 1 else port

    def hosts(self, job: Job) -> frozenset[str]:
        """Hosts of a job, those that were only named too."""
        return frozenset({*job.hosts, *job.others, *(culprit.host for culprit in job.blamed)})

    def devices(self, host: str) -> int:
        """How many ports a host has, as far as anything tells; at least one."""
        if host not in self._devices:
            named = {self.port(port)[1:] for port in self._named.get(host, ())}
            further = {
                (device, port)
                for device, port in self._placed.devices(host)
                if not any(device == other and (port is None or at is None or port == at) for other, at in named)
            }
            self._devices[host] = max(len(named) + len(further), 1)
        return self._devices[host]

    def of(self, kind: Kind, job: Job) -> tuple[int, int, Mapping[str, int]]:
        """How many units a job used, how many hosts or ports these have together, and how many each has.

        Units of which each is one host or one port have none listed.
        """
        hosts = self.hosts(job)
        key = (kind, hosts)
        if key not in self._cached:
            self._cached[key] = self._of(kind, hosts)
        return self._cached[key]

    def chance(self, kind: Kind, job: Job, unit: str, named: int) -> float:
        """The chance that one of so many named units of a job is this one; 0: the job did not use it."""
        count, whole, sizes = self.of(kind, job)
        if kind in (Kind.HOST, Kind.PORT):
            host = unit if kind is Kind.HOST else self._host(unit)
            return min(1.0, named / count) if host in self.hosts(job) else 0.0
        part = sizes.get(unit, 0)
        return min(1.0, named * max(1 / count, part / whole)) if part else 0.0

    def expected(self, kind: Kind, job: Job, named: int) -> Mapping[str, float]:
        """How often a job names each rack, rail or plane of those it used, if the blame goes by their parts of it.

        All together it is as often as the job names one. None is named twice by a job: what the part of a large one has
        too much, the others get.
        """
        sizes = dict(self.of(kind, job)[2])
        made: dict[str, float] = {}
        while sizes and len(made) < named:
            each = (named - len(made)) / sum(sizes.values())
            full = [unit for unit, size in sizes.items() if each * size >= 1]
            if not full:
                return made | {unit: each * size for unit, size in sizes.items()}
            made |= dict.fromkeys(full, 1.0)
            for unit in full:
                del sizes[unit]
        return made | dict.fromkeys(sizes, 0.0)

    def all(self, kind: Kind, jobs: Sequence[Job]) -> int:
        """How many different units jobs used together."""
        hosts = frozenset().union(*map(self.hosts, jobs))
        return self._of(kind, hosts)[0]

    def _host(self, port: str) -> str:
        if not hasattr(self, "_hosts"):
            self._hosts = {self.port(one).text: host for host, named in self._named.items() for one in named}
        return self._hosts[port]

    def _of(self, kind: Kind, hosts: frozenset[str]) -> tuple[int, int, Mapping[str, int]]:
        if kind is Kind.HOST:
            return len(hosts), len(hosts), {}
        if kind is Kind.PORT:
            count = sum(map(self.devices, hosts))
            return count, count, {}
        sizes: Counter[str] = Counter()
        for host in hosts:
            sizes.update(self._placed.labels(kind, host))
        return len(sizes), sizes.total(), sizes


class _Round:
    """The blame that is left in each job, and what it says of each unit."""

    def __init__(self, uses: Uses, jobs: Sequence[Job], left: Sequence[set[Culprit]], kinds: Iterable[Kind]) -> None:
        self.named: dict[Kind, list[set[str]]] = {
            kind: [{unit for one in blamed if (unit := uses.unit(kind, one)) is not None} for blamed in left]
            for kind in kinds
        }
        self._uses, self._jobs = uses, jobs

    def counts(self) -> Counter[Unit]:
        """How many jobs name each unit."""
        return Counter(Unit(kind, name) for kind, jobs in self.named.items() for names in jobs for name in names)

    def chances(self, unit: Unit) -> list[float]:
        """The chance of each job that used a unit to name it."""
        made = (
            self._uses.chance(unit.kind, job, unit.name, len(names))
            for job, names in zip(self._jobs, self.named[unit.kind], strict=True)
            if names
        )
        return [chance for chance in made if chance]


def find(jobs: Jobs, placed: Placed) -> Answer:
    """Units that are named in more jobs than an even spread of the blame allows.

    Args:
        jobs: The jobs of the table.
        placed: Where hosts and ports lie.
    """
    blaming = [job for job in jobs.jobs if job.blamed]
    if not blaming:
        return Answer("", 0, (), remark="No run names a host or a port with more than low confidence.")
    uses = Uses(blaming, placed)
    left = [set(job.blamed) for job in blaming]
    first = _Round(uses, blaming, left, (Kind.PORT, Kind.HOST, *placed.kinds))
    kinds = [kind for kind in _ORDER if kind in first.named and any(first.named[kind])]
    tested = tuple(
        (kind, uses.all(kind, [job for job, names in zip(blaming, first.named[kind], strict=True) if names]))
        for kind in kinds
    )
    tests = sum(count for _, count in tested)
    found: list[Finding] = []
    cache: dict[tuple[int, tuple[float, ...]], float] = {}
    level = -math.inf
    while True:
        now = _Round(uses, blaming, left, kinds)
        ranked = sorted(
            (_tested(jobs, uses, now, unit, count, blaming, left, cache) for unit, count in now.counts().items()),
            key=lambda one: (round(one.log_p, 9), _ORDER.index(one.unit.kind), -one.jobs, one.unit.name),
        )
        able = [one for one in ranked if one.jobs >= MIN_JOBS]
        remaining = max(tests - len(found), 1)
        step = exact.corrected(able[0].log_p, remaining, level) if able else 0.0
        if step > math.log(exact.LEVEL):
            break
        level = step
        found.append(_with(able[0], step))
        _explain(uses, able[0].unit, left)
    most = tuple(_with(one, exact.corrected(one.log_p, remaining, level)) for one in able[:_MOST])
    test = TEST.format(kinds=_either([str(kind) for kind in kinds]))
    remark = "" if found or not _hopeless(uses, first, blaming, kinds, tests) else _too_few(len(blaming))
    return Answer(test, len(blaming), tested, tuple(found), most, remark)


def _tested(
    jobs: Jobs,
    uses: Uses,
    now: _Round,
    unit: Unit,
    count: int,
    blaming: Sequence[Job],
    left: Sequence[set[Culprit]],
    cache: dict[tuple[int, tuple[float, ...]], float],
) -> Finding:
    chances = now.chances(unit)
    expected = sum(chances)
    log_p = 0.0
    if count > max(expected, MIN_JOBS - 1):
        key = (count, tuple(sorted(chances)))
        if key not in cache:
            cache[key] = exact.log_tail(key[1], count)
        log_p = cache[key]
    return finding(
        jobs,
        unit,
        (
            run
            for job, names, blamed in zip(blaming, now.named[unit.kind], left, strict=True)
            if unit.name in names
            for one in blamed
            if uses.unit(unit.kind, one) == unit.name
            for run in job.blamed[one]
        ),
        count=count,
        used_in=len(chances),
        expected=expected,
        log_p=log_p,
        log_corrected=0.0,
    )


def _with(one: Finding, corrected: float) -> Finding:
    return Finding(**{**one.__dict__, "log_corrected": corrected})


def _explain(uses: Uses, unit: Unit, left: Sequence[set[Culprit]]) -> None:
    for blamed in left:
        blamed -= {one for one in blamed if uses.unit(unit.kind, one) == unit.name}


def _hopeless(uses: Uses, first: _Round, blaming: Sequence[Job], kinds: Iterable[Kind], tests: int) -> bool:
    """Whether nothing could have stood out, had one unit been named in every job that used it."""
    best = 0.0
    for kind in kinds:
        sums: dict[str, float] = {}
        times: Counter[str] = Counter()
        for job, names in zip(blaming, first.named[kind], strict=True):
            if not names:
                continue
            # A port is as likely as its host is used, and one of each host will do.
            units = uses.of(kind, job)[2] or uses.hosts(job)
            share = len(names) / uses.of(kind, job)[0]
            for unit in units:
                chance = share if kind in (Kind.HOST, Kind.PORT) else uses.chance(kind, job, unit, len(names))
                sums[unit] = sums.get(unit, 0.0) + math.log(min(1.0, chance))
                times[unit] += 1
        best = min([best, *(log_p for unit, log_p in sums.items() if times[unit] >= MIN_JOBS)])
    return exact.corrected(best, tests) > math.log(exact.LEVEL)


def _too_few(jobs: int) -> str:
    return (
        f"{number_of(jobs, 'job')} that {'names' if jobs == 1 else 'name'} somebody: too few, even one named whenever "
        "it was used would not stand out."
    )


def _either(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
