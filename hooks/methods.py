"""The reducing methods of `ProcessGroup`, as Python calls them: they tell what a kernel cannot read or pays to read.

The dispatcher passes the reduction as an object that Python cannot look into, and the group and the Work as objects
that take half a microsecond each to unbox. Calls from C++ do not come through here; they reduce by whatever op their
own code has, which stays untold.

Source: torch/csrc/distributed/c10d/init.cpp, torch 2.6 to 2.14.
"""

from __future__ import annotations

import threading
from threading import get_native_id
from typing import TYPE_CHECKING, Any

from roundk.hooks import dynamo, failsafe, works
from roundk.tracer import words

if TYPE_CHECKING:
    from collections.abc import Callable

    from roundk.hooks.works import Call, Pending

_OPS = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce_coalesced",
    "reduce": "reduce",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor_coalesced",
}
"""Method to the operation that it dispatches, by its name in the verdict contract."""
_REDUCTIONS = {name: code for code, name in enumerate(words.REDUCE_OPS)}
NONE = -1


class Running:
    """The reducing method that a thread is in.

    Attributes:
        op: Code of the operation that it dispatches; `NONE` where the thread is in no method or it was dispatched.
        group: The process group.
        tensor: The first tensor that it was given: by it its call is told from others that come in between.
        reduce_op: Code of the reduction.
        call: What its kernel recorded and left for the method, which has the Work, to await.
        thread: The operating system's id of the thread.
    """

    __slots__ = ("call", "group", "op", "reduce_op", "tensor", "thread")

    def __init__(self) -> None:
        self.op = NONE
        self.group: Any = None
        self.tensor: Any = None
        self.reduce_op = 0
        self.call: Call | None = None
        self.thread = get_native_id()


class _Threads(threading.local):
    def __init__(self) -> None:
        self.running = Running()


threads = _Threads()
"""`threads.running` is the current thread's."""


def in_child() -> None:
    """In a forked child: its one thread is another one of the operating system's."""
    threads.running = Running()


def install(pending: Pending) -> None:
    """Wrap the methods; works that kernels leave to them go to `pending`."""
    for method in _OPS:
        wrap(method, pending)


def wrap(method: str, pending: Pending) -> None:
    """Wrap one method, where this torch has it."""
    from torch.distributed import ProcessGroup

    original = getattr(ProcessGroup, method, None)
    if original is None:
        return
    op = words.OPS.index(_OPS[method])
    read = _reader()
    here = threads

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        running = here.running
        # A signal handler or a dispatch mode may call another method inside this one.
        outer = running.op, running.group, running.tensor, running.reduce_op, running.call
        try:
            running.op = NONE
            running.reduce_op = read(args, kwargs)
            running.group = self
            running.tensor = first_tensor(args[0]) if args else None
            running.call = None
            running.op = op
        except BaseException as error:  # noqa: BLE001 - the fence, in place: one frame less for every call
            failsafe.stop_here(error, _forget, running, outer)
        work = None
        try:
            work = original(self, *args, **kwargs)
        finally:
            try:
                call = running.call
                if call is not None:
                    if work is None:
                        works.finish(call, words.NOT_RECORDED, 0)
                    else:
                        pending.add(work, call)
                running.op, running.group, running.tensor, running.reduce_op, running.call = outer
            except BaseException as error:  # noqa: BLE001 - the same
                failsafe.stop_here(error, _forget, running, outer)
        return work

    wrapper.__name__ = method
    wrapper.__qualname__ = f"ProcessGroup.{method}"
    wrapper.__doc__ = original.__doc__
    setattr(ProcessGroup, method, dynamo.untraced(wrapper))


def first_tensor(given: Any) -> Any:
    """The first tensor of a tensor, or of lists of tensors; what is not one where there is none."""
    while type(given) is list and given:
        given = given[0]
    return given


def _forget(running: Running, outer: tuple[Any, ...]) -> None:
    """The job's own exception came up in our code: the method is over."""
    call = running.call
    running.op, running.group, running.tensor, running.reduce_op, running.call = outer
    if call is not None and call is not outer[-1]:
        works.finish(call, words.NOT_RECORDED, 0)


def _reader() -> Callable[[tuple[Any, ...], dict[str, Any]], int]:
    """A function that gives the code of the reduction among a method's arguments."""
    import torch.distributed
    from torch.distributed import ReduceOp

    other = _REDUCTIONS["OTHER"]
    codes = {kind.value: _REDUCTIONS.get(name, other) for name, kind in ReduceOp.RedOpType.__members__.items()}
    names = ("AllreduceOptions", "AllreduceCoalescedOptions", "ReduceOptions", "ReduceScatterOptions")
    options = {getattr(torch.distributed, name) for name in names if hasattr(torch.distributed, name)}
    kinds = tuple(options)

    def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        if len(args) == 2 and type(args[1]) in options:  # what torch.distributed's own functions pass
            return codes[hash(args[1].reduceOp)]  # its hash is its value, at half the price of `.op.value`
        for value in (*reversed(args), *kwargs.values()):
            kind = type(value)
            if kind in options or isinstance(value, kinds):
                return codes[value.reduceOp.op.value]
            if kind is ReduceOp.RedOpType:  # ahead of the next: torch makes this an instance of ReduceOp too
                return codes[value.value]
            if isinstance(value, ReduceOp):
                return codes[value.op.value]
        return _REDUCTIONS["SUM"]  # the default of every one of these methods

    return read
