"""Calls that torch does not dispatch and that hang all the same: groups made and destroyed, and the end of coalescing.

They become rows like the collectives', in control groups of their own, whose members are the ranks that must make the
call: the numbers of a real group stay the count of its dispatched collectives. What is wrapped keeps its name, its
signature and its errors; every module that bound the function by name at import gets the wrapped one.

Source: torch/distributed/distributed_c10d.py, torch 2.6 to 2.14: `new_group`, DeviceMesh and the compiler all go
through `_new_group_with_tag`.
"""

from __future__ import annotations

import functools
import inspect
import operator
import os
import sys
import time
import types
import urllib.parse
from typing import TYPE_CHECKING, Any, NamedTuple

from roundk.hooks import dynamo, failsafe, groups, works
from roundk.tracer import words

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from roundk.hooks.process import Process
    from roundk.hooks.recorder import Recorder
    from roundk.hooks.works import Call

_Arguments = dict[str, Any]
_METHOD = inspect.Signature(
    [
        inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY),
        inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL),
        inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD),
    ]
)
"""Of a method written in C++, whose own signature Python cannot read."""


class _Entered(NamedTuple):
    """A call that has begun: who records it, its row (None: lost), and what its end needs to know of its start."""

    recorder: Recorder
    call: Call | None
    subject: Any = None


def install(process: Process) -> None:
    """Record the calls of this process that are not dispatched."""
    from torch.distributed import ProcessGroup
    from torch.distributed import distributed_c10d as c10d

    making = _Making(process)
    ending = _Ending(process)
    coalescing = _Coalescing(process)
    _wrap(c10d, "init_process_group", making.init_entered, making.init_left)
    _wrap(c10d, "_new_group_with_tag", making.new_entered, making.left)
    _wrap(c10d, "split_group", making.split_entered, making.left)
    _wrap(c10d, "destroy_process_group", ending.destroy_entered, ending.left)
    _wrap(c10d, "_abort_process_group", ending.abort_entered, ending.left)
    _wrap_method(ProcessGroup, "_start_coalescing", coalescing.start_entered, coalescing.started)
    _wrap_method(ProcessGroup, "_end_coalescing", coalescing.end_entered, coalescing.ended)


class _Making:
    """init_process_group, new_group, split_group."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def init_entered(self, arguments: _Arguments) -> int | _Entered:
        """The row, where the arguments or the environment say who this is; else the time, for a row afterwards."""
        now = time.time_ns()
        place = placed(arguments, os.environ)
        recorder = self._process.open_as(*place) if place else None
        return _enter(recorder, "init_process_group", range(place[1]), now) if recorder and place else now

    def init_left(self, entered: int | _Entered, _: Any, raised: bool) -> None:
        from torch.distributed import distributed_c10d as c10d

        if isinstance(entered, int) and not raised:
            recorder = self._process.current()
            if recorder is None:
                return
            entered = _enter(recorder, "init_process_group", range(c10d.get_world_size()), entered)
        if isinstance(entered, _Entered):
            self.left(entered, c10d.GroupMember.WORLD, raised)

    def new_entered(self, arguments: _Arguments) -> _Entered | None:
        import torch.distributed as dist

        recorder = self._process.current()
        if recorder is None or not dist.is_initialized():
            return None
        callers: Sequence[int] = range(dist.get_world_size())
        if arguments.get("use_local_synchronization"):
            callers = sorted(_numbers(arguments["ranks"])) or callers
            if dist.get_rank() not in callers:
                return None  # it returns at once, and nobody waits for it
        return _enter(recorder, "new_group", callers)

    def split_entered(self, arguments: _Arguments) -> _Entered | None:
        from torch.distributed import distributed_c10d as c10d

        recorder = self._process.current()
        callers = groups.members(arguments["parent_pg"] or c10d.GroupMember.WORLD)
        return _enter(recorder, "split_group", callers) if recorder is not None and callers else None

    def left(self, entered: _Entered, made: Any, raised: bool) -> None:
        from torch.distributed import ProcessGroup

        _leave(entered, raised)
        if not raised and isinstance(made, ProcessGroup):
            entered.recorder.groups.register(made)


class _Ending:
    """destroy_process_group, and the abort that recovering jobs use in its place (not a row: it waits for nobody)."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def destroy_entered(self, arguments: _Arguments) -> _Entered | None:
        found = self.abort_entered(arguments)
        if found is None:
            return None
        from torch.distributed import distributed_c10d as c10d

        callers = groups.members(arguments["group"] or c10d.GroupMember.WORLD)
        entered = _enter(found.recorder, "destroy_process_group", callers)
        return _Entered(found.recorder, entered.call, found.subject)

    def abort_entered(self, arguments: _Arguments) -> _Entered | None:
        from torch.distributed import distributed_c10d as c10d

        recorder, group = self._process.recorder, arguments["group"]
        if recorder is None or c10d.GroupMember.WORLD is None:
            return None
        if group is None or group == c10d.GroupMember.WORLD:
            return _Entered(recorder, None)
        return _Entered(recorder, None, str(group.group_name)) if groups.members(group) else None

    def left(self, entered: _Entered, _: Any, raised: bool) -> None:
        _leave(entered, raised)
        if not raised:
            entered.recorder.groups.destroyed(entered.subject)


