"""Sections of the workload that call torch.distributed themselves."""

from __future__ import annotations

import contextlib
import threading

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable
from sections import everyone, mesh_groups, rank, section, size
from torch.distributed import all_reduce as bound_all_reduce
from torch.distributed import new_group as bound_new_group
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _coalescing_manager

FOUR = 4


def ones(times=1):
    return torch.ones(FOUR * times)


def each():
    return [ones() for _ in everyone()]


@section()
def plain():
    dist.all_reduce(ones())
    dist.broadcast(ones(), 0)
    dist.reduce(ones(), 0)
    dist.all_gather(each(), ones())
    dist.all_gather_into_tensor(ones(size()), ones())
    dist.gather(ones(), each() if rank() == 0 else None, 0)
    dist.scatter(ones(), each() if rank() == 0 else None, 0)
    dist.barrier()


@section()
def all_to_all():
    dist.all_to_all(each(), each())
    dist.all_to_all_single(ones(size()), ones(size()))
    parts = [FOUR] * size()
    dist.all_to_all_single(ones(size()), ones(size()), parts, parts)


HAS_GATHER_INTO_TENSOR = hasattr(dist, "gather_into_tensor")  # since torch 2.14


@section(unrecorded=int(HAS_GATHER_INTO_TENSOR))
def gather_into_one_tensor():
    if HAS_GATHER_INTO_TENSOR:
        with contextlib.suppress(RuntimeError):  # gloo cannot; the call is one all the same
            dist.gather_into_tensor(ones(size()), ones(), 0)


@section(surplus=lambda rank, size: size - 1)
def reduce_scatter():
    dist.reduce_scatter_tensor(ones(), ones(size()))
    dist.reduce_scatter(ones(), each())


@section(unrecorded=2)
def monitored_barrier():
    dist.monitored_barrier()
    dist.monitored_barrier(wait_all_ranks=True)


@section(pseudo=["new_group"])
def names_bound_at_import():
    bound_all_reduce(ones())
    group = bound_new_group(everyone())
    bound_all_reduce(ones(), group=group)


@section()
def reductions():
    for op in (dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT):
        dist.all_reduce(ones(), op)
    dist.all_reduce(torch.ones(FOUR, dtype=torch.int64), dist.ReduceOp.BAND)
    dist.all_reduce(torch.ones(FOUR, dtype=torch.complex64))


@section()
def objects():
    dist.all_gather_object([None] * size(), {"rank": rank()})
    dist.broadcast_object_list(["anything"], 0)
    dist.gather_object("anything", [None] * size() if rank() == 0 else None, 0)
    dist.scatter_object_list([None], list(range(size())) if rank() == 0 else None, 0)


@section()
def asynchronous():
    works = [dist.all_reduce(ones(), async_op=True) for _ in range(5)]
    works.append(dist.all_gather(each(), ones(), async_op=True))
    works.append(dist.barrier(async_op=True))
    for work in works:
        work.wait()


@section(unrecorded=4)
def send_and_receive():
    after, before = (rank() + 1) % size(), (rank() - 1) % size()
    if rank() % 2 == 0:
        dist.send(ones(), after)
        dist.recv(ones(), before)
    else:
        dist.recv(ones(), before)
        dist.send(ones(), after)
    works = [dist.isend(ones(), after), dist.irecv(ones(), before)]
    for work in works:
        work.wait()


@section(unrecorded=lambda rank, size: size - 1 if rank == 0 else 1)
def receive_from_anyone():
    dist.barrier()
    if rank() == 0:
        for _ in range(size() - 1):
            dist.recv(ones())
    else:
        dist.send(ones(), 0)
    dist.barrier()


@section(unrecorded=2)
def batched_p2p():
    after, before = (rank() + 1) % size(), (rank() - 1) % size()
    batch = [dist.P2POp(dist.isend, ones(), after), dist.P2POp(dist.irecv, ones(), before)]
    for work in dist.batch_isend_irecv(batch):
        work.wait()


@section(unrecorded=lambda rank, size: 2 if rank < 2 else 0)
def objects_sent():
    if rank() == 0:
        dist.send_object_list(["anything"], 1)
    elif rank() == 1:
        dist.recv_object_list([None], 0)


