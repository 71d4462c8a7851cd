"""What a command says when it is ended from outside: by Ctrl-C, by SIGTERM, or as its terminal is closed."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Final

import click

_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)
_SHELL: Final = 128
"""A shell says of a process that a signal ended: 128 and the signal's number."""


class Ended(KeyboardInterrupt):
    """A signal asks for the end; on its way, what was started is ended."""


@dataclass
class Told:
    """What is said at the end."""

    say: Callable[[], str]


@contextlib.contextmanager
def told(text: str) -> Iterator[Told]:
    """Within it, Ctrl-C, SIGTERM and SIGHUP end the command in order, with a sentence and the shell's exit code.

    Args:
        text: What to say, until something else is set.
    """
    one = Told(lambda: text)
    came = [signal.SIGINT]

    def end(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)  # a second one ends it at once
        came[0] = signal.Signals(number)
        raise Ended

    before = {}
    if threading.current_thread() is threading.main_thread():
        # One that is ignored stays so: `nohup`.
        before = {name: signal.signal(name, end) for name in _SIGNALS if signal.getsignal(name) is signal.SIG_DFL}
    try:
        yield one
    except KeyboardInterrupt:
        why = "interrupted" if came[0] == signal.SIGINT else f"ended by {came[0].name}"
        with contextlib.suppress(OSError):  # the terminal may be gone
            click.echo(f"roundk: {why}; {one.say()}", err=True)
        sys.exit(_SHELL + came[0])
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
