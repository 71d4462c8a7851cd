from __future__ import annotations

import dumps


def make(folder):
    files = {}
    for rank in range(4):
        entries = [dumps.entry(n) for n in range(3)]
        if rank:
            entries.append(dumps.scheduled(3))
        told = dumps.status(len(entries), -1, 3)
        files[f"nccl_trace_rank_{rank}"] = dumps.dump(entries, world=4, counters={"0": told})
    dumps.write(folder, files)
