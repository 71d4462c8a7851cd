from __future__ import annotations

import comm_dumps
from comm_dumps import HASH, comm, record


def make(folder):
    good = [record(n, 10 * n, 10 * n + 1, 10 * n + 3) for n in range(1, 4)]
    files = {}
    for rank in range(4):
        op = {} if rank == 0 else {"opName": "AllGather", "redOp": ""}
        files[rank] = {HASH: comm(rank, good, [record(4, 40, 41, rank=rank, **op)], size=4)}
    comm_dumps.write(folder, files)
