from __future__ import annotations

import rings

STAGES, TP = 8, 4


def make(folder):
    """Eight stages of four ranks. Rank 5 of stage 1 does not come to its all_reduce; all the others wait in a chain."""
    world = STAGES * TP
    made = []
    for rank in range(world):
        stage, lane = divmod(rank, TP)
        groups = {"tp": list(range(stage * TP, stage * TP + TP)), "pp": list(range(lane, world, TP))}
        ring = rings.Ring(rank, world, groups)
        for step in range(5):
            at, hangs = 20.0 * step, step == 4
            came = at + stage
            if hangs and stage > 1:
                ring.recv(rank - TP, at, None, "pp")
                continue
            if stage:
                ring.recv(rank - TP, at, came + 0.1, "pp")
            if hangs and stage == 1:
                if lane != 1:
                    ring.call(came + 0.2, None, group="tp")
                continue
            ring.call(came + 0.2, came + 0.3, group="tp")
            if stage < STAGES - 1:
                ring.send(rank + TP, came + 0.4, came + 1.1, "pp")
            if not hangs or stage == 0:
                ring.call(at + 12, None if hangs else at + 12.1)
        made.append(ring)
    rings.write(folder, made)
