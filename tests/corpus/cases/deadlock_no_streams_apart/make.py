from __future__ import annotations

import rings


def make(folder):
    """The two ranks enqueue two groups in opposite orders in every step, which was no harm: they have streams apart."""
    groups = {"one": [0, 1], "two": [0, 1]}
    made = [rings.Ring(rank, 2, groups) for rank in range(2)]
    for rank, ring in enumerate(made):
        for step in range(4):
            first, second = ["one", "two"][:: 1 if rank == 0 else -1]
            ends = None if step == 3 else step + 0.4
            ring.call(step, ends, group=first).call(step + 0.2, ends, group=second)
    rings.write(folder, made)
