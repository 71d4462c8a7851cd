from __future__ import annotations

import dumps


def make(folder):
    files = {}
    for rank in range(3):
        issued = range(9 if rank == 1 else 10)
        entries = [
            dumps.entry(n, "ncclx:all_reduce", state="started", time_discovered_completed_ns=None) for n in issued
        ]
        files[f"comm_lib_trace_rank_{rank}"] = dumps.dump(entries, world=3, counters={})
    dumps.write(folder, files)
