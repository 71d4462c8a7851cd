from __future__ import annotations

import dumps


def make(folder):
    """A backend and an operation that nobody has heard of; rank 1 does not come to the last one."""
    files = {}
    for rank in range(4):
        entries = [dumps.entry(0, "nccl2:all_reduce_sparse_fused"), dumps.entry(1, "nccl2:all_reduce_sparse_fused")]
        if rank != 1:
            entries.append(dumps.scheduled(2, "nccl2:all_reduce_sparse_fused"))
        counters = {"0": dumps.status(len(entries), -1, 2)}
        files[f"trace_rank_{rank}"] = dumps.dump(entries, world=4, counters=counters)
    dumps.write(folder, files)
