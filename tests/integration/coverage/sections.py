"""What is run, section by section, and what torch's Flight Recorder is known to miscount of it on gloo.

A section is a function without arguments; every rank runs all of them in order. Small tensors, small models: what
counts is who issues a collective and how, not how much it moves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch.distributed as dist


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of the workload.

    Attributes:
        run: Issues the calls.
        unrecorded: Calls that the Flight Recorder does not record on gloo: p2p, monitored_barrier, what gloo refuses.
        surplus: Entries that it makes beyond one per call: on gloo a reduce_scatter is made of other collectives.
        below: Calls made on the backend itself, below the dispatcher: roundk does not see them, as its docs say.
        pseudo: Calls of a rank that are not dispatched, in order.
    """

    run: Callable[[], None]
    unrecorded: Callable[[int, int], int]
    surplus: Callable[[int, int], int]
    below: int
    pseudo: Callable[[int, int], list[str]]

    @property
    def name(self):
        return self.run.__name__


SECTIONS: list[Section] = []


def _function(value):
    return value if callable(value) else lambda rank, size: value


def section(*, unrecorded=0, surplus=0, below=0, pseudo=()):
    """Add a function to the workload; what depends on rank and world size is given as a function of both."""

    def add(run):
        SECTIONS.append(Section(run, _function(unrecorded), _function(surplus), below, _function(pseudo)))
        return run

    return add


def rank():
    return dist.get_rank()


def size():
    return dist.get_world_size()


def everyone():
    return list(range(size()))


def mesh_groups(size):
    """The calls that make a mesh of pairs: one for each column and each pair; a dimension over all ranks needs none."""
    return ["new_group"] * (2 + (size // 2 if size > 2 else 0))
