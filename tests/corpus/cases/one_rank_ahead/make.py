from __future__ import annotations

import dumps


def make(folder):
    files = {}
    for rank in range(5):
        entries = [dumps.entry(n) for n in range(6)]
        if rank == 3:
            entries.append(dumps.scheduled(6))
        told = dumps.status(len(entries), -1, 6)
        files[f"nccl_trace_rank_{rank}"] = dumps.dump(entries, world=5, counters={"0": told})
    dumps.write(folder, files)
