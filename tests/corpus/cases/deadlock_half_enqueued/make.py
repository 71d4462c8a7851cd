from __future__ import annotations

import rings


def make(folder):
    """Rank 0 has enqueued one and two, rank 1 waits on its host in two and has not come to one."""
    groups = {"one": [0, 1], "two": [0, 1]}
    made = [rings.Ring(rank, 2, groups) for rank in range(2)]
    for ring in made:
        for step in range(3):
            ring.call(step, step + 0.1, group="one").call(step + 0.2, step + 0.3, group="two")
    made[0].call(3, None, group="one").call(3.2, None, group="two")
    made[1].call(3, None, group="two")
    rings.write(folder, made)
