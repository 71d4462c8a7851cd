from __future__ import annotations

import dumps


def make(folder):
    files = {}
    for rank in range(4):
        # Dumps of the calls in flight: the rank that never came has none, and its counters say so.
        entries = [] if rank == 2 else [dumps.scheduled(7)]
        told = dumps.status(7 if rank == 2 else 8, -1, 7)
        files[f"nccl_trace_rank_{rank}"] = dumps.dump(entries, world=4, counters={"0": told})
    dumps.write(folder, files)
