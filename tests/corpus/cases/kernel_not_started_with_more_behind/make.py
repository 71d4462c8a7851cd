from __future__ import annotations

import dumps


def make(folder):
    files = {}
    for rank in range(4):
        entries = [dumps.entry(n) for n in range(6)]
        begun = {} if rank == 3 else {"state": "started", "time_discovered_started_ns": dumps.T0 + 61 * dumps.MS}
        entries.append(dumps.scheduled(6, **begun))
        # The host goes on and hands over a call of another group.
        entries.append(dumps.scheduled(7, seq=1, pg_id=1, process_group=("1", "dp")))
        groups = {"1": dumps.group("1", range(4), "dp")}
        told = {"0": dumps.status(7, 6 if rank == 3 else 7, 6), "1": dumps.status(1, -1, -1)}
        files[f"nccl_trace_rank_{rank}"] = dumps.dump(entries, world=4, groups=groups, counters=told)
    dumps.write(folder, files)
