from __future__ import annotations

import rings


def make(folder):
    """As a pipeline of three stages, but the message to the wrong rank is small: it is buffered, and rank 0 goes on."""
    made = [rings.Ring(rank, 3) for rank in range(3)]
    for step in range(3):
        at = 10.0 * step
        for rank, ring in enumerate(made):
            if rank:
                ring.recv(rank - 1, at, at + rank + 0.2)
            if rank < 2:
                ring.send(rank + 1, at + rank + 0.1, at + rank + 1.2)
            ring.call(at + 6, at + 6.1)
    made[0].send(2, 30.1, 30.2).call(36.0)
    made[1].recv(0, 30.0)
    made[2].recv(1, 30.0)
    rings.write(folder, made)
