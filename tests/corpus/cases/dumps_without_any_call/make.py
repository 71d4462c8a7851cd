from __future__ import annotations

import dumps


def make(folder):
    made = {
        f"nccl_trace_rank_{rank}": dumps.dump([], world=4, counters={"0": dumps.status(0, -1, 0)}) for rank in range(4)
    }
    dumps.write(folder, made)
