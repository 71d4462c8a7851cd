"""A parent tells how its workers ended: nobody else learns their exit codes.

Under torchrun that is the agent, else a script that starts its ranks by `multiprocessing`, as
`torch.multiprocessing.spawn` does.
Source: torch/distributed/elastic/multiprocessing/api.py, torch 2.6 to 2.14 (`SubprocessContext._poll`, `_close`);
Lib/multiprocessing/popen_fork.py and popen_forkserver.py, CPython 3.11 to 3.14 (`Popen.poll`).
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

from roundk.hooks import failsafe, importhook
from roundk.tracer import rundir

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from roundk.hooks.config import Config

_AGENT = "torch.distributed.elastic.multiprocessing.api"
_POPENS = ("multiprocessing.popen_fork", "multiprocessing.popen_forkserver")


def watch(config: Config) -> None:
    """Note the ends of the workers of this process, should it become an agent or start some by `multiprocessing`."""
    notes = _Notes(config)
    importhook.when_imported(_AGENT, failsafe.guard(lambda: _hook_agent(notes)))
    for name in _POPENS:
        importhook.when_imported(name, failsafe.guard(lambda name=name: _hook_popen(name, notes)))


class _Notes:
    """The parent's file, made with its first line. Forgotten in a forked child, which may be a parent itself."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._file: rundir.LineFile | None = None
        self._noted: set[int] = set()
        os.register_at_fork(after_in_child=failsafe.guard(self._forget))

    def _forget(self) -> None:
        self._file, self._noted = None, set()

    def look(self, context: Any) -> None:
        """Write a line for every worker of an agent's context that has newly ended."""
        for local_rank, handler in context.subprocess_handlers.items():
            code, pid = handler.proc.returncode, handler.proc.pid
            if code is not None and pid not in self._noted:
                self._noted.add(pid)
                environment = context.envs.get(local_rank, {})
                self.append(pid, code, environment, local_rank=local_rank, rank=_number(environment.get("RANK")))

    def append(self, pid: int, code: int, environment: Mapping[str, str], **more: Any) -> None:
        """Write a line for a process that has ended."""
        if self._file is None:
            folder = rundir.prepare(self._config.run)
            self._file = rundir.LineFile(os.path.join(folder, f"agent-{os.getpid()}.jsonl"))
        self._file.append(
            {
                "kind": "exit",
                "time_ns": time.time_ns(),
                "pid": pid,
                "code": code,
                "world_size": _number(environment.get("WORLD_SIZE")) or None,
                **more,
                **rundir.generation(environment),
            }
        )


def _number(text: str | None) -> int | None:
    return int(text) if text else None


def _hook_agent(notes: _Notes) -> None:
    context = sys.modules[_AGENT].SubprocessContext
    look = failsafe.guard(notes.look)
    for name in ("_poll", "_close"):
        setattr(context, name, _then(getattr(context, name), look))


def _then(original: Any, look: Callable[[Any], None]) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, *args, **kwargs)
        finally:
            look(self)

    return method


def _hook_popen(module: str, notes: _Notes) -> None:
    """Note children that did not end with 0: a rank that did says so itself, and data loaders' workers are many."""
    popen = sys.modules[module].Popen
    if "poll" not in vars(popen):
        return
    original = popen.poll

    def ended(pid: int, code: int) -> None:
        notes.append(pid, code, {})

    tell = failsafe.guard(ended)

    def poll(self: Any, *args: Any, **kwargs: Any) -> Any:
        known = self.returncode
        code = original(self, *args, **kwargs)
        if code and known is None:
            tell(self.pid, code)
        return code

    popen.poll = poll
