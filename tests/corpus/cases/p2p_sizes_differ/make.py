from __future__ import annotations

import rings


def make(folder):
    """Rank 0 sends to rank 1 what rank 1 does not ask for; rank 2 waits in the all_reduce behind it."""
    made = [rings.Ring(rank, 3) for rank in range(3)]
    for step in range(3):
        made[0].send(1, step, step + 0.2)
        made[1].recv(0, step, step + 0.2)
        for ring in made:
            ring.call(step + 0.5, step + 0.6)
    made[0].send(1, 3.0)
    made[1].recv(0, 3.0, input_sizes=[[8, 2]], output_sizes=[[8, 2]])
    made[2].call(3.5)
    rings.write(folder, made)
