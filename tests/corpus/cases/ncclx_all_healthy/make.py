from __future__ import annotations

import comm_dumps
from comm_dumps import HASH, comm, record


def make(folder):
    good = [record(n, 10 * n, 10 * n + 1, 10 * n + 3) for n in range(1, 6)]
    comm_dumps.write(folder, {rank: {HASH: comm(rank, good, size=4)} for rank in range(4)})
