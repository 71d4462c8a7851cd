from __future__ import annotations

import rings


def make(folder):
    """The very first message: nothing tells whether rank 0 sends to the wrong rank or rank 2 has not asked for it."""
    made = [rings.Ring(rank, 3) for rank in range(3)]
    for rank, ring in enumerate(made):
        ring.call(0, 0.1, "barrier")
        if rank == 0:
            ring.send(2, 1.0)
        if rank == 1:
            ring.recv(0, 1.0)
    rings.write(folder, made)
