from __future__ import annotations

import rings


def make(folder):
    """As in `p2p_recv_left_out`, but hosts run ahead: rank 1 has the all_reduce enqueued behind its batch."""
    made = [rings.Ring(rank, 4) for rank in range(4)]
    for step in range(4):
        at = 10.0 * step
        for rank, ring in enumerate(made):
            is_last = step == 3
            ops = [("send", (rank + 1) % 4), ("recv", (rank - 1) % 4)]
            ops = ops[: 1 if is_last and rank == 2 else 2]
            ring.batch(ops, at + 0.01 * rank, None if is_last and rank == 1 else at + 0.5)
            ring.call(at + 1, None if is_last else at + 1.1)
    rings.write(folder, made)
