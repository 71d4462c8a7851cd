from __future__ import annotations

import cause_inputs as inputs
import dumps

DAY = 24 * 3600 * 1000 * dumps.MS


def make(folder):
    old = []
    for n in range(900):
        made = dumps.entry(n)
        times = ("time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns")
        old.append(made | {name: made[name] - DAY for name in times})
    files = inputs.absent(2, leaves_dump=False)
    dumps.write(folder, files | {"nccl_trace_rank_2": dumps.dump(old, world=inputs.WORLD)})
