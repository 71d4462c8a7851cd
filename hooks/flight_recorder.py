"""Torch's own Flight Recorder as a second source: dumped beside our rows on a stall.

Source: torch/csrc/distributed/c10d/init.cpp: `_dump_fr_trace` (2.8 on), `_dump_nccl_trace` (builds with NCCL, before).
"""

from __future__ import annotations

import os


def dump(path: str) -> None:
    """Write torch's dump in the form that torch's own tools read; nothing where this torch has none.

    Without torch's stacks: to name their frames torch 2.13 imports its compiler, seconds of work inside the job.

    Raises:
        OSError: the file cannot be written.
    """
    import torch

    c10d = torch._C._distributed_c10d
    take = getattr(c10d, "_dump_fr_trace", None) or getattr(c10d, "_dump_nccl_trace", None)
    if take is None:
        return
    unfinished = f"{path}.new"
    with open(unfinished, "wb") as file:
        file.write(take(True, False, False))  # collectives, no stacks, not only active ones
    os.replace(unfinished, path)
