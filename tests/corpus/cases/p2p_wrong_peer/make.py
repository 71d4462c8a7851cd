from __future__ import annotations

import rings


def make(folder):
    """A pipeline of four stages; in the fourth step stage 0 sends to stage 2, which expects nothing of it."""
    made = [rings.Ring(rank, 4) for rank in range(4)]
    for step in range(3):
        at = 10.0 * step
        for rank, ring in enumerate(made):
            if rank:
                ring.recv(rank - 1, at, at + rank + 0.2)
            if rank < 3:
                ring.send(rank + 1, at + rank + 0.1, at + rank + 1.2)
            ring.call(at + 6, at + 6.1)
    made[0].send(2, 30.1)
    for rank in (1, 2, 3):
        made[rank].recv(rank - 1, 30.0)
    rings.write(folder, made)
