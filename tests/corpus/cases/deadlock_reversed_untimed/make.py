from __future__ import annotations

import rings


def make(folder):
    """The same with four ranks and without starts: all have enqueued both calls, rank 2 in the other order."""
    groups = {"one": [0, 1, 2, 3], "two": [0, 1, 2, 3]}
    made = [rings.Ring(rank, 4, groups) for rank in range(4)]
    for rank, ring in enumerate(made):
        for step in range(3):
            ring.call(step, step + 0.1, group="one").call(step + 0.2, step + 0.3, group="two")
        first, second = ["one", "two"][:: -1 if rank == 2 else 1]
        ring.call(3, None, group=first).call(3.2, None, group=second)
    rings.write(folder, made)
