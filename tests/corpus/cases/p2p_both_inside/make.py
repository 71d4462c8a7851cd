from __future__ import annotations

import rings


def make(folder):
    """A message that both sides are in does not get through; their hosts have enqueued the all_reduce behind it."""
    made = [rings.Ring(rank, 3) for rank in range(3)]
    for step in range(4):
        end = None if step == 3 else step + 0.2
        made[0].send(1, step, end)
        made[1].recv(0, step, end)
        for ring in made:
            ring.call(step + 0.5, None if step == 3 else step + 0.6)
    rings.write(folder, made)
