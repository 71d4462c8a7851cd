from __future__ import annotations

import comm_dumps
from comm_dumps import HASH, comm, record


def make(folder):
    files = {}
    for rank in range(4):
        ahead = 40_000 if rank == 2 else 0
        past = [record(n, ahead + 10 * n, ahead + 10 * n + 1, ahead + 10 * n + 3) for n in range(1, 20)]
        files[rank] = {HASH: comm(rank, past, size=4)}
    comm_dumps.write(folder, files)
