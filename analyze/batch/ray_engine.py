"""Runs judged on a Ray cluster: each is one task, which starts the same process with the same limits on its worker.

Ray is imported only when the engine is called: it is an extra (`pip install 'roundk[ray]'`).
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import os
import pathlib
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Final

from roundk.analyze.batch.engine import Judged
from roundk.analyze.batch.judge_run import Result, failed, version
from roundk.analyze.batch.process import Limits
from roundk.analyze.batch.run import Run
from roundk.analyze.phrases import number_of
from roundk.tracer.errors import RoundkError

RETRIES: Final = 3
"""How often the run of a lost worker is given to another one."""

_AHEAD: Final = 200
"""Tasks that wait at the cluster, at least: enough for it to grow, and not all that a big batch has to tell."""
_PER_CPU: Final = 2
_WAIT_S: Final = 0.5
"""How long Ctrl-C may go unnoticed."""
_REACH_S: Final = 10.0
_NO_RAY: Final = "--engine ray needs Ray: pip install 'roundk[ray]' ({why})"


class OnRay:
    """A cluster of Ray's."""

    def __init__(self, address: str | None, limits: Limits) -> None:
        """Choose one.

        Args:
            address: Of the cluster, as `ray.init` takes it; None: RAY_ADDRESS, else the one started on this machine.
            limits: What each run may take; one thread per pool, as its task has one processor.
        """
        self._address = address
        self._limits = Limits(limits.time_s, limits.memory_mb)

    def __call__(self, runs: Sequence[Run], *, now_ns: int, started: Callable[[Run], None]) -> Judged:
        """See `Engine`; when a task begins, the cluster does not say.

        Raises:
            RoundkError: There is no Ray, no cluster, or another roundk on it.
        """
        if not runs:
            return
        # Ray prints what its nodes have to say to standard output (2.60), where the report shall be alone.
        with contextlib.redirect_stdout(sys.stderr):
            ray = _connected(self._address)
            try:
                yield from self._judged(ray, runs, now_ns)
            finally:
                ray.shutdown()  # ends the tasks of this batch, and no others

    def _judged(self, ray: Any, runs: Sequence[Run], now_ns: int) -> Judged:
        # Ray's own retries do not tell how often, and those for want of memory have no end.
        task = ray.remote(num_cpus=1, max_retries=0, scheduling_strategy="SPREAD")(_task())
        given: dict[Any, Run] = {}
        tries: dict[str, int] = {}
        waiting = list(reversed(runs))
        most = max(_AHEAD, _PER_CPU * round(ray.cluster_resources().get("CPU", 0)))
        while waiting or given:
            while waiting and len(given) < most:
                run = waiting.pop()
                given[task.remote(asdict(run), now_ns, asdict(self._limits), str(pathlib.Path.cwd()), version())] = run
            ready, _ = ray.wait(list(given), timeout=_WAIT_S)
            for one in ready:
                run = given.pop(one)
                result, why = _got(ray, one)
                tries[run.name] = tries.get(run.name, 0) + 1
                if result is not None:
                    yield run, result
                elif tries[run.name] <= RETRIES:
                    waiting.append(run)
                else:
                    lost = f"its worker was lost in each of {number_of(1 + RETRIES, 'try', 'tries')}: {why}"
                    yield run, Result((failed(run, lost),), is_final=False)


def needed() -> None:
    """Look for Ray, without the seconds that loading it takes.

    Raises:
        RoundkError: There is none.
    """
    try:
        if importlib.util.find_spec("ray") is not None:
            return
        why = "No module named 'ray'"
    except (ImportError, ValueError) as error:  # ValueError: something that was not imported is called so
        why = str(error)
    raise RoundkError(_NO_RAY.format(why=why))


def _connected(address: str | None) -> Any:
    """Ray, connected to a cluster."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else it warns of tasks without GPUs
    try:
        ray = importlib.import_module("ray")
    except ImportError as error:
        raise RoundkError(_NO_RAY.format(why=error)) from None
    before = signal.getsignal(signal.SIGTERM)
    where = address or os.environ.get("RAY_ADDRESS") or "this machine"
    try:
        _reach(where)
        ray.init(address=address or "auto", log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, OSError, TimeoutError) as error:
        why = " ".join(str(error).split())
        raise RoundkError(
            f"no Ray cluster can be used at {where}: {why}; name one by --ray-address, or start one by"
            " `ray start --head`; --engine local needs none"
        ) from None
    finally:
        _restore(before)
    return ray


def _restore(handler: Any) -> None:
    """Have SIGTERM do what it did: Ray puts its own handler there (2.60)."""
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


def _reach(where: str) -> None:
    """Raise OSError if nothing answers at an address: Ray itself asks for two minutes."""
    host, _, port = where.rpartition("://")[2].rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), _REACH_S).close()


def _task() -> Callable[..., dict[str, Any]]:
    """The task: it travels as code, so that a worker without roundk, or with another one, can say so."""

    def judge(run: dict[str, Any], now_ns: int, limits: dict[str, Any], cwd: str, wanted: str) -> dict[str, Any]:
        import platform
        import sys

        where = f"{platform.node()} ({sys.executable})"
        try:
            from roundk.analyze.batch import child, judge_run, process
        except ImportError as error:
            return {"unfit": f"roundk cannot be imported on worker {where}: {error}; install roundk {wanted} there"}
        if judge_run.version() != wanted:
            return {
                "unfit": f"roundk {judge_run.version()} is on worker {where}, and {wanted} here; install one on both"
            }
        judged = process.judged(child.run_of(run), now_ns=now_ns, limits=process.Limits(**limits), cwd=cwd)
        return {"rows": judged.rows, "is_final": judged.is_final}

    return judge


def _got(ray: Any, reference: Any) -> tuple[Result | None, str]:
    """What came of a task: a result, or why there is none."""
    try:
        told = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        return None, str(error.cause)  # the worker's machine: a full disk, no processes left
    except (
        ray.exceptions.WorkerCrashedError,
        ray.exceptions.NodeDiedError,
        ray.exceptions.ObjectLostError,
        ray.exceptions.OutOfMemoryError,
        ray.exceptions.OutOfDiskError,
        ray.exceptions.TaskUnschedulableError,
    ) as error:
        return None, type(error).__name__
    if "unfit" in told:
        raise RoundkError(told["unfit"])
    return Result(tuple(told["rows"]), is_final=told["is_final"]), ""
