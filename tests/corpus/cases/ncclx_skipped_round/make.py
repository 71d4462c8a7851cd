from __future__ import annotations

import comm_dumps
from comm_dumps import HASH, comm, record


def make(folder):
    good = [record(n, 10 * n, 10 * n + 1, 10 * n + 3) for n in range(1, 4)]
    files = {}
    for rank in range(4):
        current = [] if rank == 0 else [record(4, 40, 41, rank=rank)]
        files[rank] = {HASH: comm(rank, good, current, size=4)}
    comm_dumps.write(folder, files)
