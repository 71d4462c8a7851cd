from __future__ import annotations

import comm_dumps
from comm_dumps import HASH, comm, record


def make(folder):
    past, at = [], 0
    for n in range(1, 20):
        step = 100 if n < 10 else 1000
        past.append(record(n, at, at + 1, at + step))
        at += 2 * step
    comm_dumps.write(folder, {rank: {HASH: comm(rank, past, size=4)} for rank in range(4)})
