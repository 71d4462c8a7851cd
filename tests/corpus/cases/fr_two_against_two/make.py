from __future__ import annotations

import dumps


def make(folder):
    files = {}
    for rank in range(4):
        last = dumps.scheduled(2, "nccl:broadcast" if rank % 2 else "nccl:all_reduce")
        files[f"trace_rank_{rank}"] = dumps.dump(
            [dumps.entry(0), dumps.entry(1), last], world=4, counters={"0": dumps.status(3, -1, 2)}
        )
    dumps.write(folder, files)
