from __future__ import annotations

import rings

GATHERED = {"output_sizes": [[8, 2]]}


def make(folder):
    """Two ranks, two groups, kernels in the order of the host: rank 0 has one's first, rank 1 the other's."""
    groups = {"one": [0, 1], "two": [0, 1]}
    made = [rings.Ring(rank, 2, groups, timed=True) for rank in range(2)]
    for rank, ring in enumerate(made):
        for step in range(3):
            ring.call(step, step + 0.1, "all_gather", "one", **GATHERED).call(step + 0.2, step + 0.3, group="two")
        if rank == 0:
            ring.call(3, None, "all_gather", "one", started=3.01, **GATHERED).call(3.2, None, group="two")
        else:
            ring.call(3, None, group="two", started=3.01).call(3.2, None, "all_gather", "one", **GATHERED)
    rings.write(folder, made)
