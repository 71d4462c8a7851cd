"""The job that `run.py` starts on a GPU, once per section: `job.py SECTION`. Prints one JSON line per rank.

torch only: the machine may have nothing else. What the recorder stored is read from its segment in memory.
"""

from __future__ import annotations

import datetime as dt
import gc
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

from roundk.tracer import words

SECONDS_OF_SLEEP = 2.0


def recorder():
    """The recorder of this process, found by its kind: there is no public way to it."""
    from roundk.hooks.recorder import Recorder

    found = [thing for thing in gc.get_objects() if type(thing) is Recorder]
    return found[0] if found else None


def rows():
    """What is stored of every call, times in ms from its enter."""
    held = recorder()
    c, found = held._segment.columns, []
    for row in range(held._segment.rows):
        if not c.commit[row]:
            break
        times = {
            name: round((getattr(c, f"{name}_ns")[row] - c.enter_ns[row]) / 1e6, 3)
            if getattr(c, f"{name}_ns")[row]
            else None
            for name in ("issued", "start", "end")
        }
        named = {"op": words.OPS[c.op[row]], "seq": c.seq[row], "outcome": words.OUTCOMES[c.outcome[row]]}
        found.append({**named, "timed": c.is_timed[row], **times})
    return found


def settle():
    """Let the device finish and the recorder's thread look once more."""
    torch.cuda.synchronize()
    time.sleep(0.1)


def sync():
    for _ in range(3):
        dist.all_reduce(torch.ones(1 << 20, device="cuda"))
    settle()


def asynchronous():
    for work in [dist.all_reduce(torch.ones(1 << 20, device="cuda"), async_op=True) for _ in range(3)]:
        work.wait()
    settle()


def coalesced():
    from torch.distributed.distributed_c10d import _coalescing_manager

    tensors = [torch.ones(1 << 16, device="cuda") for _ in range(4)]
    with _coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    group, device = dist.group.WORLD, torch.device("cuda")
    group._start_coalescing(device)
    for tensor in tensors:
        group.allreduce([tensor])
    group._end_coalescing(device).wait()
    settle()


def capture():
    tensor = torch.ones(1 << 16, device="cuda")
    dist.all_reduce(tensor)  # the communicator exists before the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(tensor)
    for _ in range(5):
        graph.replay()
    settle()
    assert torch.equal(tensor, torch.ones_like(tensor) * dist.get_world_size() ** 6)


def stalled():
    """A kernel ahead of the collective keeps the device busy: entered, issued, not started for a while."""
    dist.all_reduce(torch.ones(4, device="cuda"))
    torch.cuda.synchronize()
    clock_hz = (
        torch.cuda.get_device_properties(0).clock_rate * 1e3
        if hasattr(torch.cuda.get_device_properties(0), "clock_rate")
        else 1.5e9
    )
    torch.cuda._sleep(int(clock_hz * SECONDS_OF_SLEEP))
    dist.all_reduce(torch.ones(4, device="cuda"))
    time.sleep(SECONDS_OF_SLEEP / 4)
    print(json.dumps({"while stalled": rows()[-1]}), flush=True)
    settle()


def never():
    """Rank 1 never comes; the group's timeout ends the job."""
    dist.all_reduce(torch.ones(4, device="cuda"))
    torch.cuda.synchronize()
    if dist.get_rank() == 1:
        time.sleep(600)
    dist.all_reduce(torch.ones(4, device="cuda"))
    torch.cuda.synchronize()


def train(wrap):
    torch.manual_seed(0)
    model = wrap(nn.Sequential(*(nn.Linear(512, 512) for _ in range(8))).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    times = []
    for _ in range(60):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        model(torch.ones(64, 512, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) * 1e3)
    last = float(model(torch.ones(1, 512, device="cuda")).sum())
    print(json.dumps({"step_ms_median": round(statistics.median(times[10:]), 3), "last_output": last}), flush=True)


def ddp():
    train(lambda model: nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1))


def fsdp2():
    from torch.distributed.fsdp import fully_shard

    def shard(model):
        for layer in model:
            fully_shard(layer)
        return fully_shard(model)

    train(shard)


SECTIONS = {f.__name__: f for f in (sync, asynchronous, coalesced, capture, stalled, never, ddp, fsdp2)}


def main():
    name = sys.argv[1]
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    seconds = 15 if name == "never" else 120
    dist.init_process_group("nccl", timeout=dt.timedelta(seconds=seconds))
    SECTIONS[name]()
    if recorder() is not None and name not in ("ddp", "fsdp2"):
        for row in rows():
            print(json.dumps({"rank": dist.get_rank(), **row}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
