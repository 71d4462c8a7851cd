"""What a training process is told by `roundk run`: through the environment, or a file beside the start-up code.

Some launchers forward only a few variables to their workers (PYTHONPATH nearly always); the file is for those.
"""

from __future__ import annotations

import json
import os
import socket
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

DIR_VARIABLE = "ROUNDK_DIR"
MAX_MB_VARIABLE = "ROUNDK_MAX_MB"
DEFAULT_MAX_MB = 256
"""Disk that one rank's segments may take, in MiB: about 2.6 million calls."""


STALL_VARIABLE = "ROUNDK_STALL_S"
DEFAULT_STALL_S = 30.0
"""Longer than a slow step or a checkpoint of most jobs, shorter than any group's timeout."""
_MIB = 1_048_576
HOST_VARIABLE = "ROUNDK_HOST"
"""As `rundir` has it, which a process that is not recorded must not load."""
_MACHINE = "machine"
"""In the file: where it was written."""


class Config(NamedTuple):
    """Where to record, how much disk a rank may take, after what time a call counts as stalled, how the host is called.

    `host` is empty where `--host-name` was not given.
    """

    run: str
    max_mb: int = DEFAULT_MAX_MB
    stall_s: float = DEFAULT_STALL_S
    host: str = ""

    @property
    def max_bytes(self) -> int:
        """Disk that a rank may take."""
        return self.max_mb * _MIB

    def variables(self) -> dict[str, str]:
        """The environment that `from_environment` reads back."""
        found = {DIR_VARIABLE: self.run, MAX_MB_VARIABLE: str(self.max_mb), STALL_VARIABLE: str(self.stall_s)}
        return found | ({HOST_VARIABLE: self.host} if self.host else {})

    def write(self, path: str) -> None:
        """Leave it in the file that `from_file` reads.

        Raises:
            OSError: it cannot be written.
        """
        with open(path, "w", encoding="utf-8") as file:
            json.dump({**self.variables(), _MACHINE: socket.gethostname()}, file)


def from_environment() -> Config | None:
    """The configuration of this process's environment; None where there is none."""
    return _from_variables(os.environ) if os.environ.get(DIR_VARIABLE) else None


def from_file(path: str) -> Config:
    """The configuration that `roundk run` left in a file.

    The host's name is that of the machine where it was left: a job's launcher may start ranks on others too.

    Raises:
        OSError, ValueError, KeyError: it is not there, or not what `roundk run` writes.
    """
    with open(path, encoding="utf-8") as file:
        found = json.load(file)
    if found.get(_MACHINE) != socket.gethostname():
        found.pop(HOST_VARIABLE, None)
    return _from_variables(found)


def _from_variables(found: Mapping[str, str]) -> Config:
    max_mb, stall_s = found.get(MAX_MB_VARIABLE), found.get(STALL_VARIABLE)
    return Config(
        os.path.abspath(found[DIR_VARIABLE]),
        int(max_mb) if max_mb else DEFAULT_MAX_MB,
        float(stall_s) if stall_s else DEFAULT_STALL_S,
        found.get(HOST_VARIABLE, ""),
    )