class _Coalescing:
    """`_start_coalescing` and `_end_coalescing` of a process group: what lies between is one collective."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def start_entered(self, arguments: _Arguments) -> groups.Group | None:
        recorder = self._process.current()
        return None if recorder is None else recorder.groups.register(arguments["self"])

    def started(self, group: groups.Group, _: Any, raised: bool) -> None:
        if not raised:
            group.coalesce()

    def end_entered(self, arguments: _Arguments) -> _Entered | None:
        recorder = self._process.current()
        if recorder is None:
            return None
        pg = arguments["self"]
        group = recorder.groups.register(pg)
        # Named after its group: the ends of two groups with the same members need not come in one order.
        return _Entered(
            recorder,
            _enter(recorder, "coalescing_end", group.ranks, name=f"{pg.group_name}/coalescing").call,
            group,
        )

    def ended(self, entered: _Entered, work: Any, raised: bool) -> None:
        for call in entered.subject.coalesced():
            if raised:
                works.finish(call, words.FAILED, time.time_ns())
            else:
                entered.recorder.device.watch(call, work)
        _leave(entered, raised)


def placed(arguments: Mapping[str, Any], environment: Mapping[str, str]) -> tuple[int, int] | None:
    """Rank and world size that an init_process_group will have, as far as its arguments and the environment tell.

    Source: torch/distributed/rendezvous.py, torch 2.6 to 2.14: an argument wins over the URL's query, and that over
    RANK and WORLD_SIZE, which only `env://` reads.
    """
    if str(arguments.get("backend")).lower() == "mpi":  # MPI's own runtime numbers the ranks
        return None
    url = urllib.parse.urlsplit(str(arguments.get("init_method") or "env://"))
    query = urllib.parse.parse_qs(url.query)
    told: list[int] = []
    for name in ("rank", "world_size"):
        given = arguments.get(name)
        values = [str(given)] if given is not None and given != -1 else query.get(name, [])
        if not values and url.scheme == "env" and arguments.get("store") is None:
            values = [environment.get(name.upper(), "")]
        if not values or not values[0].isdecimal():
            return None
        told.append(int(values[0]))
    return (told[0], told[1]) if told[0] < told[1] else None


def _numbers(ranks: Any) -> list[int]:
    """The ranks of a list; empty where it is none (torch says so itself) or can be read only once."""
    if not isinstance(ranks, list | tuple | range | set | frozenset):
        return []
    try:
        return [operator.index(rank) for rank in ranks]
    except TypeError:
        return []


def _enter(
    recorder: Recorder, op: str, callers: Sequence[int], enter_ns: int | None = None, *, name: str = ""
) -> _Entered:
    group = recorder.groups.control(callers, name)
    return _Entered(recorder, recorder.enter_pseudo(words.OPS.index(op), group, enter_ns or time.time_ns()))


def _leave(entered: _Entered, raised: bool) -> None:
    if entered.call is not None:
        entered.recorder.leave_pseudo(entered.call, raised=raised)


def _wrap(module: Any, name: str, entered: Callable[[_Arguments], Any], left: Callable[..., None]) -> None:
    """Wrap a function of torch wherever it is bound by its name; one that this torch lacks is left out."""
    original = getattr(module, name, None)
    if original is None:
        return
    wrapped = _around(original, inspect.signature(original), entered, left)
    for holder in list(sys.modules.values()):
        if isinstance(holder, types.ModuleType) and vars(holder).get(name) is original:
            vars(holder)[name] = wrapped


def _wrap_method(kind: Any, name: str, entered: Callable[[_Arguments], Any], left: Callable[..., None]) -> None:
    """Wrap a method of a class of torch that is written in C++."""
    original = getattr(kind, name, None)
    if original is not None:
        setattr(kind, name, _around(original, _METHOD, entered, left))


def _around(
    original: Any, signature: inspect.Signature, entered: Callable[[_Arguments], Any], left: Callable[..., None]
) -> Any:
    """The function with `entered(its arguments)` ahead and, where that gave something, `left` behind it."""

    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            if failsafe.is_jobs(error):
                raise
            return None  # a wrong call: torch says so itself
        bound.apply_defaults()
        return entered(bound.arguments)

    begin_safely, end_safely = failsafe.guard(begin), failsafe.guard(left)

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        began = begin_safely(args, kwargs)
        result, raised = None, True
        try:
            result = original(*args, **kwargs)
            raised = False
        finally:
            if began is not None:
                end_safely(began, result, raised)
        return result

    return dynamo.untraced(wrapper)
