from __future__ import annotations

import rings


def make(folder):
    """A ring of four that pass blocks on in batches; in the fourth step rank 2 asks for no block of rank 1."""
    made = [rings.Ring(rank, 4) for rank in range(4)]
    for step in range(4):
        at = 10.0 * step
        for rank, ring in enumerate(made):
            is_last = step == 3
            ops = [("send", (rank + 1) % 4), ("recv", (rank - 1) % 4)]
            batch_end = at + 0.5
            if is_last and rank == 2:
                ops = ops[:1]
            if is_last and rank == 1:
                batch_end = None
            ring.batch(ops, at + 0.01 * rank, batch_end)
            if not is_last:
                ring.call(at + 1, at + 1.1)
            elif rank != 1:
                ring.call(at + 1)
    rings.write(folder, made)
