from __future__ import annotations

import dumps

LOOP = ("nccl:all_reduce", "nccl:_all_gather_base")
WHOLE = {"output_sizes": [[16, 2]]}


def make(folder):
    """All calls are enqueued at once; rank 2 leaves out the broadcast at the beginning, and everything hangs there."""
    files = {}
    for rank in range(4):
        ops = [*(() if rank == 2 else ("nccl:broadcast",)), *LOOP * 2][:4]
        entries = [dumps.scheduled(number, op, **(WHOLE if "gather" in op else {})) for number, op in enumerate(ops)]
        files[f"trace_rank_{rank}"] = dumps.dump(entries, world=4, counters={"0": dumps.status(4, -1, -1)})
    dumps.write(folder, files)
