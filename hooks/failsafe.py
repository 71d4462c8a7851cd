"""The one fence between roundk and the training job: an error of ours is counted, told once, and switches us off.

Whatever torch, Python's start or shutdown calls of ours goes through `guard`. KeyboardInterrupt and SystemExit pass:
they belong to the user's signal handlers.
"""

from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_Result = TypeVar("_Result")
_Entered = TypeVar("_Entered")

errors = 0
"""Errors of ours in this process."""
_switches: list[Callable[[str], None]] = []


def on_error(switch_off: Callable[[str], None]) -> None:
    """Have a function called with the reason when an error of ours switches the recorder off."""
    _switches.append(switch_off)


def trip(error: BaseException) -> None:
    """Count an error; the first one is told on stderr and switches recording off."""
    global errors  # noqa: PLW0603 - one counter per process is the point
    errors += 1
    if errors > 1:
        return
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    reason = f"{type(error).__name__}: {error}{where}"
    for switch_off in _switches:
        try:
            switch_off(reason)
        except Exception:
            continue  # the switch failed too: what it would have written is lost, training is not
    warn(f"recording is off in this process, training goes on: {reason}")


def warn(message: str) -> None:
    """One line on stderr, if there still is one."""
    try:
        sys.stderr.write(f"roundk: {message}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        return


RAISED = object()
"""Stands for the result of a call that raised."""


def around(
    before: Callable[[tuple[Any, ...]], _Entered | None],
    call: Callable[..., Any],
    after: Callable[[_Entered, Any], None],
    key: Any,
) -> Callable[..., Any]:
    """A kernel: `call(keyset less key, *args)`, after `before(args)` and ahead of `after(what before gave, result)`.

    An error of `before` or `after` is ours and stays here; one of `call` is the user's and passes, `after` being told
    `RAISED`. Where `before` gives None, `after` is not run. One function, since every collective goes through it.
    """

    def fenced(keyset: Any, *args: Any) -> Any:
        try:
            entered = before(args)
        except Exception as error:
            trip(error)
            entered = None
        if entered is None:
            return call(keyset.remove(key), *args)
        result = RAISED
        try:
            result = call(keyset.remove(key), *args)
        finally:
            try:
                after(entered, result)
            except Exception as error:
                trip(error)
        return result

    return fenced


def then(call: Callable[..., Any], told: Callable[[Any, int], None], returned: int, raised: int) -> Callable[..., Any]:
    """A method: `call`, then `told(self, returned or raised)`, an error of which is ours and stays here."""

    def fenced(self: Any, *args: Any, **kwargs: Any) -> Any:
        how = raised
        try:
            result = call(self, *args, **kwargs)
            how = returned
        finally:
            try:
                told(self, how)
            except Exception as error:
                trip(error)
        return result

    return fenced


def guard(function: Callable[..., _Result]) -> Callable[..., _Result | None]:
    """The same function, giving None instead of raising an error of ours."""

    def guarded(*args: Any) -> _Result | None:
        try:
            return function(*args)
        except Exception as error:
            trip(error)
            return None

    return guarded
