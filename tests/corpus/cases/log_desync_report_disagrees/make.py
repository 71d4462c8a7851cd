from __future__ import annotations

import cause_inputs as inputs
import dumps


def make(folder):
    files = {}
    for rank in range(6):
        of = {"process_group": ("1", "dp"), "pg_id": 1} if rank < 4 else {}
        entries = [dumps.entry(n, **of) for n in range(3)]
        if rank in (0, 1, 3):
            entries.append(dumps.scheduled(3, **of))
        groups = {"1": dumps.group("1", range(4), "dp")}
        counters = {"1" if rank < 4 else "0": dumps.status(len(entries), -1, 3)}
        files[f"nccl_trace_rank_{rank}"] = dumps.dump(entries, world=6, groups=groups, counters=counters)
    dumps.write(folder, files | {"job.log": inputs.desync("[4, 5]")})
