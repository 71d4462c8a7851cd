from __future__ import annotations

import dumps


def make(folder):
    files = {f"nccl_trace_rank_{rank}": dumps.dump([dumps.entry(n) for n in range(20)]) for rank in range(2)}
    dumps.write(folder, files)
