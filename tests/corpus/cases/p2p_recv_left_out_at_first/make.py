from __future__ import annotations

import rings


def make(folder):
    """The same in the first step: only that the other three ranks receive tells that rank 2 should."""
    made = [rings.Ring(rank, 4) for rank in range(4)]
    for rank, ring in enumerate(made):
        ops = [("send", (rank + 1) % 4), ("recv", (rank - 1) % 4)]
        ring.batch(ops[:1] if rank == 2 else ops, 0.01 * rank, None if rank == 1 else 0.5)
        if rank != 1:
            ring.call(1)
    rings.write(folder, made)
