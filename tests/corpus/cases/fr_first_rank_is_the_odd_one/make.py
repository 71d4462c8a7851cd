from __future__ import annotations

import dumps


def make(folder):
    files = {}
    for rank in range(4):
        odd = dumps.scheduled(2, "nccl:broadcast") if rank == 0 else dumps.scheduled(2)
        entries = [dumps.entry(0), dumps.entry(1), odd]
        files[f"trace_rank_{rank}"] = dumps.dump(entries, world=4, counters={"0": dumps.status(3, -1, 2)})
    dumps.write(folder, files)
