from __future__ import annotations

import dumps


def make(folder):
    files = {}
    for rank in range(4):
        last = dumps.entry(2, state="started", time_discovered_completed_ns=None, retired=False)
        entries = [dumps.entry(0), dumps.entry(1), last if rank == 3 else dumps.entry(2)]
        counters = {"0": dumps.status(3, 3, 2 if rank == 3 else 3)}
        files[f"trace_rank_{rank}"] = dumps.dump(entries, world=4, counters=counters)
    dumps.write(folder, files)
