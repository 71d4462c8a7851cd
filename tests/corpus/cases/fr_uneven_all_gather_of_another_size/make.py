from __future__ import annotations

import dumps

ROWS = (1, 2, 3, 4)


def make(folder):
    """Rank 2 passes five rows where every list, and its own, has room for three."""
    files = {}
    for rank in range(4):
        rows = 5 if rank == 2 else ROWS[rank]
        sizes = {"input_sizes": [[rows, 2]], "output_sizes": [[rows, 2] for rows in ROWS]}
        fitting = sizes | {"input_sizes": [[ROWS[rank], 2]]}
        entries = [dumps.entry(0, "xccl:all_gather", **fitting), dumps.scheduled(1, "xccl:all_gather", **sizes)]
        files[f"trace_rank_{rank}"] = dumps.dump(entries, world=4, counters={"0": dumps.status(2, -1, 1)})
    dumps.write(folder, files)
