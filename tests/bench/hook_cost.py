"""What recording one call costs the calling thread: `python tests/bench/hook_cost.py`.

One process, gloo, one rank, pinned to one core: "hot", nothing else to wait for. Batches of the plain call, of the call
through an empty kernel (what torch charges for any Python kernel), and recorded with and without the call site, in
turn, so that all see the same machine. Prints the least and the median of the batches.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import time

import torch
import torch.distributed as dist

from roundk.hooks import config, kernels, methods, process, works
from roundk.hooks.sites import Sites

BATCH, ROUNDS = 200, 150


def batch(call):
    begin = time.perf_counter()
    for _ in range(BATCH):
        call()
    return (time.perf_counter() - begin) / BATCH * 1e6


def measure(call, variants):
    """Microseconds per call of each variant, batches in turn."""
    times = {name: [] for name in variants}
    for _ in range(ROUNDS):
        for name, variant in variants.items():
            with variant():
                times[name].append(batch(call))
    return times


@contextlib.contextmanager
def empty_kernel():
    library = torch.library.Library("c10d", "IMPL")
    redispatch = torch.ops.c10d.allreduce_.default._handle.redispatch_boxed
    key = torch._C.DispatchKey.BackendSelect
    library.impl("allreduce_", lambda ks, *a: redispatch(ks.remove(key), *a), "BackendSelect", with_keyset=True)
    yield
    library._destroy()


@contextlib.contextmanager
def recorded(held, *, site):
    """The recorder's hooks in place; everything is put back behind."""
    wait, here = vars(dist.Work)["wait"], Sites.here
    own = {name: vars(dist.ProcessGroup).get(name) for name in methods._OPS}
    kernels.install(held)
    methods.install(held.pending)
    works.patch_wait(held.pending)
    if not site:
        Sites.here = lambda self: 0
    yield
    kernels._libraries.pop()._destroy()
    dist.Work.wait, Sites.here = wait, here
    for name, method in own.items():
        if method is not None:
            setattr(dist.ProcessGroup, name, method)


def table(name, times):
    print(f"{name}: microseconds per call")
    least, middle = min(times["plain"]), statistics.median(times["plain"])
    for variant, found in times.items():
        low, median = min(found), statistics.median(found)
        print(f"  {variant:20} min {low:6.1f} (+{low - least:5.1f})   median {median:6.1f} (+{median - middle:5.1f})")


def main():
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    held = process.Process(config.Config(tempfile.mkdtemp()))
    variants = {
        "plain": contextlib.nullcontext,
        "empty kernel": empty_kernel,
        "recorded, no site": lambda: recorded(held, site=False),
        "recorded": lambda: recorded(held, site=True),
    }
    tensor, group = torch.ones(4), dist.group.WORLD
    table("pg.allreduce([x]).wait()", measure(lambda: group.allreduce([tensor]).wait(), variants))
    table("dist.all_reduce(x)", measure(lambda: dist.all_reduce(tensor), variants))
    held.close()


if __name__ == "__main__":
    main()
