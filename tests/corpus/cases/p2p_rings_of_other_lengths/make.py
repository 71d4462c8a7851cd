from __future__ import annotations

import rings


def make(folder):
    """Rings of 60 entries, of which stage 1 needs twice as many per step. Stage 0 does not send in the last step."""
    made = [rings.Ring(rank, 3) for rank in range(3)]
    for step in range(30):
        at, hangs = 10.0 * step, step == 29
        for batch in range(3):
            then = at + batch
            if not hangs:
                made[0].send(1, then, then + 0.25)
            if batch and hangs:
                continue
            made[1].recv(0, then, None if hangs else then + 0.3)
            if not hangs:
                made[1].send(2, then + 0.4, then + 0.65)
            made[2].recv(1, then, None if hangs else then + 0.7)
        for ring in made if not hangs else ():
            ring.call(at + 5, at + 5.1)
    rings.write(folder, made, keep=60)
