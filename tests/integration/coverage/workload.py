"""Runs every section and writes, per rank, what torch's own Flight Recorder counted in each.

Usage: torchrun workload.py OUT
"""

from __future__ import annotations

import datetime as dt
import json
import os
import pathlib
import sys
import time
import warnings

import torch
import torch.distributed as dist

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no pool of processes for two small kernels

import calls  # noqa: F401 - each adds its sections
import models  # noqa: F401
from sections import SECTIONS, section

OUT = sys.argv[1]
LIMIT = dt.timedelta(seconds=60)
"""A section that hangs is to end the run, not to outlast it."""


@section(pseudo=["destroy_process_group", "init_process_group"])
def started_anew():
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    # A store of its own: torchrun's still holds the first group's addresses, and gloo may take them for the second's.
    store = dist.FileStore(str(pathlib.Path(OUT, "store")), size)
    dist.init_process_group("gloo", timeout=LIMIT, store=store, rank=rank, world_size=size)
    dist.all_reduce(torch.ones(4))


def entries():
    """The Flight Recorder's entries so far: how many, and the operations of those it still holds by number."""
    dump = json.loads(torch._C._distributed_c10d._dump_fr_trace_json(True, False))
    named = {entry["record_id"]: entry["profiling_name"] for entry in dump.get("entries", [])}
    return max(named, default=-1) + 1, named


def run(part):
    first, _ = entries()
    began = time.time_ns()
    part.run()
    ended = time.time_ns()
    last, named = entries()
    rank, size = dist.get_rank(), dist.get_world_size()
    return {
        "name": part.name,
        "began_ns": began,
        "ended_ns": ended,
        "recorded": last - first,
        "recorded_ops": [named[number] for number in range(first, last)],
        "unrecorded": part.unrecorded(rank, size),
        "surplus": part.surplus(rank, size),
        "below": part.below,
        "pseudo": list(part.pseudo(rank, size)),
    }


def main():
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=LIMIT)
    rank = dist.get_rank()
    found = {"torch": torch.__version__, "sections": [run(part) for part in SECTIONS]}
    pathlib.Path(OUT, f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
