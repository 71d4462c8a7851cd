from __future__ import annotations

import dumps

TAKEN = (11, 8, 6, 10)
"""Elements that each rank takes; rank 3 takes one more than the others pass to it, or another passes one too few."""


def make(folder):
    files = {}
    for rank, passed in enumerate((10, 8, 8, 8)):
        sizes = {"input_sizes": [[passed]], "output_sizes": [[TAKEN[rank]]]}
        entries = [dumps.entry(0), dumps.scheduled(1, "nccl:all_to_all", **sizes)]
        files[f"trace_rank_{rank}"] = dumps.dump(entries, world=4, counters={"0": dumps.status(2, -1, 1)})
    dumps.write(folder, files)
