"""What a training process is told by `roundk run`: through the environment, or a file beside the start-up code.

Some launchers forward only a few variables to their workers (PYTHONPATH nearly always); the file is for those.
"""

from __future__ import annotations

import json
import os
from typing import NamedTuple

DIR_VARIABLE = "ROUNDK_DIR"
MAX_MB_VARIABLE = "ROUNDK_MAX_MB"
DEFAULT_MAX_MB = 256
"""Disk that one rank's segments may take, in MiB: about 2.8 million calls."""


class Config(NamedTuple):
    """Where to record and how much disk a rank may take."""

    run: str
    max_bytes: int


def make(run: str, max_mb: int) -> Config:
    """A configuration from what a user says."""
    return Config(os.path.abspath(run), max_mb * 1_048_576)


def from_environment() -> Config | None:
    """The configuration of this process's environment; None where there is none."""
    run = os.environ.get(DIR_VARIABLE)
    return make(run, int(os.environ.get(MAX_MB_VARIABLE) or DEFAULT_MAX_MB)) if run else None


def from_file(path: str) -> Config:
    """The configuration that `roundk run` left in a file.

    Raises:
        OSError, ValueError, KeyError: it is not there, or not what `roundk run` writes.
    """
    with open(path, encoding="utf-8") as file:
        content = json.load(file)
    return make(content["dir"], content["max_mb"])
