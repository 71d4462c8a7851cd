from __future__ import annotations

import dumps


def make(folder):
    """Rank 1 runs another version of torch than the others."""
    files = {}
    for rank in range(4):
        entries = [dumps.entry(0), dumps.entry(1)]
        if rank != 2:
            entries.append(dumps.scheduled(2))
        head = {"version": "2.9", "nccl_version": "2.26.2"} if rank == 1 else {}
        counters = {"0": dumps.status(len(entries), -1, 2)}
        files[f"trace_rank_{rank}"] = dumps.dump(entries, world=4, counters=counters, **head)
    dumps.write(folder, files)
