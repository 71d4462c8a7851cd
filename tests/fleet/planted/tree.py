"""A tree of failed runs as a cluster's file system holds them, with the plan of what was planted in each."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace

from planted import damage
from planted.materials import LOG_ONLY, MAKERS, RESTARTED, WEIGHTS, of_attempts, of_incident, of_torchrun
from planted.plan import NOTHING, Plan, Planned

S = 1_000_000_000
FIRST_NS = 1_790_553_600 * S
"""Monday, 28 September 2026, 00:00 UTC."""
WEEKS = 8
WEEK_S = 7 * 24 * 3600
DAMAGED = 0.1
RESTARTED_SHARE = 0.1
"""Share of the runs that are attempts of a job that fails the same way again."""
ATTEMPTS = 3
ARCHIVED = 0.15
TORCHRUN_SHARE = 0.03
TORCHRUN_ATTEMPTS = 2
LOGS = "slurm_logs"
TEAMS = ("vision", "language", "speech")


class Tree:
    """Writes runs below a folder."""

    def __init__(self, folder, seed):
        self.folder, self.rng = folder, random.Random(seed)
        self.plan = Plan(seed)
        self.kinds = {source: _shuffled(self.rng, kinds()) for source, (_, kinds) in MAKERS.items()}
        self.taken = dict.fromkeys(MAKERS, 0)
        self.number = 0

    def _begin_ns(self):
        return FIRST_NS + self.rng.randrange(WEEKS * WEEK_S) * S

    def add(self):
        """One run of a random source; its kinds take turns."""
        rng = self.rng
        source = rng.choices(tuple(WEIGHTS), tuple(WEIGHTS.values()))[0]
        kinds = self.kinds[source]
        kind = kinds[self.taken[source] % len(kinds)]
        self.taken[source] += 1
        self.number += 1
        is_archive = source != "sample" and rng.random() < ARCHIVED
        if is_archive:
            run, job, layout = f"archives/run-{self.number:04d}", None, "archive"
        elif source in ("incident", "generated") and rng.random() < 0.4:
            job = str(400_000 + 7 * self.number)
            run, layout = f"slurm/{job}", "slurm"
        else:
            run, job, layout = f"{rng.choice(TEAMS)}/{source}-{self.number:04d}", None, "folder"
        if source == "incident" and kind in LOG_ONLY and rng.random() < 0.5:
            self.add_log(kind)
            return
        folder = self.folder / run
        folder.mkdir(parents=True)
        truth = MAKERS[source][0](rng, kind, self._begin_ns(), folder)
        if layout == "slurm" and (folder / "job.log").exists():
            (folder / "job.log").rename(folder / f"slurm-{job}.out")
        self.plan.runs.append(Planned(run, source, truth, layout, job))

    def add_log(self, kind):
        """The log of a job among those of others, as Slurm writes them."""
        self.number += 1
        job = str(400_000 + 7 * self.number)
        made = self.folder / LOGS / job
        truth = of_incident(self.rng, kind, self._begin_ns(), made, by_host=False)
        (made / "job.log").rename(made.with_name(f"slurm-{job}.out"))
        made.rmdir()
        self.plan.runs.append(Planned(f"{LOGS}/{job}", "incident", truth, "log", job))

    def add_torchrun(self, count):
        """The logs of so many attempts of a job that torchrun restarted."""
        self.number += 1
        job = f"exp{self.number}"
        world = self.rng.choice((2, 4, 8))
        rank = self.rng.randrange(world)
        letters = "".join(self.rng.choices("abcdefghijklmnopqrstuvwxyz0123456789_", k=8))
        for number in range(count):
            run = f"torchelastic/{job}_{letters}/attempt_{number}"
            truth = of_torchrun(self.rng, self.folder / run, world, rank)
            self.plan.runs.append(Planned(run, "torchrun", truth, "torchrun", job, number))

    def add_attempts(self, count):
        """So many attempts of one Slurm job."""
        rng = self.rng
        self.number += 1
        job = str(400_000 + 7 * self.number)
        kind = RESTARTED[rng.randrange(len(RESTARTED))]
        runs = [f"slurm/{job}/attempt_{number}" for number in range(count)]
        folders = [self.folder / run for run in runs]
        for folder in folders:
            folder.mkdir(parents=True)
        for number, truth in enumerate(of_attempts(rng, kind, self._begin_ns(), folders)):
            self.plan.runs.append(Planned(runs[number], "incident", truth, "attempts", job, number))

    def damage(self, share):
        """Damage some of the runs; those that have nothing to damage are passed over."""
        wanted = round(share * len(self.plan.runs))
        for planned in _shuffled(self.rng, self.plan.runs):
            if not wanted:
                break
            if planned.layout == "log":
                continue
            if planned.layout == "archive" and self.rng.random() < 0.5:
                planned.damage = self.rng.choice(tuple(damage.ARCHIVE_DAMAGES))
                planned.readable = damage.ARCHIVE_DAMAGES[planned.damage]
            else:
                planned.damage, planned.readable, lost = damage.do(self.rng, self.folder / planned.run)
                planned.truth = replace(planned.truth, lost=(*planned.truth.lost, *lost))
            planned.is_told = planned.damage is not None and planned.readable != damage.WHOLE
            wanted -= planned.damage is not None

    def pack(self):
        """Archives are made last, of damaged files too."""
        for planned in self.plan.runs:
            if planned.layout != "archive":
                continue
            folder = self.folder / planned.run
            path = folder.with_name(folder.name + ".tar.gz")
            damage.pack(folder, path)
            shutil.rmtree(folder)
            planned.run += ".tar.gz"
            if planned.damage in damage.ARCHIVE_DAMAGES:
                damage.cut_archive(self.rng, path, planned.damage)


def _shuffled(rng, items):
    made = list(items)
    rng.shuffle(made)
    return made


def make(folder, count, seed, *, damaged=DAMAGED):
    """Write `runs/`, `plan.json` and `plan.csv` into an empty folder; give the plan."""
    runs = folder / "runs"
    runs.mkdir(parents=True)
    tree = Tree(runs, seed)
    while sum(planned.layout == "attempts" for planned in tree.plan.runs) < RESTARTED_SHARE * count:
        tree.add_attempts(min(ATTEMPTS, count))
    for kind in LOG_ONLY[:2]:  # one log alone in a folder is called as the folder is
        tree.add_log(kind)
    for _ in range(round(TORCHRUN_SHARE * count / TORCHRUN_ATTEMPTS)):
        tree.add_torchrun(TORCHRUN_ATTEMPTS)
    while len(tree.plan.runs) < count:
        tree.add()
    tree.damage(damaged)
    tree.pack()
    tree.plan.write(folder)
    return tree.plan


def unreadable(plan):
    """Runs of which nothing can be read."""
    return [planned for planned in plan.runs if planned.readable == NOTHING]
