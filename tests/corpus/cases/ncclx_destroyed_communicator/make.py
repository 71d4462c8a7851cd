from __future__ import annotations

import comm_dumps
from comm_dumps import HASH, comm, record

OLD = "ab00000000000001"


def make(folder):
    good = [record(n, 10 * n, 10 * n + 1, 10 * n + 3) for n in range(1, 4)]
    files = {}
    for rank in range(4):
        current = [] if rank == 3 else [record(4, 40, 41)]
        files[rank] = {HASH: comm(rank, good, current, size=4)}
        if rank < 2:
            old = [record(n, n, n, n + 1, commHash=int(OLD, 16) - (1 << 64)) for n in (1, 2)]
            files[rank][OLD] = comm(rank, old, size=4, name=OLD, desc="warmup:7")
    comm_dumps.write(folder, files)
