"""Calls inside calls: `reentrant.py HOW`. The size of a tensor says what its row must say of group and reduction.

A timer's handler makes calls of its own at any moment, from C++ (`functional`) or by a method of a group (`method`); or
a dispatch mode makes each call twice (`twice`). `1 + 4 * group + reduction` elements; 100 + group for those from C++.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.utils._python_dispatch import TorchDispatchMode

SECONDS = 2.0
OPS = [dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT]


def one(rng, groups):
    group, op, way = rng.randrange(len(groups)), rng.randrange(len(OPS)), rng.randrange(3)
    tensor = torch.ones(1 + 4 * group + op)
    if way == 0:
        dist.all_reduce(tensor, op=OPS[op], group=groups[group])
    elif way == 1:
        groups[group].allreduce([tensor], OPS[op]).wait()
    else:
        dist.reduce(tensor, 0, op=OPS[op], group=groups[group])


def from_cpp(rng, groups):
    group = rng.randrange(len(groups))
    functional.wait_tensor(functional.all_reduce(torch.ones(100 + group), "min", groups[group]))


class Twice(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "allreduce" in str(func):
            func(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def main() -> None:
    how = sys.argv[1]
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    groups = [dist.group.WORLD, *(dist.new_group([0]) for _ in range(3))]
    rng, inner = random.Random(1), random.Random(2)
    from_cpp(inner, groups)
    if how == "twice":
        with Twice():
            for _ in range(200):
                one(rng, groups)
    else:
        make = {"functional": from_cpp, "method": one}[how]
        signal.signal(signal.SIGALRM, lambda *_: make(inner, groups))
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            one(rng, groups)
        signal.setitimer(signal.ITIMER_REAL, 0)
    time.sleep(0.1)  # the recorder's thread sees the last ends
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
