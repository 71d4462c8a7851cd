"""When a call ends: by `Work.wait` returning, or by asking `Work.is_completed()` now and then.

Python callbacks on a Work's future are not used: they abort the process when it exits with unfinished works. A Work
that is asked is held (its tensors with it) until it ends; one whose end only its own `wait` can see is held for one
period, so that the caller gets the same Python object, and watched weakly from then on.
"""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from roundk.hooks import dynamo, failsafe
from roundk.tracer import words

if TYPE_CHECKING:
    from roundk.tracer.ring import Columns

_MOST_HELD = 4_096
"""Works held at a time: a job that leaves more in flight loses the ends of the oldest, not its memory."""


Call: TypeAlias = "tuple[Columns, int, Any]"
"""A recorded call: its segment's columns, its row there, what tells its end (one of the next, or a `device.Mark`)."""
UNSEEN: Final = 0
"""Nothing does."""
WAITED: Final = 1
"""Only `Work.wait` coming back."""
ASKED: Final = 2
"""`Work.wait` coming back, or asking the Work."""


def finish(call: Call, outcome: int, end_ns: int) -> None:
    """Store how and when a call ended, once."""
    columns, row, _ = call
    if not columns.outcome[row]:
        columns.end_ns[row] = end_ns
        columns.outcome[row] = outcome


class Pending:
    """The calls of this process whose end is still to come."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[Any, Call]] = {}
        self._watched: dict[int, tuple[Any, Call]] = {}
        self._looked_at: set[int] = set()
        self._closed = False
        self._of_parent: dict[int, tuple[Any, Call]] = {}

    def in_child(self) -> None:
        """In a forked child: forget all of them, but destroy no Work: its device did not come along."""
        self._of_parent, self._held = self._held, {}
        self._watched.clear()

    def close(self) -> None:
        """Let go of all of them, and of those to come: nobody will ask for their end."""
        self._closed = True
        for awaited in (self._held, self._watched):
            for key in list(awaited):
                entry = awaited.pop(key, None)
                if entry is not None:
                    finish(entry[1], words.NOT_RECORDED, 0)

    def add(self, work: Any, call: Call) -> None:
        """Await the end of a call."""
        if self._held.setdefault(id(work), (work, call))[1] is not call:
            finish(call, words.NOT_RECORDED, 0)  # one Work for two calls: it is the other one's
        if self._closed:
            self.close()

    def ended(self, work: Any, outcome: int) -> None:
        """Note that `work.wait()` came back."""
        now = time.time_ns()
        held = self._held.pop(id(work), None)
        if held is not None:
            columns, row, _ = held[1]
            if not columns.outcome[row]:
                columns.end_ns[row] = now
                columns.outcome[row] = outcome
            return
        watched = self._watched.get(id(work))
        if watched is not None and watched[0]() is work:
            del self._watched[id(work)]
            finish(watched[1], outcome, now)

    def ask(self) -> None:
        """Ask the held works whether they have ended, and let go of those that cannot tell."""
        looked_at, self._looked_at = self._looked_at, set()
        for key, (work, call) in list(self._held.items()):
            if call[2] == WAITED:
                if key not in looked_at:
                    self._looked_at.add(key)
                    continue
                self._watch(key, work, call)
                self._held.pop(key, None)
            elif work.is_completed():
                finish(call, _outcome(work), time.time_ns())
                self._held.pop(key, None)
        while len(self._held) > _MOST_HELD:
            key = next(iter(self._held))
            entry = self._held.pop(key, None)
            if entry is not None:
                finish(entry[1], words.NOT_RECORDED, 0)

    def _watch(self, key: int, work: Any, call: Call) -> None:
        def gone(_: Any) -> None:
            self._watched.pop(key, None)
            finish(call, words.NOT_RECORDED, 0)

        self._watched[key] = (weakref.ref(work, failsafe.guard(gone)), call)


def _outcome(work: Any) -> int:
    """How a completed Work ended. Its future tells; `is_success()` and `exception()` warn on stderr when called."""
    try:
        work.get_future().value()
    except RuntimeError:
        return words.FAILED
    return words.COMPLETED


def patch_wait(pending: Pending) -> None:
    """Have `torch.distributed.Work.wait` tell `pending` when and how it comes back."""
    import torch.distributed as dist

    original = dist.Work.wait
    ended = pending.ended

    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        outcome = words.FAILED
        try:
            result = original(self, *args, **kwargs)
            outcome = words.COMPLETED
        finally:
            try:
                # A wait of the caller's own patience that ran out is not the end of the call.
                if outcome == words.COMPLETED or not (args or kwargs) or self.is_completed():
                    ended(self, outcome)
            except BaseException as error:  # noqa: BLE001 - the fence, in place: one frame less for every call
                failsafe.stop_here(error)
        return result

    wait.__doc__ = original.__doc__
    dist.Work.wait = dynamo.untraced(wait)
