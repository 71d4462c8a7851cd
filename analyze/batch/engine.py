"""A batch: what is finished is taken from its folder, the rest is judged, and the table is written."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
import shutil
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import Any, Protocol

import polars as pl

from roundk.analyze.batch.judge_run import Result
from roundk.analyze.batch.process import POLL_S, Child, Limits
from roundk.analyze.batch.progress import Progress
from roundk.analyze.batch.run import Run
from roundk.analyze.batch.store import Store

Judged = Generator[tuple[Run, Result], None, None]
"""Runs and what came of them, as they finish."""


class Engine(Protocol):
    """Where runs are judged. Closed before its end, it ends what it started."""

    def __call__(self, runs: Sequence[Run], *, now_ns: int, started: Callable[[Run], None]) -> Judged:
        """Judge runs.

        Args:
            runs: The runs.
            now_ns: The time of the batch, Unix ns.
            started: Is told of each run as it begins.
        """
        ...


def batch(runs: Sequence[Run], store: Store, engine: Engine, progress: Progress) -> pl.DataFrame:
    """Judge the runs that are not finished, and write the table of all.

    Args:
        runs: The runs of the batch.
        store: Its folder.
        engine: Where they are judged.
        progress: Is told how far it is.

    Raises:
        RoundkError: The folder cannot be written, or the engine cannot work.
    """
    # One time for all of a batch: whether a job still runs must not depend on its place in the row.
    now_ns = time.time_ns()
    rows: list[dict[str, Any]] = []
    left: list[Run] = []
    for run in runs:
        kept = store.kept(run)
        if kept is None:
            left.append(run)
        else:
            rows += kept
            progress.kept(kept)
    with progress, closing(engine(left, now_ns=now_ns, started=progress.started)) as judged:
        for run, result in judged:
            store.keep(run, result)
            rows += result.rows
            progress.judged(run, result.rows)
    return store.finish(rows)


class Local:
    """Processes of this machine."""

    def __init__(self, jobs: int, limits: Limits, folder: pathlib.Path) -> None:
        """Choose how many.

        Args:
            jobs: Runs at a time.
            limits: What each may take.
            folder: Of the batch: scratch folders that an earlier one in it left behind are removed.
        """
        self._jobs = jobs
        self._limits = limits
        digest = hashlib.sha256(str(folder.absolute()).encode(errors="surrogateescape")).hexdigest()[:12]
        self._prefix = f"roundk-batch-{digest}-"

    def __call__(self, runs: Sequence[Run], *, now_ns: int, started: Callable[[Run], None]) -> Judged:
        """See `Engine`."""
        _clean(self._prefix)
        waiting = list(reversed(runs))
        at_work: list[Child] = []
        try:
            while waiting or at_work:
                while waiting and len(at_work) < self._jobs:
                    run = waiting.pop()
                    started(run)
                    at_work.append(Child(run, now_ns=now_ns, limits=self._limits, prefix=self._prefix))
                done = [(child, result) for child in at_work if (result := child.poll()) is not None]
                for child, result in done:
                    at_work.remove(child)
                    child.close()
                    yield child.run, result
                if not done:
                    time.sleep(POLL_S)
        finally:
            for child in at_work:
                child.close()


def cpus() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0))


def _clean(prefix: str) -> None:
    """Remove the scratch folders of a batch that was killed: its folder is locked, so nobody uses them."""
    with contextlib.suppress(OSError):
        for folder in pathlib.Path(tempfile.gettempdir()).glob(f"{prefix}*"):
            if folder.stat().st_uid == os.getuid():
                shutil.rmtree(folder, ignore_errors=True)


def threads_of(jobs: int) -> int:
    """Threads for each pool of a run's process, so that all together are about as many as the processors."""
    return max(1, cpus() // jobs)
