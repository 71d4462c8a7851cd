from __future__ import annotations

import comm_dumps
from comm_dumps import HASH, comm, record


def make(folder):
    files = {}
    for rank in range(4):
        last = 60
        past = [record(n, 10 * n, 10 * n + 1, 10 * n + 3) for n in range(last - 20 + (rank == 2), last + 1)]
        files[rank] = {HASH: comm(rank, past, size=4)}
    comm_dumps.write(folder, files)
