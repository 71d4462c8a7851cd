from __future__ import annotations

import dumps

MESSAGES = 3


def make(folder):
    """Ranks 0 and 1 exchange messages between the all_reduces, and the ring of 12 records holds less of their calls."""
    files = {}
    for rank in range(4):
        entries = []
        for step in range(1, 9):
            for message in range(MESSAGES if rank < 2 else 0):
                op = "nccl:send 0->1" if rank == 0 else "nccl:recv 1<-0"
                number = MESSAGES * (step - 1) + message + 1
                entries.append(dumps.entry(len(entries), op, seq=step - 1, p2p_seq_id=number, is_p2p=True))
            entries.append(dumps.entry(len(entries), seq=step, p2p_seq_id=MESSAGES * step if rank < 2 else 0))
        told = dumps.status(len(entries), -1, len(entries))
        files[f"trace_rank_{rank}"] = dumps.dump(entries[-12:], world=4, counters={"0": told})
    dumps.write(folder, files)
