"""The recorder's life in one process: opened with the first process group, gone in a forked child, closed at exit."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Any

from roundk.hooks import failsafe, kernels, works
from roundk.hooks.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from roundk.hooks.config import Config

_MOST_MESSAGE = 500
"""Characters kept of an exception's message."""


class _Process:
    """Holds this process's recorder; there is one of these."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.recorder: Recorder | None = None
        self._lock = threading.Lock()

    def open(self) -> Recorder | None:
        """The recorder, opened now if torch has a default group; None where it has none, or after an error of ours."""
        import torch.distributed as dist

        if failsafe.errors or not dist.is_initialized():
            return None
        with self._lock:
            if self.recorder is None:
                self.recorder = Recorder(self.config, dist.get_rank(), dist.get_world_size())
            return self.recorder

    def current(self) -> Recorder | None:
        return self.recorder or self.open()

    def ended(self, work: Any, outcome: int) -> None:
        if self.recorder is not None:
            self.recorder.pending.ended(work, outcome)

    def switch_off(self, reason: str) -> None:
        recorder, self.recorder = self.recorder, None
        if recorder is not None:
            recorder.note("off", why=reason)

    def forked(self) -> None:
        """In a forked child: the parent's files are the parent's, and its thread did not come along."""
        recorder, self.recorder = self.recorder, None
        self._lock = threading.Lock()
        if recorder is not None and recorder.stacks is not None:
            recorder.stacks.in_child()

    def before_fork(self) -> None:
        if self.recorder is not None and self.recorder.stacks is not None:
            self.recorder.stacks.before_fork()

    def close(self) -> None:
        recorder, self.recorder = self.recorder, None
        if recorder is not None:
            recorder.close()


def install(config: Config) -> None:
    """Hook torch.distributed, the optimizers, uncaught exceptions, fork and exit of this process."""
    process = _Process(config)
    failsafe.on_error(process.switch_off)
    kernels.install(process.current)
    works.patch_wait(process.ended)
    _hook_groups(process)
    _hook_steps(process)
    _hook_exceptions(process)
    os.register_at_fork(before=failsafe.guard(process.before_fork), after_in_child=failsafe.guard(process.forked))
    atexit.register(failsafe.guard(process.close))


def _hook_groups(process: _Process) -> None:
    from torch.distributed import distributed_c10d as c10d

    def made(result: Any) -> None:
        if process.recorder is not None and isinstance(result, tuple) and isinstance(result[0], c10d.ProcessGroup):
            process.recorder.groups.created(result[0])

    def initialized(_: Any) -> None:
        recorder = process.open()
        if recorder is not None and c10d.GroupMember.WORLD is not None:
            recorder.groups.register(c10d.GroupMember.WORLD)

    _call_after(c10d, "_new_process_group_helper", made)
    _call_after(c10d, "init_process_group", initialized)
    _hook_destroy(process, c10d)


def _hook_destroy(process: _Process, c10d: Any) -> None:
    original = c10d.destroy_process_group

    def name_of(group: Any) -> str | None:
        return None if group is None or group == c10d.GroupMember.WORLD else str(group.group_name)

    def forget(group: Any) -> None:
        if process.recorder is not None:
            process.recorder.groups.destroyed(name_of(group))

    forget_group = failsafe.guard(forget)

    def destroy_process_group(group: Any = None) -> None:
        forget_group(group)
        original(group)

    _replace(c10d, "destroy_process_group", original, destroy_process_group)


def _call_after(module: Any, name: str, told: Callable[[Any], None]) -> None:
    """Have a function of torch tell its result."""
    original = getattr(module, name)
    tell = failsafe.guard(told)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        tell(result)
        return result

    _replace(module, name, original, wrapper)


def _replace(module: Any, name: str, original: Any, wrapper: Any) -> None:
    import torch.distributed as dist

    wrapper.__name__, wrapper.__doc__, wrapper.__module__ = name, original.__doc__, original.__module__
    wrapper.__wrapped__ = original
    setattr(module, name, wrapper)
    if getattr(dist, name, None) is original:
        setattr(dist, name, wrapper)


def _hook_steps(process: _Process) -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook

    def stepped(*_: Any) -> None:
        if process.recorder is not None:
            process.recorder.step += 1

    register_optimizer_step_post_hook(failsafe.guard(stepped))


def _hook_exceptions(process: _Process) -> None:
    previous = sys.excepthook

    def told(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        if process.recorder is not None and issubclass(kind, Exception):
            process.recorder.note("exception", **_describe(kind, value, trace))

    tell = failsafe.guard(told)

    def excepthook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        tell(kind, value, trace)
        previous(kind, value, trace)

    sys.excepthook = excepthook


def _describe(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> dict[str, Any]:
    import torch

    torch_folder = os.path.dirname(torch.__file__)
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    raised = [(frame.filename, frame.lineno, frame.name) for frame in traceback.extract_tb(trace)]
    frames = [frame for frame in raised if not frame[0].startswith(ours)]
    users = [frame for frame in frames if not frame[0].startswith((torch_folder, "<frozen "))] or frames
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return {
        "type": name,
        "message": str(value)[:_MOST_MESSAGE],
        "site": f"{users[-1][0]}:{users[-1][1]}" if users else None,
        "stack": [f"{file}:{line} {function}" for file, line, function in reversed(frames)],
    }
