from __future__ import annotations

import comm_dumps
from comm_dumps import HASH, comm, record


def make(folder):
    files = {}
    for rank in range(4):
        first = [record(1, 10, 11, 13)]
        shift = 0
        if rank < 2:
            p2p = {"MetadataType": "GroupedP2PMetaData", "ranksInGroupedP2P": [0, 1], "opName": "SendRecv"}
            first.append(record(2, 20, 21, 22, **p2p))
            shift = 1
        rest = [record(n + shift, 10 * n + 10, 10 * n + 11, 10 * n + 13) for n in (2, 3)]
        files[rank] = {HASH: comm(rank, first + rest, size=4)}
    comm_dumps.write(folder, files)
