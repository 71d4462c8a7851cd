from __future__ import annotations

import rings


def make(folder):
    """Three ranks, a group for each pair: each rank has the call with its successor first. All calls are enqueued."""
    groups = {"ab": [0, 1], "bc": [1, 2], "ca": [0, 2]}
    made = [rings.Ring(rank, 3, groups, timed=True) for rank in range(3)]
    order = [("ab", "ca"), ("bc", "ab"), ("ca", "bc")]
    for ring, (first, second) in zip(made, order, strict=True):
        ring.call(0, 0.1)
        ring.call(1, None, group=first, started=1.01).call(1.2, None, group=second)
    rings.write(folder, made)
