"""Puts the recorder into a process: by torch's own entry point, by our start-up code, or by a call in user code.

`autoload` is the `torch.backends` entry point of the installed package; torch calls it at the end of `import torch`,
and it does nothing unless `roundk run` configured the environment.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from roundk.hooks import config, failsafe

if TYPE_CHECKING:
    from roundk.hooks.config import Config

_installed = False


def autoload() -> None:
    """Record this process if the environment says so. Never raises: torch would fail to import."""
    failsafe.guard(_from_environment)()


def start(config_file: str) -> None:
    """Record this process as the environment or a file that `roundk run` left says. Never raises."""
    failsafe.guard(_from_file)(config_file)


def install(
    directory: str | None = None,
    *,
    max_mb: int = config.DEFAULT_MAX_MB,
    stall_s: float = config.DEFAULT_STALL_S,
) -> None:
    """Record every collective of this process, from the first process group on.

    For those who prefer a line of code to `roundk run`. Call it on every rank before `init_process_group`, with the
    same directory. Under `roundk run` it changes nothing.

    Args:
        directory: Run directory, made where it is missing. May be left out where ROUNDK_DIR is set.
        max_mb: MiB of disk that this rank's rows may take; the oldest are deleted beyond that.
        stall_s: Seconds after which a call in flight, or a time without calls, counts as a stall: stacks are dumped.

    Raises:
        ValueError: no directory is named, neither here nor in ROUNDK_DIR.
    """
    if directory is None:
        found = config.from_environment()
        if found is None:
            msg = "no run directory: name one, install('runs/today'), or set ROUNDK_DIR"
            raise ValueError(msg)
    else:
        found = config.Config(os.path.abspath(directory), max_mb, stall_s)
    failsafe.guard(_install)(found)


def _from_environment() -> None:
    found = config.from_environment()
    if found is not None:
        _install(found)


def _from_file(path: str) -> None:
    _install(config.from_environment() or config.from_file(path))


def _install(found: Config) -> None:
    global _installed  # noqa: PLW0603 - once per process, whoever comes first
    if _installed:
        return
    _installed = True
    import torch.distributed as dist

    if dist.is_available():
        from roundk.hooks import agent, process
        from roundk.tracer import rundir

        rundir.call_host(found.host)
        process.install(found)
        agent.watch(found)
