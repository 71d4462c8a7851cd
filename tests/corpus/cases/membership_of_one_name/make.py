from __future__ import annotations

import dumps


def make(folder):
    files = {}
    for rank in range(4):
        mine = range(4) if rank == 2 else (0, 1, 3)
        entries = [dumps.entry(n) for n in range(4)]
        entries.append(dumps.scheduled(4, seq=1, pg_id=1, process_group=("1", "experts")))
        groups = {"1": dumps.group("1", mine, "experts")}
        told = {"0": dumps.status(4, -1, 4), "1": dumps.status(1, -1, -1)}
        files[f"nccl_trace_rank_{rank}"] = dumps.dump(entries, world=4, groups=groups, counters=told)
    dumps.write(folder, files)
