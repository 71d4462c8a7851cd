from __future__ import annotations

import cause_inputs as inputs
import dumps


def make(folder):
    files = {}
    for rank in range(4):
        entries = [dumps.entry(n) for n in range(3)]
        groups = {"1": dumps.group("1", [0, 2], "tp")} if rank in (0, 2) else {}
        if rank == 0:
            entries.append(dumps.scheduled(3, seq=1, process_group=("1", "tp"), pg_id=1))
        if rank in (1, 3):
            entries.append(dumps.scheduled(3))
        files[f"nccl_trace_rank_{rank}"] = dumps.dump(entries, world=4, groups=groups)
    dumps.write(folder, files | {"job.log": inputs.desync("[0]")})
