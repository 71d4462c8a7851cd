"""From a seed to a job: its shape, a fault, its run, and the moment at which what it leaves behind is written."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from generated import faults
from generated.program import STYLES, add_own_calls
from generated.simulator import Run, Simulator

WORLDS = (2, 2, 4, 4, 4, 8, 8, 8, 8, 16, 16, 24, 32, 64)
ATTEMPTS = 60
"""How often a fault that did not come to bear is planted anew, in other jobs."""
DUMPING_S = 0.006
"""Within what time the ranks of a job that goes on write their dumps."""
ONLY_IN = {"p2p_unpaired": ("megatron",), "order_deadlock": ("hsdp", "mesh2d", "megatron")}
OWN_CALLS = 0.15
"""Share of the jobs whose ranks have groups of their own."""


@dataclass
class Case:
    """A job that has run, its truth, and how its clocks go."""

    seed: int
    rng: random.Random
    style: str
    program: object
    layout: object
    truth: faults.Truth
    run: Run
    is_blocking: bool
    cut: float
    """Time up to which things are recorded, in seconds from the start."""
    is_cut_short: bool
    """The job was going on when it was recorded."""
    hosts: dict[int, str]
    offsets: dict[str, float]
    lost: frozenset[int] = frozenset()
    """Ranks that left data behind which was lost; filled in by what writes it."""
    has_sites: bool = True
    """Call sites are recorded."""
    is_left_behind: bool = True
    """What is analysed does not say whether the job still runs."""

    @property
    def world(self):
        return self.layout.world

    def behind(self):
        """Ranks that have entered less of a group than another member, when the job is recorded."""
        found = set()
        for group in self.layout.groups:
            first = {rank: self._entered(rank, group.key, 0.0) for rank in group.ranks}
            last = max(self._entered(rank, group.key, DUMPING_S) for rank in group.ranks)
            found |= {rank for rank, count in first.items() if count < last}
        return found

    def _entered(self, rank, key, later):
        until = self.cut + later
        return sum(1 for node in self.run.calls[rank] if node.call.group == key and node.enter <= until)


def make(seed):
    """The job of a seed."""
    rng = random.Random(seed)
    kind = rng.choice(tuple(faults.PLANTERS))
    for _ in range(ATTEMPTS):
        case = _attempt(rng, seed, kind)
        if case is not None:
            return case
    msg = f"seed {seed}: no job in which {kind} comes to bear in {ATTEMPTS} attempts"
    raise RuntimeError(msg)


def _attempt(rng, seed, kind):
    style = rng.choice(ONLY_IN.get(kind, tuple(STYLES)))
    world = rng.choice(WORLDS)
    program = STYLES[style](rng, world)
    layout = program.layout
    if rng.random() < OWN_CALLS:
        add_own_calls(program)
    is_blocking = rng.random() < 0.3
    truth = faults.PLANTERS[kind](faults.Job(rng, program, layout, is_blocking))
    if truth is None:
        return None
    truth.kind = kind
    run = Simulator(
        rng, world, program.items, layout.groups, is_blocking=is_blocking, dead_rounds=truth.dead_rounds
    ).go()
    if run.hangs() != truth.needs.startswith("hang"):
        return None
    if run.halted and truth.guilty:
        # A rank that waited for another before it came to its own fault is a victim.
        truth = replace(truth, guilty=truth.guilty & frozenset(run.halted) if kind == "two_faults" else truth.guilty)
    if truth.guilty and kind in ("idle", "dead", "stopped", "exited_early") and not run.halted:
        return None
    is_cut_short = kind == "in_progress"
    last = run.last_time()
    cut = rng.uniform(0.4, 0.95) * last if is_cut_short else last + rng.choice((605.0, 620.0, 700.0))
    hosts, offsets = _hosts(rng, world)
    return Case(seed, rng, style, program, layout, truth, run, is_blocking, cut, is_cut_short, hosts, offsets)


def _hosts(rng, world):
    per_host = rng.choice((1, 2, 4, 8, 8))
    hosts = {rank: f"node-{rank // per_host}" for rank in range(world)}
    spread = rng.choice((0.0, 0.001, 0.01, 0.05)) if rng.random() < 0.93 else rng.choice((2.0, 180.0))
    offsets = {host: rng.uniform(-spread, spread) for host in sorted(set(hosts.values()))}
    return hosts, offsets
