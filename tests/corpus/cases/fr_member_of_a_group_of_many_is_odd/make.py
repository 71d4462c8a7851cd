from __future__ import annotations

import dumps


def make(folder):
    """Rank 0 alone passes another size."""
    files = {}
    for rank in range(32):
        sizes = {"input_sizes": [[3]], "output_sizes": [[3]]} if rank == 0 else {}
        entries = [*(dumps.entry(number) for number in range(3)), dumps.scheduled(3, **sizes)]
        files[f"trace_rank_{rank}"] = dumps.dump(entries, world=32, counters={"0": dumps.status(4, -1, 3)})
    dumps.write(folder, files)