@section()
def coalesced_all_reduce():
    with _coalescing_manager(async_ops=True) as manager:
        dist.all_reduce(ones())
        dist.all_reduce(ones(2))
    manager.wait()


@section(surplus=1)
def coalesced_gather_and_scatter():
    with _coalescing_manager():
        dist.all_gather_into_tensor(ones(size()), ones())
        dist.all_gather_into_tensor(ones(2 * size()), ones(2))
    with _coalescing_manager():
        dist.reduce_scatter_tensor(ones(), ones(size()))
        dist.reduce_scatter_tensor(ones(2), ones(2 * size()))


# Ahead of `groups`: torch takes the name of such a group from how many groups a rank is in, and two ranks that are in
# more and fewer wait for each other under two names.
@section(pseudo=lambda rank, size: ["new_group"] if rank < size - 1 or size == 2 else [])
def groups_with_local_synchronization():
    ranks = everyone() if size() == 2 else everyone()[:-1]
    group = dist.new_group(ranks, use_local_synchronization=True)
    if rank() in ranks:
        dist.all_reduce(ones(), group=group)


@section(pseudo=["new_group", "new_group"])
def groups():
    all_of_us = dist.new_group(everyone(), group_desc="all of us")
    dist.all_reduce(ones(), group=all_of_us)
    alone = dist.new_group([0])
    if rank() == 0:
        dist.all_reduce(ones(), group=alone)


@section(pseudo=lambda rank, size: ["new_group"] * (size // 2))
def subgroups():
    mine, _ = dist.new_subgroups(2)
    dist.all_reduce(ones(), group=mine)


@section(pseudo=["new_group", "destroy_process_group", "new_group", "destroy_process_group"])
def groups_destroyed():
    for _ in range(2):
        group = dist.new_group(everyone())
        dist.all_reduce(ones(), group=group)
        dist.destroy_process_group(group)


@section(pseudo=["split_group"])
def group_split():
    try:
        dist.split_group(None, [everyone()])
    except RuntimeError:
        return  # gloo cannot
    raise AssertionError("gloo can split now: call a collective here")


@section(pseudo=lambda rank, size: mesh_groups(size))
def device_mesh():
    mesh = init_device_mesh("cpu", (size() // 2, 2), mesh_dim_names=("outer", "inner"))
    dist.all_reduce(ones(), group=mesh.get_group("inner"))
    dist.all_reduce(ones(), group=mesh["outer"].get_group())


@section()
def methods_of_the_group():
    group = dist.group.WORLD
    group.allreduce([ones()]).wait()
    group.broadcast(ones(), 0).wait()
    group.barrier().wait()


@section(below=1)
def method_of_the_backend():
    dist.group.WORLD._get_backend(torch.device("cpu")).allreduce([ones()]).wait()


@section()
def functional_collectives():
    world = dist.group.WORLD
    functional.wait_tensor(functional.all_reduce(ones(), "sum", world))
    _ = functional.all_gather_tensor(ones(), 0, world) + 1
    _ = functional.reduce_scatter_tensor(ones(size()), "sum", 0, world) + 1
    _ = functional.all_to_all_single(ones(size()), None, None, world) + 1
    _ = functional.broadcast(ones(), 0, world) + 1
    _ = [tensor + 1 for tensor in functional.all_reduce_coalesced([ones(), ones(2)], "sum", world)]
    _ = [tensor + 1 for tensor in functional.all_gather_into_tensor_coalesced([ones(), ones(2)], world)]


@section()
def differentiable_collectives():
    given = torch.ones(FOUR, requires_grad=True)
    differentiable.all_reduce(given).sum().backward()
    sum(tensor.sum() for tensor in differentiable.all_gather(given)).backward()


@section(pseudo=["new_group"])
def inside_other_modes():
    group = dist.new_group(everyone())
    with torch.inference_mode():
        dist.all_reduce(ones(), group=group)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        dist.all_reduce(ones(), group=group)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        dist.all_reduce(ones(), group=group)


@section(pseudo=["new_group", "new_group"])
def other_threads():
    def many(group):
        for _ in range(20):
            dist.all_reduce(ones(), group=group)

    threads = [threading.Thread(target=many, args=(dist.new_group(everyone()),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
