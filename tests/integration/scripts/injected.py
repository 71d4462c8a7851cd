"""Real jobs with roundk failing in each of its functions in turn: `injected.py FOLDER`; `injected.py FOLDER --exits N`.

One process loads torch and forks a pair of ranks for every case, which takes a fraction of a second instead of several.
Each of `short_jobs` runs without roundk, then with it, which shows the functions it calls, then once for every function
that no job before it called: in rank 1 it raises, from one of its calls on. FOLDER/results.json has what came of it.
With --exits, the jobs that leave works unfinished run N times each with and without roundk, in turn.
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import itertools
import json
import os
import pathlib
import signal
import sys
import threading
import time

import injector

LIMIT_S = 100
"""After this a job is taken to hang: it takes two seconds at most on an idle machine."""
LANES, SLEEPY_LANES = 4, 8
"""Cases to run at a time; those of the launcher mostly sleep."""
BEHIND = tuple(
    f"roundk.tracer.{name}"
    for name in (
        "files",
        "side_lines",
        "make_template",
        "reader",
        "read_calls",
        "read_ends",
        "read_links",
        "read_settings",
        "read_stacks",
        "read_tables",
        "schema",
    )
)
"""The reading half of the tracer, which no job loads."""


class Case:
    """A job that two forked ranks run."""

    def __init__(self, name: str, folder: pathlib.Path, *, recorded: bool, target: str | None = None, moment: int = 1):
        from roundk.hooks import config

        folder.mkdir(parents=True)
        self.folder, self.target, self.moment = folder, target, moment
        settings = config.Config(str(folder / "run"), 0, 0.4 if name == "stall" else 30.0).variables()
        (folder / "config.json").write_text(json.dumps(settings))
        self._began = time.monotonic()
        self._left = injector.arm(target, moment)
        self._codes: dict[int, int] = {}
        self._pids = []
        for rank in range(2):
            pid = os.fork()
            if not pid:
                be_a_rank(name, rank, folder, settings if recorded else {})
            self._pids.append(pid)
        injector.arm(None, 1)

    @property
    def fired(self) -> bool:
        return self._left[0] <= 0

    def over(self) -> bool:
        """Whether both ranks have ended, by their own or because they took too long."""
        for pid in self._pids:
            if pid not in self._codes:
                if time.monotonic() - self._began > LIMIT_S:
                    os.kill(pid, signal.SIGUSR2)  # its stacks
                    time.sleep(0.2)
                    os.kill(pid, signal.SIGKILL)
                found, status = os.waitpid(pid, os.WNOHANG)
                if found:
                    self._codes[pid] = os.waitstatus_to_exitcode(status)
        return len(self._codes) == len(self._pids)

    def result(self) -> dict:
        """What came of it, once it is over."""
        while not self.over():
            time.sleep(0.01)
        streams = {name: [(self.folder / f"{name}{rank}").read_text() for rank in range(2)] for name in ("out", "err")}
        codes = [self._codes[pid] for pid in self._pids]
        return {"folder": str(self.folder), "fired": self.fired, "codes": codes, **streams}


def be_a_rank(name: str, rank: int, folder: pathlib.Path, settings: dict[str, str]) -> None:
    """What a forked rank does. Where the job fails, it leaves this script by its end, as any Python process does."""
    import short_jobs

    from roundk.hooks import autoload

    for stream, number in (("out", 1), ("err", 2)):
        os.dup2(os.open(folder / f"{stream}{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    os.chdir(folder)
    os.environ.update({"RANK": str(rank), "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo"})
    if not rank:
        injector.disarm()
    job = short_jobs.JOBS[name]
    if settings and job is not short_jobs.late_start:
        os.environ.update(settings)
        if job not in short_jobs.LAUNCHING:
            autoload.autoload()
    job(rank)
    if job in short_jobs.EXITING:
        sys.exit(0)
    leave(rank)


def leave(rank: int) -> None:
    """Exit, but for the dismantling of interpreter and libraries, which takes as long as all the rest."""
    if rank:  # nothing was done to the other
        threading._shutdown()
        atexit._run_exitfuncs()
    os._exit(0)


def play_all(name: str, folder: pathlib.Path, targets: dict[str, int], lanes: int) -> dict[str, dict]:
    """One case for each of the functions, several at a time; where the chosen call does not come, the first."""
    waiting = sorted(targets.items())
    running: list[Case] = []
    results = {}
    number = itertools.count()
    while waiting or running:
        while waiting and len(running) < lanes:
            target, moment = waiting.pop(0)
            running.append(Case(name, folder / str(next(number)), recorded=True, target=target, moment=moment))
        for case in [case for case in running if case.over()]:
            running.remove(case)
            if case.fired or case.moment == 1:
                results[case.target] = case.result()
            else:
                waiting.append((case.target, 1))
        time.sleep(0.005)
    return results


def inject(folder: pathlib.Path) -> dict:
    import short_jobs

    from roundk.hooks import recorder

    recorder._LATER_ROWS = recorder._FIRST_ROWS  # segments that `rotate` can fill
    jobs: dict[str, dict] = {}
    reached: set[str] = set()
    entered: set[str] = set()
    failed: set[str] = set()
    for job in (*short_jobs.CALLING, *short_jobs.ENDING, *short_jobs.LAUNCHING):
        name = job.__name__
        lanes = SLEEPY_LANES if job in short_jobs.LAUNCHING else LANES
        plain = Case(name, folder / name / "plain", recorded=False).result()
        injector.reset()
        whole = Case(name, folder / name / "whole", recorded=True).result()
        counted, inner = injector.counted(), injector.called_by_ours()
        targets = {target: max(1, min(counted[target] // 2, 10)) for target in inner - failed}
        # What a job calls only at times is left to a later one, where it did not come up this time.
        cases = {t: case for t, case in play_all(name, folder / name, targets, lanes).items() if case["fired"]}
        jobs[name] = {"plain": plain, "whole": whole, "cases": cases}
        failed |= set(cases)
        reached |= inner
        entered |= set(counted) - inner
    return {
        "jobs": jobs,
        "functions": injector.names,
        "never failed": sorted(reached - failed),
        "only from outside": sorted(entered - reached),
        "not called": sorted(set(injector.names) - reached - entered),
    }


def exits(folder: pathlib.Path, times: int) -> dict[str, list[int]]:
    """The exit codes of all ranks."""
    import short_jobs

    found: dict[str, list[int]] = {"plain": [], "recorded": []}
    for number in range(times):
        cases = [
            (form, Case(job.__name__, folder / f"{job.__name__}-{form}{number}", recorded=form == "recorded"))
            for job in short_jobs.EXITING
            for form in found
        ]
        for form, case in cases:
            found[form] += case.result()["codes"]
    return found


def main() -> None:
    folder = pathlib.Path(sys.argv[1]).resolve()
    injector.load(BEHIND)
    import torch  # with roundk's functions in place

    torch.set_num_threads(1)
    import short_jobs  # noqa: F401 - once, for all ranks

    gc.collect()
    gc.freeze()  # or every rank spends a second at its end on looking through torch's modules
    results = exits(folder, int(sys.argv[3])) if sys.argv[2:3] == ["--exits"] else inject(folder)
    (folder / "results.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
