from __future__ import annotations

import dumps


def make(folder):
    files = {}
    for rank in range(4):
        entries = [dumps.entry(n, time_discovered_started_ns=None) for n in range(6)]
        entries.append(dumps.scheduled(6))
        files[f"nccl_trace_rank_{rank}"] = dumps.dump(entries, world=4, counters={"0": dumps.status(7, -1, 6)})
    dumps.write(folder, files)
