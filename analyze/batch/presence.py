"""Hosts that are in more interrupted jobs than their use explains, whatever was blamed.

The unit of count is the job: restarts on the same hosts are one draw. The host with the strongest evidence is taken
first; the jobs it was in are set aside, and the others are tested again without them, until none is left: hosts that
only ever ran beside the bad one are not named for that.

Where the table holds runs that were not interrupted, and these used at least as many hosts (counted once a job) as
the interrupted ones, use is known: of all uses of hosts, a host's own are a draw without putting back, of which so
many or more fall on interrupted jobs with the hypergeometric probability (Fisher's exact test, one-sided).

Else use is not known, and jobs are taken to be placed evenly over the pool of hosts: a job with n hosts has a given
one with chance n / pool, and the number of jobs with it is Poisson binomial. The pool is not smaller than the hosts
that were seen; hosts that no job happened to use are counted in by asking from how many hosts an even draw would show
as many different ones as were seen (the solution of `N * (1 - prod(1 - n_j / N)) = seen - 1`, as few meetings tell
little), or those of the topology file where they are fewer. The correction is for the whole pool: any host of it
might have been the one. A table in which many hosts stand out is one of uneven placement; then none is named.

Source: `exact.py` for the distributions and the correction.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from roundk.analyze.batch import exact
from roundk.analyze.batch.jobs import Job, Jobs
from roundk.analyze.batch.offenders import Answer, Finding, Unit, finding
from roundk.analyze.batch.topology import Kind
from roundk.analyze.phrases import number_of

MIN_JOBS: Final = 3
"""Twice in a bad job is no series: schedulers give the same hosts to the same users."""

_MANY: Final = 0.1
_FEW: Final = 3
"""More hosts than a tenth, and than three, do not go bad at once: then placement is uneven."""

_MOST: Final = 3
_MEETINGS: Final = 1
"""Times a host was used again, counted beyond those seen; it matters where there are few."""

_LARGEST: Final = 1e9
_STEPS: Final = 80
"""Halvings until a float has no more digits."""

_NEAR: Final = 0.0
"""Logarithm of the corrected probability below which a host is looked at closely."""

EVEN: Final = (
    "exact Poisson binomial test, one-sided, of each host against even placement over about {pool}; "
    "Holm's correction at 5 %"
)
USAGE: Final = (
    "Fisher's exact test, one-sided, of each host's use by interrupted jobs against its use by runs that were not "
    "interrupted; Holm's correction at 5 %"
)


def find(jobs: Jobs, topology_hosts: int = 0) -> Answer:
    """Hosts that are in more interrupted jobs than their use explains.

    Args:
        jobs: The jobs of the table.
        topology_hosts: How many hosts the topology file names; 0: there is none.
    """
    hit = [job for job in jobs.jobs if job.hosts]
    seen = {host for job in hit for host in job.hosts}
    slots = sum(len(job.hosts) for job in hit)
    fine = [job for job in jobs.jobs if job.others]
    if not hit:
        return Answer("", 0, (), remark="Of no interrupted run the hosts are known.")
    if sum(len(job.others) for job in fine) >= slots:
        everything = seen | {host for job in fine for host in job.others}
        tested = ((Kind.HOST, len(everything)),)
        findings, most = _series(jobs, hit, functools.partial(_fisher, fine), len(everything))
        remark = "" if findings or not _hopeless_by_use(hit, fine, len(everything)) else _too_few(len(hit), None)
        return Answer(USAGE, len(hit), tested, findings, most, remark)
    pools = _Pools([job.hosts.keys() | job.others for job in jobs.jobs], topology_hosts)
    pool = pools.of(None)
    # Any host of the pool might have been the one that stands out, seen or not.
    tests = max(len(seen), round(pool))
    tested = ((Kind.HOST, tests),)
    test = EVEN.format(pool=number_of(tests, "host"))
    many = _standing_out(_even(pools, hit, ()), tests)
    findings, most = _series(jobs, hit, functools.partial(_even, pools), tests)
    if many > max(_FEW, _MANY * len(seen)):
        remark = (
            f"{many:,} of {number_of(len(seen), 'host')} are in more interrupted jobs than even placement "
            "allows: jobs are not placed evenly here, and how often each host was used is not known. None is named for "
            "that; with the runs that were not interrupted in the table, use is known and this can be told."
        )
        return Answer(test, len(hit), tested, (), most, remark)
    chances = [min(1.0, len(job.hosts) / pool) for job in hit]
    best = sum(map(math.log, chances))
    if findings or (len(hit) >= MIN_JOBS and exact.corrected(best, tests) <= math.log(exact.LEVEL)):
        return Answer(test, len(hit), tested, findings, most)
    if max(chances) == min(chances) == 1:
        remark = "Every job used every host: presence tells none from another."
        return Answer(test, len(hit), tested, (), most, remark)
    needed = math.ceil(math.log(exact.LEVEL / tests) / (best / len(hit)))
    return Answer(test, len(hit), tested, (), most, _too_few(len(hit), max(needed, MIN_JOBS, len(hit) + 1)))


class _Pools:
    """From how many hosts jobs were drawn, if evenly.

    Args:
        jobs: The hosts of each job.
        topology_hosts: How many hosts the topology file names; 0: there is none.
    """

    def __init__(self, jobs: Iterable[frozenset[str] | set[str]], topology_hosts: int) -> None:
        self._jobs = [one for one in jobs if one]
        self._seen = len(frozenset().union(*self._jobs))
        self._most = max(topology_hosts, self._seen) if topology_hosts else _LARGEST

    def of(self, host: str | None) -> float:
        """The pool by all hosts but this one, and with it: what it does itself does not make the pool smaller."""
        without = host is not None
        sizes = np.array([len(one) - (host in one) for one in self._jobs], dtype=float)
        return min(estimated_pool(sizes, self._seen - without) + without, self._most)


def estimated_pool(sizes: npt.NDArray[np.float64], seen: int) -> float:
    """From how many hosts jobs were drawn, if evenly: so many that a draw shows as many as were seen.

    Args:
        sizes: How many hosts each job has.
        seen: How many different ones.
    """
    # From few meetings the pool is badly known. One more makes it smaller: chance is then thought to do more.
    shown = seen - _MEETINGS
    low, high = max(float(seen), 1.0), _LARGEST
    if _shown(low, sizes) >= shown:
        return low
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if _shown(middle, sizes) < shown:
            low = middle
        else:
            high = middle
    return high


def _shown(pool: float, sizes: npt.NDArray[np.float64]) -> float:
    if sizes.max() >= pool:
        return pool
    return float(-pool * np.expm1(np.log1p(-sizes / pool).sum()))


@dataclass(frozen=True)
class _Count:
    """How many interrupted jobs have a host, how many may have it, and how probable so many or more are."""

    jobs: int
    used_in: int
    expected: float
    log_p: float


_Test = Callable[[Sequence[Job], Sequence[str]], dict[str, _Count]]


def _series(
    jobs: Jobs, hit: Sequence[Job], counted: _Test, tests: int
) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    found: list[Finding] = []
    taken: list[str] = []
    level = -math.inf
    while True:
        left = [job for job in hit if not job.hosts.keys() & set(taken)]
        counts = counted(left, taken)
        order = sorted(counts, key=lambda host: (round(counts[host].log_p, 9), -counts[host].jobs, host))

        def told(
            host: str, corrected: float, left: Sequence[Job] = left, counts: Mapping[str, _Count] = counts
        ) -> Finding:
            one = counts[host]
            return finding(
                jobs,
                Unit(Kind.HOST, host),
                (run for job in left for run in job.hosts.get(host, ())),
                count=one.jobs,
                used_in=one.used_in,
                expected=one.expected,
                log_p=one.log_p,
                log_corrected=corrected,
            )

        able = [host for host in order if counts[host].jobs >= MIN_JOBS]
        remaining = max(tests - len(taken), 1)
        step = exact.corrected(counts[able[0]].log_p, remaining, level) if able else 0.0
        if step > math.log(exact.LEVEL):
            first = [host for host in order if counts[host].jobs > 1][:_MOST]
            return tuple(found), tuple(
                told(host, exact.corrected(counts[host].log_p, remaining, level)) for host in first
            )
        level = step
        found.append(told(able[0], step))
        taken.append(able[0])


def _even(pools: _Pools, left: Sequence[Job], taken: Sequence[str]) -> dict[str, _Count]:
    counts = _per_host(job.hosts for job in left)
    sizes = [len(job.hosts) for job in left]

    def chances(host: str | None) -> list[float]:
        pool = max(pools.of(host) - len(taken), 1.0)
        return [min(1.0, size / pool) for size in sizes]

    common = chances(None)
    expected = sum(common)
    # A host is as likely in a job as any other: the probability depends on the count alone.
    tail = functools.cache(lambda count: exact.log_tail(common, count) if count > expected else 0.0)
    made = {host: _Count(count, len(left), expected, tail(count)) for host, count in counts.items()}
    for host, one in made.items():
        if one.jobs >= MIN_JOBS and one.log_p + math.log(len(counts)) < _NEAR:
            own = chances(host)
            made[host] = _Count(one.jobs, one.used_in, sum(own), exact.log_tail(own, one.jobs))
    return made


def _standing_out(counts: Mapping[str, _Count], tests: int) -> int:
    """How many hosts stand out when none is set aside."""
    return sum(
        one.jobs >= MIN_JOBS and exact.corrected(one.log_p, tests) <= math.log(exact.LEVEL) for one in counts.values()
    )


def _fisher(fine: Sequence[Job], left: Sequence[Job], taken: Sequence[str]) -> dict[str, _Count]:
    bad = _per_host(job.hosts for job in left)
    good = _per_host(job.others for job in fine if not job.others & set(taken))
    marked = sum(bad.values())
    total = marked + sum(good.values())
    made = {}
    for host, count in bad.items():
        draws = count + good.get(host, 0)
        expected = draws * marked / total
        log_p = exact.log_hypergeometric_tail(marked, total, draws, count) if count > expected else 0.0
        made[host] = _Count(count, draws, expected, log_p)
    return made


def _per_host(hosts: Iterable[Iterable[str]]) -> dict[str, int]:
    made: dict[str, int] = {}
    for one in hosts:
        for host in one:
            made[host] = made.get(host, 0) + 1
    return made


def _hopeless_by_use(hit: Sequence[Job], fine: Sequence[Job], tests: int) -> bool:
    marked = sum(len(job.hosts) for job in hit)
    total = marked + sum(len(job.others) for job in fine)
    best = exact.log_hypergeometric_tail(marked, total, len(hit), len(hit))
    return len(hit) < MIN_JOBS or exact.corrected(best, tests) > math.log(exact.LEVEL)


def _too_few(jobs: int, needed: int | None) -> str:
    more = "" if needed is None else f"; with {needed:,} jobs like these it would"
    who = f"{number_of(jobs, 'interrupted job')} with known hosts"
    return f"{who}: too few, even a host in all of them would not stand out{more}."
