"""Process groups as the recorder knows them: their members, and the counters of their calls.

No reference to a process group is kept: destroying one must free it. A group is known by its name until it is
destroyed; names start anew after `destroy_process_group()`, so an epoch tells the old from the new. Beside torch's own
groups there are control groups: the ranks that must make a call that is not dispatched.
"""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from roundk.hooks import failsafe
from roundk.tracer import words

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from roundk.hooks.works import Call
    from roundk.tracer.side import SideFile

_Told = TypeVar("_Told")


class Group:
    """One process group of this process.

    Attributes:
        id: Its number in the side file.
        ranks: Global ranks of its members in group order; empty where torch does not tell.
        is_gloo_on_cpu: Calls with CPU tensors go to gloo, or torch does not tell to what.
        coalescing: Calls between the start and the end of coalescing that end with it; None outside of that.
        next_seq: Gives the number of its next collective, from 1, to any thread.
    """

    __slots__ = ("_count", "_pairs", "coalescing", "id", "is_gloo_on_cpu", "next_seq", "ranks")

    def __init__(self, number: int, ranks: Sequence[int], *, is_gloo_on_cpu: bool) -> None:
        self.id = number
        self.ranks = tuple(ranks)
        self.is_gloo_on_cpu = is_gloo_on_cpu
        self._count: Callable[[], int] = itertools.count(1).__next__
        self.next_seq = self._count
        self._pairs: dict[tuple[str, int], Callable[[], int]] = {}
        self.coalescing: list[Call] | None = None

    def coalesce(self) -> None:
        """From here to `coalesced` the collectives share one number, taken by the first of them."""
        numbers: list[int] = []

        def shared() -> int:
            if not numbers:
                numbers.append(self._count())
            return numbers[0]

        self.next_seq = shared
        self.coalescing = []

    def coalesced(self) -> list[Call]:
        """Number every collective again; give the calls in between whose end is that of the coalescing."""
        self.next_seq = self._count
        calls, self.coalescing = self.coalescing, None
        return calls or []

    def next_of_pair(self, op: str, peer: int) -> int:
        """Number of the next p2p call to or from a peer (1 + global rank; 0: any source), from 1."""
        count = self._pairs.get((op, peer))
        if count is None:
            count = self._pairs.setdefault((op, peer), itertools.count(1).__next__)
        return count()

    def peer(self, group_rank: int) -> int:
        """1 + global rank of a member; 0 where the members are not known."""
        return self.ranks[group_rank] + 1 if 0 <= group_rank < len(self.ranks) else 0


class Groups:
    """The process groups of one process by name."""

    def __init__(self, side: SideFile) -> None:
        self.by_name: dict[str, Group] = {}
        self._side = side
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        """Each is given once, whatever interrupts: a signal handler that makes a group too, another thread."""
        self._epoch = 0
        self._control: dict[tuple[str, tuple[int, ...]], Group] = {}
        self.shortest_timeout_s = float("inf")

    def register(self, pg: Any) -> Group:
        """The group of a torch process group, made known on first sight."""
        with self._lock:
            name: str = pg.group_name
            at = name or f"made by hand: {id(pg)}"
            known = self.by_name.get(at)
            if known is None:
                ranks = members(pg)
                self.shortest_timeout_s = min(self.shortest_timeout_s, _timeout_s(pg))
                known = self.by_name[at] = self._define(
                    name, pg.group_desc, _backend(pg), ranks, pg.size(), is_gloo_on_cpu=_is_gloo_on_cpu(pg)
                )
            return known

    def control(self, callers: Sequence[int], name: str = "") -> Group:
        """The control group of the ranks that must make a call that is not dispatched."""
        with self._lock:
            key = (name, tuple(callers))
            known = self._control.get(key)
            if known is None:
                known = self._control[key] = self._define(name, words.CONTROL, "", key[1], len(key[1]))
            return known

    def _define(
        self, name: str, desc: str, backend: str, ranks: Sequence[int], size: int, *, is_gloo_on_cpu: bool = False
    ) -> Group:
        number = next(self._numbers)
        self._side.append(
            {
                "kind": "group",
                "id": number,
                "name": name,
                "desc": desc,
                "backend": backend,
                "epoch": self._epoch,
                "size": size,
                "ranks": runs(ranks),
            }
        )
        return Group(number, ranks, is_gloo_on_cpu=is_gloo_on_cpu)

    def destroyed(self, name: str | None) -> None:
        """Forget a destroyed group; None: all of them."""
        with self._lock:
            if name is None:
                self.by_name.clear()
                self._control.clear()
                self._epoch += 1
            else:
                self.by_name.pop(name, None)


def members(pg: Any) -> list[int]:
    """Global ranks of a torch process group in group order; empty where torch does not tell."""
    import torch.distributed as dist

    errors = (KeyError, ValueError, RuntimeError, TypeError, AttributeError)  # also: it is none
    return _told(lambda: list(dist.get_process_group_ranks(pg)), errors, [])


def _backend(pg: Any) -> str:
    import torch.distributed as dist

    return _told(lambda: str(dist.get_backend(pg)), (KeyError, ValueError, RuntimeError, AssertionError), "")


def _is_gloo_on_cpu(pg: Any) -> bool:
    """By the backend itself: the group's name for it may be `cpu:gloo,cuda:nccl`, or `undefined`."""
    import torch

    def read() -> bool:
        return str(pg._get_backend(torch.device("cpu")).name()).lower() == "gloo"

    return _told(read, (AttributeError, RuntimeError, ValueError), True)


def _timeout_s(pg: Any) -> float:
    """The group's own timeout; infinite where torch does not tell."""

    def read() -> float:
        return float(min(pg._get_backend(device).options._timeout for device in pg._device_types).total_seconds())

    return _told(read, (AttributeError, RuntimeError, ValueError), float("inf"))


def _told(read: Callable[[], _Told], errors: tuple[type[Exception], ...], otherwise: _Told) -> _Told:
    """What torch tells of a group; `otherwise` where it raises one of these errors of its own."""
    try:
        return read()
    except errors as error:
        if failsafe.is_jobs(error):
            raise
        return otherwise


def runs(ranks: Sequence[int]) -> list[list[int]]:
    """Ranks as arithmetic runs `[first, count, stride]`: a world of 16,384 is one run, not 16,384 numbers.

    Order is kept. `[r for first, count, stride in runs(ranks) for r in range(first, first + count * stride, stride)]`
    gives the ranks back (a run of one has stride 1).
    """
    found: list[list[int]] = []
    for rank in ranks:
        if found:
            first, count, stride = found[-1]
            if count == 1 and rank > first:
                found[-1] = [first, 2, rank - first]
                continue
            if count > 1 and rank == first + count * stride:
                found[-1][1] += 1
                continue
        found.append([rank, 1, 1])
    return found
