from __future__ import annotations

import dumps


def make(folder):
    files = {}
    for rank in range(4):
        entries = [dumps.entry(0), dumps.entry(1)]
        if rank != 2:
            entries.append(dumps.scheduled(2))
        files[f"trace_rank_{rank}"] = dumps.dump(entries, world=4, counters={"0": dumps.status(len(entries), -1, 2)})
    dumps.write(folder, files)
