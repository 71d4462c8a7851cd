from __future__ import annotations

import dumps


def make(folder):
    files = {}
    for rank in range(4):
        # An uneven all_gather is broadcasts and an end. On rank 2 the end was still open when the dumps were taken.
        entries = [dumps.scheduled(n, "nccl:_broadcast_oop", seq=13) for n in range(20, 24)]
        if rank == 2:
            entries.append(dumps.scheduled(24, "nccl:ALLGATHER_coalesced", seq=13))
        entries.append(dumps.scheduled(25, seq=14))
        told = dumps.status(14, -1, 12 if rank == 2 else 13)
        files[f"nccl_trace_rank_{rank}"] = dumps.dump(entries, world=4, counters={"0": told})
    dumps.write(folder, files)
