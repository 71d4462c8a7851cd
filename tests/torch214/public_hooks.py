"""What torch's own pre- and post-hooks (2.14 on) cost and see, beside a kernel at BackendSelect.

One process, gloo. Prints one line of JSON. Figures are the least and the median over short batches of
`group.allreduce([x]).wait()`, in microseconds per call.
"""

from __future__ import annotations

import json
import pathlib
import statistics
import tempfile
import time

import torch
import torch.distributed as dist

BATCHES, CALLS = 400, 50
FIRST, SECOND = 1, 2


def cost():
    group, given = dist.group.WORLD, torch.ones(4)
    figures = []
    for _ in range(BATCHES):
        began = time.perf_counter_ns()
        for _ in range(CALLS):
            group.allreduce([given]).wait()
        figures.append((time.perf_counter_ns() - began) / CALLS / 1e3)
    return {"least": round(min(figures), 2), "median": round(statistics.median(figures), 2)}


def with_hooks(before, after):
    group = dist.group.WORLD
    group.register_pre_hook(FIRST, before)
    group.register_post_hook(SECOND, after)
    try:
        return cost()
    finally:
        group.unregister_pre_hook(FIRST)
        group.unregister_post_hook(SECOND)


def nothing(_):
    pass


def read_before(args):
    tensors = args.input_tensors
    return args.name, args.op_id, args.root, args.async_op, [(t.shape, t.dtype) for t in tensors], args.output_tensors


def read_after(args):
    return args.op_id, args.work


def with_kernel():
    key = torch._C.DispatchKey.BackendSelect
    redispatch = torch.ops.c10d.allreduce_.default._handle.redispatch_boxed

    def kernel(keyset, *args):
        return redispatch(keyset.remove(key), *args)

    library = torch.library.Library("c10d", "IMPL")
    library.impl("allreduce_", kernel, "BackendSelect", with_keyset=True)
    try:
        return cost()
    finally:
        library._destroy()


def seen():
    """What the hooks are told of each call, in order; empty: the call is missed."""
    group, told = dist.group.WORLD, []
    group.register_pre_hook(FIRST, lambda args: told.append(str(args.name).removeprefix("HookOpName.")))
    group.register_post_hook(SECOND, lambda args: told.append("after"))
    other = dist.new_group([0])
    calls = {
        "all_gather": lambda: dist.all_gather([torch.ones(4)], torch.ones(4)),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(torch.ones(4), torch.ones(4)),
        "all_reduce_coalesced": lambda: group.allreduce_coalesced([torch.ones(4)]).wait(),
        "barrier": dist.barrier,
        "monitored_barrier": dist.monitored_barrier,
        "a call that raises": lambda: group.broadcast(torch.ones(4), 7),
        "a call of a group made later": lambda: dist.all_reduce(torch.ones(4), group=other),
    }
    found = {}
    for name, call in calls.items():
        told.clear()
        try:
            call()
        except (RuntimeError, ValueError):
            told.append("raised")
        found[name] = " ".join(told)
    return found


def main():
    with tempfile.TemporaryDirectory() as folder:
        store = dist.FileStore(str(pathlib.Path(folder, "store")), 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        found = {"torch": torch.__version__, "none": cost()}
        found["hooks, empty"] = with_hooks(nothing, nothing)
        found["hooks that read what they are given"] = with_hooks(read_before, read_after)
        found["kernel, empty"] = with_kernel()
        found["none again"] = cost()
        found["seen"] = seen()
        fields = dist.distributed_c10d.torch._C._distributed_c10d
        found["fields before"] = [name for name in dir(fields.PreHookArgs) if not name.startswith("_")]
        found["fields after"] = [name for name in dir(fields.PostHookArgs) if not name.startswith("_")]
        dist.destroy_process_group()
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
