from __future__ import annotations

import dumps
from dumps import MS, T0

PAUSES = {20: 1, 33: 3, 47: 2}


def make(folder):
    files = {}
    for rank in range(4):
        entries, clock = [], T0
        for n in range(60):
            late = 1_400 * MS if PAUSES.get(n) == rank else 0
            came = clock + 200 * MS
            end = came + (1_400 * MS if n in PAUSES else 0) + 10 * MS
            times = {"time_created_ns": came + late, "time_discovered_started_ns": came + late + MS}
            entries.append(dumps.entry(n, **times, time_discovered_completed_ns=end))
            clock = end
        files[f"nccl_trace_rank_{rank}"] = dumps.dump(entries, world=4)
    dumps.write(folder, files)
