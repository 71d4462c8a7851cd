"""torchrun's agent tells how its workers ended: it is their parent, and nobody else learns their exit codes.

Source: torch/distributed/elastic/multiprocessing/api.py, torch 2.6 to 2.14 (`SubprocessContext._poll`, `_close`).
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from roundk.hooks import failsafe, importhook
from roundk.tracer import rundir

if TYPE_CHECKING:
    from roundk.hooks.config import Config

_MODULE = "torch.distributed.elastic.multiprocessing.api"


def watch(config: Config) -> None:
    """Note the ends of the workers of an agent in this process, should it become one."""
    importhook.when_imported(_MODULE, failsafe.guard(lambda: _patch(config)))


class _Notes:
    """The agent's file, made with its first line."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._file: rundir.LineFile | None = None
        self._noted: set[int] = set()

    def look(self, context: Any) -> None:
        """Write a line for every worker of the context that has newly ended."""
        for local_rank, handler in context.subprocess_handlers.items():
            code, pid = handler.proc.returncode, handler.proc.pid
            if code is not None and pid not in self._noted:
                self._noted.add(pid)
                self._append(pid, code, local_rank, context.envs.get(local_rank, {}))

    def _append(self, pid: int, code: int, local_rank: int, environment: dict[str, str]) -> None:
        if self._file is None:
            folder = rundir.prepare(self._config.run)
            self._file = rundir.LineFile(os.path.join(folder, f"agent-{os.getpid()}.jsonl"))
        rank = environment.get("RANK")
        self._file.append(
            {
                "kind": "exit",
                "time_ns": time.time_ns(),
                "pid": pid,
                "code": code,
                "rank": int(rank) if rank is not None else None,
                "local_rank": local_rank,
                "world_size": int(environment.get("WORLD_SIZE") or 0) or None,
                **rundir.generation(environment),
            }
        )


def _patch(config: Config) -> None:
    import sys

    context = sys.modules[_MODULE].SubprocessContext
    look = failsafe.guard(_Notes(config).look)
    for name in ("_poll", "_close"):
        setattr(context, name, _then(getattr(context, name), look))


def _then(original: Any, look: Any) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, *args, **kwargs)
        finally:
            look(self)

    return method
