"""Runs one scenario once, and keeps what was recorded together with the truth."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import random
import time
from dataclasses import dataclass

import lab
import pyarrow.compute as pc
import scenarios
import stage as stages
from board import State
from job import Job

from roundk.tracer import reader

_PERIOD_NS = 2_000_000_000
"""Counters are read every second; twice that on a loaded machine."""


@dataclass(frozen=True)
class Recorded:
    """A run of a scenario that is over.

    Attributes:
        run: The run directory, as it was before the lab killed anything.
        now_ns: When it was as it is.
        wall_s: What the run took.
    """

    scenario: str
    form: str
    seed: str
    truth: stages.Truth
    parameters: dict
    run: pathlib.Path
    now_ns: int
    wall_s: float
    hung: bool
    events: tuple
    rounds: tuple


def per_host(form):
    """Ranks on each host, of a form such as `4x2`."""
    hosts, _, ranks = form.partition("x")
    if int(hosts) != stages.HOSTS:
        raise ValueError(f"{form}: the lab has {stages.HOSTS} hosts")
    return int(ranks)


def record(zygote, scenario, folder, *, form="4x1", seed="0"):
    """Run a scenario.

    Args:
        zygote: Who starts its ranks.
        scenario: Its name.
        folder: A new folder for all that it leaves.
        form: Hosts x ranks on each.
        seed: Of its parameters.

    Raises:
        LabError: the lab failed, or the fault had no effect at all.
    """
    began = time.monotonic()
    chance = random.Random(f"{seed} {scenario} {form}")
    plan = scenarios.ALL[scenario](chance, per_host(form))
    folder.mkdir(parents=True)
    with (
        lab.Network(stages.HOSTS, scratch=folder.parent, **plan.network) as network,
        Job(zygote, folder, per_host=per_host(form), seed=seed, **plan.job) as job,
    ):
        stage = stages.Stage(network, job, chance)
        plan.act(stage)
        hung = not job.ended
        if not hung and stage.is_to_fail and all(job.board.state(rank) == State.FINISHED for rank in range(job.ranks)):
            raise lab.LabError(f"{scenario}: the fault had no effect, the job ended in order")
        run = job.run
        if hung:
            run = folder / "hanging"
            now_ns = job.snapshot(run)
        else:
            now_ns = time.time_ns()
        rounds = tuple(job.board.rounds)
    _check_samples(run, stage.events, ended_early=stage.is_to_fail and not hung)
    recorded = Recorded(
        scenario,
        form,
        seed,
        plan.truth,
        plan.parameters,
        run,
        now_ns,
        time.monotonic() - began,
        hung,
        tuple(stage.events),
        rounds,
    )
    (folder / "truth.json").write_text(json.dumps(dataclasses.asdict(recorded), indent=1, default=str) + "\n")
    return recorded


def _check_samples(run, events, *, ended_early):
    """Raise where the links of a host were not sampled before the fault and after it: nothing would be seen then.

    Args:
        run: The run directory.
        events: The faults.
        ended_early: The fault itself ended the job: the last sample is up to one period old then.

    Raises:
        LabError: they were not.
    """
    counters = reader.read_run(run).counters
    since = min((before for before, _, _ in events), default=None)
    for host in map(lab.host_name, range(stages.HOSTS)):
        times = counters.filter(pc.field("host") == host)["time_ns"].to_pylist()
        if not times or (since is not None and min(times) >= since):
            raise lab.LabError(f"{run}: no sample of the links of {host} before the fault")
        if since is not None and max(times) <= since - ended_early * _PERIOD_NS:
            raise lab.LabError(f"{run}: no sample of the links of {host} after the fault")
