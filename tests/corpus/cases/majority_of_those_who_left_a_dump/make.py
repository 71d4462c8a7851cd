from __future__ import annotations

import dumps


def make(folder):
    files = {}
    for rank in range(3):  # of rank 3 there is no dump
        entries = [dumps.entry(n) for n in range(6)]
        size = {"input_sizes": [[8, 2]], "output_sizes": [[8, 2]]} if rank == 1 else {}
        entries.append(dumps.scheduled(6, **size))
        told = dumps.status(7, -1, 6)
        files[f"nccl_trace_rank_{rank}"] = dumps.dump(entries, world=4, counters={"0": told})
    dumps.write(folder, files)
