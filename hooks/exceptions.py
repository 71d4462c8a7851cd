"""Exceptions that nobody caught: type, message and frame, noted before the process ends by them.

A process that has no files yet, as it failed before its first process group, notes them by `early`.
"""

from __future__ import annotations

import sys
import threading
import traceback
from functools import wraps
from typing import TYPE_CHECKING, Any

from roundk.hooks import early, failsafe, importhook, sites

if TYPE_CHECKING:
    from types import TracebackType

    from roundk.hooks.process import Process

_MOST_MESSAGE = 500
"""Characters kept of an exception's message."""
_SPAWN = "torch.multiprocessing.spawn"


def install(process: Process) -> None:
    """Note uncaught exceptions of this process: of the main thread, of others, of `torch.multiprocessing` workers."""
    notes = _Notes(process)
    _hook_main_thread(notes)
    _hook_threads(notes)
    importhook.when_imported(_SPAWN, failsafe.guard(lambda: _hook_spawned(notes)))


class _Notes:
    def __init__(self, process: Process) -> None:
        self._process = process

    def uncaught(self, value: BaseException) -> None:
        """An exception that ends the process."""
        self._note("exception", **_describe(value))

    def in_thread(self, value: BaseException, thread: str) -> None:
        """An exception that ends a thread; the process lives on."""
        self._note("thread_exception", thread=thread, **_describe(value))

    def _note(self, kind: str, **fields: Any) -> None:
        recorder = self._process.recorder
        if recorder is not None:
            recorder.note(kind, **fields)
        else:
            early.note(self._process.config.run, kind, **fields)


def _hook_main_thread(notes: _Notes) -> None:
    previous = sys.excepthook
    tell = failsafe.guard(notes.uncaught)

    def excepthook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        tell(value)
        previous(kind, value, trace)

    sys.excepthook = excepthook


def _hook_threads(notes: _Notes) -> None:
    previous = threading.excepthook

    def told(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
            notes.in_thread(args.exc_value, args.thread.name if args.thread else "?")

    tell = failsafe.guard(told)

    def excepthook(args: threading.ExceptHookArgs) -> None:
        tell(args)
        previous(args)

    threading.excepthook = excepthook


def _hook_spawned(notes: _Notes) -> None:
    """`mp.spawn` catches its worker's exception and leaves with `sys.exit(1)`, which has it as its context.

    Source: torch/multiprocessing/spawn.py `_wrap`, torch 2.6 to 2.14.
    """
    module = sys.modules[_SPAWN]
    original = getattr(module, "_wrap", None)
    if original is None:
        return
    tell = failsafe.guard(notes.uncaught)

    @wraps(original)
    def _wrap(*args: Any, **kwargs: Any) -> None:
        try:
            original(*args, **kwargs)
        except SystemExit as leaving:
            if isinstance(leaving.__context__, Exception):
                tell(leaving.__context__)
            raise

    module._wrap = _wrap  # type: ignore[attr-defined]


def _describe(value: BaseException) -> dict[str, Any]:
    foreign = sites.foreign_folders()
    raised = [(frame.filename, frame.lineno, frame.name) for frame in traceback.extract_tb(value.__traceback__)]
    frames = [frame for frame in raised if not frame[0].startswith(foreign[1:3])]  # ours
    users = [frame for frame in frames if sites.is_users_file(frame[0], foreign)] or frames
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return {
        "type": name,
        "message": _message(value)[:_MOST_MESSAGE],
        "site": f"{users[-1][0]}:{users[-1][1]}" if users else None,
        "stack": [f"{file}:{line} {function}" for file, line, function in reversed(frames)],
    }


def _message(value: BaseException) -> str:
    """What the exception says, as a traceback shows it: that survives an exception whose `str` raises."""
    for line in traceback.format_exception_only(value):
        kind, _, message = line.partition(":")
        if kind.endswith(type(value).__qualname__):
            return message.strip()
    return ""
