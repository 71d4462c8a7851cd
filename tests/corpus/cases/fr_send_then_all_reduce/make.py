from __future__ import annotations

import dumps


def make(folder):
    """A send and an all_reduce that have the same number, each by its own count."""
    p2p = {"p2p_seq_id": 1, "is_p2p": True, "seq": 0}
    files = {}
    for rank in range(2):
        op = "nccl:send 0->1" if rank == 0 else "nccl:recv 1<-0"
        entries = [dumps.entry(0, op, **p2p), dumps.entry(1, seq=1, p2p_seq_id=1)]
        files[f"trace_rank_{rank}"] = dumps.dump(entries, counters={"0": dumps.status(2, 2, 2)})
    dumps.write(folder, files)
