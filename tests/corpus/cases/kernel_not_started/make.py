from __future__ import annotations

import dumps


def make(folder):
    files = {}
    for rank in range(4):
        entries = [dumps.entry(n) for n in range(6)]
        begun = {} if rank == 3 else {"state": "started", "time_discovered_started_ns": dumps.T0 + 61 * dumps.MS}
        entries.append(dumps.scheduled(6, **begun))
        told = dumps.status(7, 6 if rank == 3 else 7, 6)
        files[f"nccl_trace_rank_{rank}"] = dumps.dump(entries, world=4, counters={"0": told})
    dumps.write(folder, files)
