from __future__ import annotations

import rings


def make(folder):
    """Rank 0 has sent ahead and waits in the all_reduce; rank 1 has not come to its receive: it waits for rank 2."""
    groups = {"tp": [1, 2]}
    made = [rings.Ring(rank, 3, {} if rank == 0 else groups) for rank in range(3)]
    for step in range(4):
        at, hangs = 10.0 * step, step == 3
        made[0].send(1, at, at + 0.1).call(at + 5, None if hangs else at + 5.1)
        made[1].call(at, None if hangs else at + 0.2, group="tp")
        if not hangs:
            made[1].recv(0, at + 1, at + 1.1).call(at + 5, at + 5.1)
            made[2].call(at, at + 0.2, group="tp").call(at + 5, at + 5.1)
    rings.write(folder, made)
