from __future__ import annotations

import rings


def make(folder):
    """Opposite orders, but the kernels of both groups have started on both ranks: none is behind the other."""
    groups = {"one": [0, 1], "two": [0, 1]}
    made = [rings.Ring(rank, 2, groups, timed=True) for rank in range(2)]
    for rank, ring in enumerate(made):
        ring.call(0, 0.1)
        for group in ["one", "two"][:: 1 if rank == 0 else -1]:
            ring.call(1, None, group=group, started=1.1)
    rings.write(folder, made)
