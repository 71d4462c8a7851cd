"""The kernels that see every collective: one per c10d operation at the dispatch key BackendSelect.

The key lies above all backends and is a fall-through by default, so that a kernel there shadows nothing and sees calls
from C++ and Python, from any thread and for any device. It redispatches with the key removed, which releases the GIL.

Source: torch/csrc/distributed/c10d/Ops.cpp; `torch.library.Library.impl(..., with_keyset=True)`, torch 2.6 to 2.14.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from roundk.hooks import dynamo, failsafe
from roundk.hooks.plans import NO_WORK, ONLY_RESULT, Plan
from roundk.tracer import words

if TYPE_CHECKING:
    from collections.abc import Callable

    from roundk.hooks.recorder import Recorder
    from roundk.hooks.works import Call

_reducing = threading.local()
_libraries: list[Any] = []
"""Kept for ever: a library that is dropped takes its kernels with it."""

_REDUCING_METHODS = (
    "allreduce",
    "allreduce_coalesced",
    "reduce",
    "reduce_scatter",
    "_reduce_scatter_base",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
)


def install(recorder: Callable[[], Recorder | None]) -> None:
    """Register the kernels. `recorder()` gives who records, or None."""
    import torch

    library = torch.library.Library("c10d", "IMPL")
    _libraries.append(library)
    for name in operations():
        operation = getattr(torch.ops.c10d, name).default
        library.impl(
            name, _kernel(operation, Plan(name, operation._schema), recorder), "BackendSelect", with_keyset=True
        )
    for method in _REDUCING_METHODS:
        _note_reduce_op(method)


def operations() -> list[str]:
    """Names of the dispatched operations that take a process group."""
    import torch

    schemas = torch._C._jit_get_all_schemas()
    return sorted(
        schema.name.removeprefix("c10d::")
        for schema in schemas
        if schema.name.startswith("c10d::") and any("ProcessGroup" in str(a.type) for a in schema.arguments)
    )


def _kernel(operation: Any, plan: Plan, recorder: Callable[[], Recorder | None]) -> Callable[..., Any]:
    import torch

    key = torch._C.DispatchKey.BackendSelect
    unbox = torch.distributed.Work.unbox
    work_at = plan.work_at

    def enter(args: tuple[Any, ...]) -> tuple[Recorder, Call] | None:
        records = recorder()
        if records is None:
            return None
        call = records.enter(plan, args, getattr(_reducing, "op", None) or 0)
        return None if call is None else (records, call)

    def leave(entered: tuple[Recorder, Call], result: Any) -> None:
        records, call = entered
        raised = result is failsafe.RAISED
        boxed = None if raised or work_at == NO_WORK else result if work_at == ONLY_RESULT else result[work_at]
        records.returned(plan, call, None if boxed is None else unbox(boxed), raised)

    def interrupted(entered: tuple[Recorder, Call] | None) -> None:
        records, call = entered or (recorder(), None)
        if records is not None:
            records.interrupted(call)

    return dynamo.untraced(failsafe.around(enter, operation._handle.redispatch_boxed, leave, interrupted, key))


def _note_reduce_op(method: str) -> None:
    """Keep what reduction a ProcessGroup method was given: the dispatcher passes it as an object Python cannot read."""
    import torch.distributed
    from torch.distributed import ProcessGroup, ReduceOp

    original = getattr(ProcessGroup, method, None)
    if original is None:
        return

    codes = {kind.value: _CODES.get(name, _CODES["OTHER"]) for name, kind in ReduceOp.RedOpType.__members__.items()}

    options = {
        getattr(torch.distributed, name, None)
        for name in ("AllreduceOptions", "AllreduceCoalescedOptions", "ReduceOptions", "ReduceScatterOptions")
    }

    def reduction(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        for value in (*reversed(args), *kwargs.values()):
            kind = type(value)
            if kind in options:
                return codes[value.reduceOp.op.value]
            if kind is ReduceOp.RedOpType:  # ahead of the next: torch makes this an instance of ReduceOp too
                return codes[value.value]
            if isinstance(value, ReduceOp):
                return codes[value.op.value]
        return _CODES["SUM"]  # the default of every one of these methods

    read = failsafe.guard(reduction)

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        _reducing.op = read(args, kwargs)
        try:
            return original(self, *args, **kwargs)
        finally:
            _reducing.op = None

    wrapper.__name__ = method
    wrapper.__doc__ = original.__doc__
    setattr(ProcessGroup, method, dynamo.untraced(wrapper))


_CODES = {name: code for code, name in enumerate(words.REDUCE_OPS)}
