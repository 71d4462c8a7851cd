"""The kernels that see every collective: one per c10d operation at the dispatch key BackendSelect.

The key lies above all backends and is a fall-through by default, so that a kernel there shadows nothing and sees calls
from C++ and Python, from any thread and for any device. It redispatches with the key removed, which releases the GIL.

Source: torch/csrc/distributed/c10d/Ops.cpp; `torch.library.Library.impl(..., with_keyset=True)`, torch 2.6 to 2.14.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from roundk.hooks import dynamo, failsafe, methods
from roundk.hooks.plans import Plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from roundk.hooks.process import Process


_libraries: list[Any] = []
"""Kept for ever: a library that is dropped takes its kernels with it."""


def install(process: Process) -> None:
    """Register the kernels. `process` has the recorder."""
    import torch

    library = torch.library.Library("c10d", "IMPL")
    _libraries.append(library)
    for name in operations():
        operation = getattr(torch.ops.c10d, name).default
        library.impl(
            name, _kernel(operation, Plan(name, operation._schema), process), "BackendSelect", with_keyset=True
        )


def operations() -> list[str]:
    """Names of the dispatched operations that take a process group."""
    import torch

    schemas = torch._C._jit_get_all_schemas()
    return sorted(
        schema.name.removeprefix("c10d::")
        for schema in schemas
        if schema.name.startswith("c10d::") and any("ProcessGroup" in str(a.type) for a in schema.arguments)
    )


def _kernel(operation: Any, plan: Plan, process: Process) -> Callable[..., Any]:
    """A kernel: `kernel(keyset, *args)`, which redispatches with this key removed and records before and after.

    An error of ours stays here; one of the call is the user's and passes. One function, since every collective goes
    through it, and each more costs its time.
    """
    import torch

    key = torch._C.DispatchKey.BackendSelect
    redispatch = operation._handle.redispatch_boxed
    opened = failsafe.guard(process.open)
    threads = methods.threads

    def kernel(keyset: Any, *args: Any) -> Any:
        records = process.recorder or opened()
        if records is None:
            return redispatch(keyset.remove(key), *args)
        call, result, running = None, failsafe.RAISED, threads.running
        try:
            call = records.enter(plan, args, running)
        except BaseException as error:  # noqa: BLE001 - the fence, in place
            failsafe.stop_here(error, records.interrupted, None)
        try:
            result = redispatch(keyset.remove(key), *args)
        finally:
            if call is not None:
                try:
                    records.returned(plan, call, result, running)
                except BaseException as error:  # noqa: BLE001 - the same
                    failsafe.stop_here(error, records.interrupted, call)
        return result

    return dynamo.untraced(kernel)
