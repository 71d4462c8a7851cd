"""The one fence between roundk and the training job: an error of ours is counted, told once, and switches us off.

Whatever torch, Python's start or shutdown calls of ours goes through `guard`. What is not of ours passes: a signal
handler of the job's may raise while our code runs, and whoever waits for that exception must get it.
"""

from __future__ import annotations

import itertools
import os
import sys
import traceback
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

_Result = TypeVar("_Result")

errors = 0
"""Errors of ours in this process."""
_count = itertools.count()
_OURS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
"""Beginning of our modules' file names."""
_STARS = 0x04 | 0x08
"""CO_VARARGS and CO_VARKEYWORDS of `inspect`, whose import would cost the launcher a third of its start."""
_KNOWN = frozenset({"torch", "roundk", *sys.stdlib_module_names})
"""Where the exceptions are defined that our own calls can raise."""
_switches: list[Callable[[str], None]] = []


def on_error(switch_off: Callable[[str], None]) -> None:
    """Have a function called with the reason when an error of ours switches the recorder off."""
    _switches.append(switch_off)


def is_jobs(error: BaseException) -> bool:
    """Whether an exception that came out of our code is the job's own, raised by what interrupted us there.

    Python runs a signal handler or a trace function between any two instructions and hands it the frame that it
    interrupts: it is the one function that has its caller's frame among its arguments. A handler written in C, and an
    exception set from another thread (`PyThreadState_SetAsyncExc`), leave no frame; then the type tells.
    """
    if not isinstance(error, Exception):
        return True  # KeyboardInterrupt, SystemExit: we raise none
    trace, ours_only = error.__traceback__, True
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_OURS):
            ours_only = False
            if _interrupts(trace.tb_frame):
                return True
        trace = trace.tb_next
    return ours_only and type(error).__module__.partition(".")[0] not in _KNOWN


def _interrupts(frame: FrameType) -> bool:
    code, caller = frame.f_code, frame.f_back
    stars = (code.co_flags & _STARS).bit_count()
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + stars]
    given = [frame.f_locals.get(name) for name in names]
    given += [item for value in given if isinstance(value, tuple) for item in value]
    return caller is not None and any(value is caller for value in given)


def trip(error: BaseException) -> None:
    """Count an error; the first one is told on stderr and switches recording off."""
    global errors  # noqa: PLW0603 - one counter per process is the point
    errors += 1
    if next(_count):  # two threads may trip at once: one of them is first
        return
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    reason = f"{type(error).__name__}: {error}{where}"
    for switch_off in _switches:
        attempt(switch_off, reason)
    attempt(warn, f"recording is off in this process, training goes on: {reason}")  # stderr may be the job's own


def attempt(function: Callable[..., object], *args: object) -> None:
    """Call a function on the way to switching off: where that fails too, what it would have done is lost."""
    try:
        function(*args)
    except Exception as error:
        if is_jobs(error):
            raise


def warn(message: str) -> None:
    """One line on stderr, if there still is one."""
    try:
        sys.stderr.write(f"roundk: {message}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        return


RAISED = object()
"""Stands for the result of a call that raised."""


def stop_here(error: BaseException, interrupted: Callable[..., object] | None = None, *args: object) -> None:
    """Let an exception that came out of our code go no further; raise it again where it is the job's own.

    `interrupted(*args)` is told in that case.
    """
    if is_jobs(error):
        if interrupted is not None:
            attempt(interrupted, *args)
        raise error
    trip(error)


def guard(function: Callable[..., _Result]) -> Callable[..., _Result | None]:
    """The same function, giving None instead of raising an error of ours."""

    def guarded(*args: Any) -> _Result | None:
        try:
            return function(*args)
        except Exception as error:
            if is_jobs(error):
                raise
            trip(error)
            return None

    return guarded
