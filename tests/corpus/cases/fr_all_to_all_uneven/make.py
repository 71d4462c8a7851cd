from __future__ import annotations

import dumps

SENT = ((1, 2, 3, 4), (2, 2, 2, 2), (5, 1, 1, 1), (3, 3, 0, 2))
"""Elements that each rank sends to each."""


def make(folder):
    files = {}
    for rank in range(4):
        sizes = {"input_sizes": [[sum(SENT[rank])]], "output_sizes": [[sum(row[rank] for row in SENT)]]}
        entries = [dumps.entry(number, "nccl:all_to_all", **sizes) for number in range(3)]
        files[f"trace_rank_{rank}"] = dumps.dump(entries, world=4)
    dumps.write(folder, files)
