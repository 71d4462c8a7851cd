from __future__ import annotations

import comm_dumps
from comm_dumps import HASH, comm, record


def make(folder):
    good = [record(n, 10 * n, 10 * n + 1, 10 * n + 3) for n in range(1, 4)]
    files = {rank: {HASH: comm(rank, good, [record(4, 40, 41)], [record(5, 42)], size=4)} for rank in range(4)}
    comm_dumps.write(folder, files)
