"""Sections of the workload in which libraries of torch issue the collectives."""

from __future__ import annotations

import os
import pathlib

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from sections import mesh_groups, rank, section, size
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

WIDTH = 16


def layers(count=2):
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(count)))


def train(model, steps=2):
    for _ in range(steps):
        model(torch.randn(4, WIDTH)).sum().backward()


@section()
def data_parallel():
    train(DistributedDataParallel(layers(4), bucket_cap_mb=0.001), steps=3)


@section()
def data_parallel_with_buffers():
    train(DistributedDataParallel(nn.Sequential(layers(), nn.BatchNorm1d(WIDTH))))


@section()
def data_parallel_hooks():
    compressed = DistributedDataParallel(layers())
    compressed.register_comm_hook(None, default_hooks.fp16_compress_hook)
    train(compressed)
    low_rank = DistributedDataParallel(layers())
    state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)
    low_rank.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    train(low_rank, steps=3)


@section()
def data_parallel_hook_in_python():
    def hook(group, bucket):
        future = dist.all_reduce(bucket.buffer(), group=group, async_op=True).get_future()
        return future.then(lambda done: done.value()[0])

    model = DistributedDataParallel(layers())
    model.register_comm_hook(dist.group.WORLD, hook)
    train(model)


@section()
def uneven_inputs():
    model = DistributedDataParallel(layers())
    with Join([model]):
        train(model, steps=1 + rank())


@section()
def zero_redundancy():
    model = DistributedDataParallel(layers())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    train(model, steps=1)
    optimizer.step()
    optimizer.consolidate_state_dict(0)


@section()
def model_averaging():
    model = layers()
    train(model, steps=1)
    averager = PeriodicModelAverager(period=2)
    averager.average_parameters(model.parameters())


@section()
def fully_sharded_first_version():
    train(FullyShardedDataParallel(layers(), device_id=torch.device("cpu")))


def sharded():
    model = layers()
    for layer in model:
        fully_shard(layer)
    return fully_shard(model)


@section()
def fully_sharded():
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()
    optimizer.step()


@section()
def distributed_tensors():
    mesh = init_device_mesh("cpu", (size(),))
    tensor = distribute_tensor(torch.ones(8, 8), mesh, [Shard(0)])
    tensor.redistribute(mesh, [Replicate()])
    tensor.redistribute(mesh, [Shard(1)])
    tensor.sum().full_tensor()


@section()
def tensor_parallel():
    mesh = init_device_mesh("cpu", (size(),))
    plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
    train(parallelize_module(layers(), mesh, plan), steps=1)


@section(pseudo=lambda rank, size: mesh_groups(size))
def tensor_parallel_and_sharded():
    mesh = init_device_mesh("cpu", (size() // 2, 2), mesh_dim_names=("sharded", "parallel"))
    model = parallelize_module(layers(), mesh["parallel"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    train(fully_shard(model, mesh=mesh["sharded"]), steps=1)


# With each neighbour: a greeting both ways, an object of two messages both ways with the shapes, two micro-batches of
# activations one way and of gradients the other.
@section(unrecorded=lambda rank, size: 10 * ((rank > 0) + (rank < size - 1)))
def pipeline():
    stage = PipelineStage(layers(1), rank(), size(), torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 2, loss_fn=lambda out, target: (out - target).pow(2).mean())
    batch = torch.randn(4, WIDTH)
    if rank() == 0:
        schedule.step(batch)
    elif rank() == size() - 1:
        schedule.step(target=batch)
    else:
        schedule.step()


@section()
def checkpoints():
    folder = pathlib.Path(os.environ["CHECKPOINT"])
    state = {"sharded": sharded().state_dict(), "plain": torch.ones(4)}
    checkpoint.save(state, checkpoint_id=folder)
    checkpoint.load(state, checkpoint_id=folder)


@section()
def compiled_all_reduce():
    @torch.compile
    def step(given):
        doubled = given * 2
        dist.all_reduce(doubled)
        return doubled + 1

    for _ in range(2):
        step(torch.ones(WIDTH))


@section()
def compiled_functional():
    world = dist.group.WORLD

    @torch.compile(fullgraph=True)
    def step(given):
        gathered = functional.all_gather_tensor(given * 2, 0, world)
        return functional.reduce_scatter_tensor(gathered, "sum", 0, world) + 1

    for _ in range(2):
        step(torch.ones(WIDTH))


@section()
def compiled_data_parallel():
    train(torch.compile(DistributedDataParallel(layers())))


@section()
def compiled_fully_sharded():
    model = layers()
    for layer in model:
        layer.compile()
        fully_shard(layer)
    train(fully_shard(model))
