from __future__ import annotations

import dumps

SENT = ((2, 2, 2, 2), (2, 2, 2, 2), (2, 2, 2, 2), (2, 2, 2, 2))
"""Elements that each rank sends to each; rank 2 expects one less of ranks 0 and 3, and as many more of itself."""
EXPECTED_BY_2 = (1, 2, 4, 1)


def make(folder):
    files = {}
    for rank in range(4):
        splits = {"input_split_sizes": list(SENT[rank]), "output_split_sizes": [row[rank] for row in SENT]}
        if rank == 2:
            splits["output_split_sizes"] = list(EXPECTED_BY_2)
        sizes = {"input_sizes": [[8]], "output_sizes": [[8]]}
        entries = [dumps.entry(0), dumps.scheduled(1, "nccl:all_to_all", **sizes, **splits)]
        files[f"trace_rank_{rank}"] = dumps.dump(entries, world=4, counters={"0": dumps.status(2, -1, 1)})
    dumps.write(folder, files)
