from __future__ import annotations

import comm_dumps
from comm_dumps import HASH, comm, record

OTHER = "ab00000000000001"
OF_OTHER = {"commHash": int(OTHER, 16) - (1 << 64)}


def make(folder):
    files = {}
    good = [record(n, 10 * n, 10 * n + 1, 10 * n + 3) for n in range(1, 4)]
    for rank in range(4):
        gather = {"opName": "AllGather", "redOp": ""}
        running, waiting = ([40, 41], [42])
        first, second = (running, waiting) if rank == 0 else (waiting, running)
        files[rank] = {
            HASH: comm(rank, good, [record(4, *first, **gather)], size=4),
            OTHER: comm(rank, good, [record(4, *second, **OF_OTHER)], size=4, name=OTHER, desc="DP:1"),
        }
    comm_dumps.write(folder, files)
