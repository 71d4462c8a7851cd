from __future__ import annotations

import rings


def make(folder):
    """All ranks have enqueued both calls in the same order, and nobody gets out of the first."""
    groups = {"one": [0, 1, 2, 3], "two": [0, 1, 2, 3]}
    made = [rings.Ring(rank, 4, groups) for rank in range(4)]
    for ring in made:
        for step in range(3):
            ring.call(step, step + 0.1, group="one").call(step + 0.2, step + 0.3, group="two")
        ring.call(3, None, group="one").call(3.2, None, group="two")
    rings.write(folder, made)
