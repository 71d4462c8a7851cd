"""Two ranks make calls of two groups on gloo and leave their dumps; rank 1 never enters the last call."""

from __future__ import annotations

import json
import pathlib
import sys
import time
import warnings

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

warnings.simplefilter("ignore")  # 2.13 renames functions, which the jobs of its day still call by their old names
folder = pathlib.Path(sys.argv[1])
dist.init_process_group("gloo")
rank = dist.get_rank()
pair = dist.new_group([0, 1], group_desc="pair")


def calls(group):
    part, whole = torch.ones(4, 2), torch.empty(8, 2)
    dist.all_reduce(part, group=group)
    dist.barrier(group=group)
    dist.broadcast(part, 0, group=group)
    dist.all_gather_into_tensor(whole, part, group=group)
    dist.reduce_scatter_tensor(part, whole, group=group)
    dist.all_to_all_single(part, torch.ones(4, 2), group=group)
    if rank == 0:
        dist.send(part, 1, group=group)
    else:
        dist.recv(part, 0, group=group)
    dist.all_gather_object([None, None], {"rank": rank}, group=group)


def as_text():
    text = c10d._dump_fr_trace_json()
    return text if isinstance(text, str) else text.decode()


def num_open():
    return sum(not entry["retired"] for entry in json.loads(as_text())["entries"])


calls(None)
calls(pair)
if rank == 0:
    left = dist.all_reduce(torch.ones(3), group=pair, async_op=True)

deadline = time.monotonic() + 60
while num_open() != (rank == 0) and time.monotonic() < deadline:
    time.sleep(0.01)  # ends are noted by another thread
(folder / f"trace_{rank}").write_bytes(c10d._dump_fr_trace())
(folder / f"json_{rank}.json").write_text(as_text())
(folder / f"written_{rank}").touch()
if rank == 1:
    while not (folder / "written_0").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    dist.all_reduce(torch.ones(3), group=pair)
else:
    left.wait()
dist.destroy_process_group()
