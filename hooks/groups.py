"""Process groups as the recorder knows them: their members, and the counters of their calls.

No reference to a process group is kept: destroying one must free it. A group is known by its name until it is
destroyed; names start anew after `destroy_process_group()`, so an epoch tells the old from the new.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from roundk.tracer.side import SideFile


class Group:
    """One process group of this process.

    Attributes:
        id: Its number in the side file.
        ranks: Global ranks of its members in group order; empty where torch does not tell.
        backend: Name of its backend, '' where torch does not tell.
        next_seq: Gives the number of its next collective, from 1, to any thread.
    """

    __slots__ = ("_pairs", "backend", "id", "next_seq", "ranks")

    def __init__(self, number: int, ranks: Sequence[int], backend: str) -> None:
        self.id = number
        self.ranks = tuple(ranks)
        self.backend = backend
        self.next_seq: Callable[[], int] = itertools.count(1).__next__
        self._pairs: dict[tuple[str, int], Callable[[], int]] = {}

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
        self._made = 0
        self._epoch = 0
        self._new: list[weakref.ref[Any]] = []
        self.shortest_timeout_s = float("inf")

    def register(self, pg: Any) -> Group:
        """The group of a torch process group, made known on first sight."""
        with self._lock:
            name: str = pg.group_name
            known = self.by_name.get(name)
            if known is not None:
                return known
            self._made += 1
            ranks, backend = _members(pg), _backend(pg)
            self.shortest_timeout_s = min(self.shortest_timeout_s, _timeout_s(pg))
            self._side.append(
                {
                    "kind": "group",
                    "id": self._made,
                    "name": name,
                    "desc": pg.group_desc,
                    "backend": backend,
                    "epoch": self._epoch,
                    "size": pg.size(),
                    "ranks": runs(ranks),
                }
            )
            group = self.by_name[name] = Group(self._made, ranks, backend)
            return group

    def created(self, pg: Any) -> None:
        """Remember a group just made, which torch does not list yet."""
        self._new.append(weakref.ref(pg))

    def register_created(self) -> None:
        """Make known the groups remembered by `created` that torch lists by now."""
        for reference in list(self._new):
            pg = reference()
            if pg is None or _members(pg):
                self._new.remove(reference)
                if pg is not None:
                    self.register(pg)

    def destroyed(self, name: str | None) -> None:
        """Forget a destroyed group; None: all of them."""
        with self._lock:
            if name is None:
                self.by_name.clear()
                self._epoch += 1
            else:
                self.by_name.pop(name, None)


def _members(pg: Any) -> list[int]:
    import torch.distributed as dist

    try:
        return list(dist.get_process_group_ranks(pg))
    except (KeyError, ValueError, RuntimeError):
        return []


def _backend(pg: Any) -> str:
    import torch.distributed as dist

    try:
        return str(dist.get_backend(pg))
    except (KeyError, ValueError, RuntimeError, AssertionError):
        return ""


def _timeout_s(pg: Any) -> float:
    """The group's own timeout; infinite where torch does not tell."""
    try:
        return float(min(pg._get_backend(device).options._timeout for device in pg._device_types).total_seconds())
    except (AttributeError, RuntimeError, ValueError):
        return float("inf")


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
