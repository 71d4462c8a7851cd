from __future__ import annotations

import dumps


def make(folder):
    """Rank 3 passes five rows to a gather in which the root, rank 0, has room for four of each."""
    files = {}
    for rank in range(4):
        root = {"output_sizes": [[4, 2]] * 4, "output_dtypes": ["Float"] * 4}
        sizes = root if rank == 0 else {"output_sizes": [], "output_dtypes": []}
        if rank == 3:
            sizes["input_sizes"] = [[5, 2]]
        entries = [dumps.entry(0), dumps.scheduled(1, "nccl:gather", **sizes)]
        files[f"trace_rank_{rank}"] = dumps.dump(entries, world=4, counters={"0": dumps.status(2, -1, 1)})
    dumps.write(folder, files)
