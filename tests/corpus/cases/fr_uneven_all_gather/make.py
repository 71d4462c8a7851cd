from __future__ import annotations

import dumps

ROWS = (1, 2, 3, 4)


def make(folder):
    """An all_gather of a list of tensors, each as long as its rank passes it; gloo's is one call."""
    files = {}
    for rank in range(4):
        sizes = {"input_sizes": [[ROWS[rank], 2]], "output_sizes": [[rows, 2] for rows in ROWS]}
        entries = [dumps.entry(number, "xccl:all_gather", **sizes) for number in range(2)]
        files[f"trace_rank_{rank}"] = dumps.dump(entries, world=4)
    dumps.write(folder, files)
