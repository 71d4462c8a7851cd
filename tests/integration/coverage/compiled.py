"""Compiles functions that touch what roundk wraps; prints what torch.compile made of them. One process, gloo."""

from __future__ import annotations

import json
import os

import torch
import torch._dynamo
import torch.distributed as dist


def stepping():
    parameter = torch.nn.Parameter(torch.ones(4))
    parameter.grad = torch.ones(4)
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    return lambda given: [optimizer.step(), given + 1][1]


def making_groups(given):
    doubled = given * 2
    group = dist.new_group([0])
    dist.all_reduce(doubled, group=group)
    dist.destroy_process_group(group)
    return doubled + 1


def waiting(given):
    doubled = given * 2
    dist.all_reduce(doubled, async_op=True).wait()
    return doubled + 1


def made(function):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(function, backend="eager")
    results = [compiled(torch.ones(4)).tolist() for _ in range(3)]
    counters = torch._dynamo.utils.counters
    breaks = sum(counters["graph_break"].values())
    return {"results": results, "breaks": breaks, **counters["stats"], "frames": counters["frames"]["ok"]}


def main():
    store = dist.FileStore(os.environ["STORE"], 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    functions = {"stepping": stepping(), "making groups": making_groups, "waiting": waiting}
    print(json.dumps({name: made(function) for name, function in functions.items()}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
