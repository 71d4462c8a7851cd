from __future__ import annotations

import comm_dumps
from comm_dumps import HASH, comm


def make(folder):
    files = {}
    for rank in range(4):
        files[rank] = {HASH: comm(rank, size=4)}
        if rank in (1, 2):
            error = {"timestampMs": 1_714_234_600_000 - 20_000 * rank, "errorMessage": "retry exceeded"}
            files[rank]["processGlobalErrors"] = {"badNics": {"mlx5_0": {"1": error}}}
    comm_dumps.write(folder, files)
