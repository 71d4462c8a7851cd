"""With what settings and versions a process is recorded: one line of its side file, stored when that is opened."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from roundk import __version__
from roundk.hooks import failsafe
from roundk.tracer import environment

if TYPE_CHECKING:
    from roundk.hooks.config import Config


def line(config: Config) -> dict[str, Any]:
    """The `environment` line: variables, versions, and the recorder's own options."""
    kept, left_out = environment.settings(os.environ)
    return {
        "kind": "environment",
        "settings": kept,
        "left_out": left_out,
        "versions": {"roundk": __version__, **_of_torch()},
        "recorder": {"--max-mb": str(config.max_mb), "--stall-s": f"{config.stall_s:g}"},
    }


def _of_torch() -> dict[str, str]:
    """Versions that torch was built with, and NCCL's as `torch.cuda.nccl.version()` has it; nothing is loaded."""
    import torch

    found = {"cuda": torch.version.cuda, "hip": getattr(torch.version, "hip", None), "nccl": _nccl()}
    return {name: str(version) for name, version in found.items() if version}


def _nccl() -> str | None:
    """Source: torch/cuda/nccl.py, `version`: a number with 16 bits each for minor and patch below the major."""
    import torch

    tell = getattr(torch._C, "_nccl_version", None)  # none in a torch without CUDA
    if tell is None:
        return None
    try:
        number = int(tell())
    except (RuntimeError, TypeError, ValueError) as error:
        if failsafe.is_jobs(error):
            raise
        return None
    return f"{number >> 32}.{number >> 16 & 0xFFFF}.{number & 0xFFFF}"
