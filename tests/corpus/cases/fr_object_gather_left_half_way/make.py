from __future__ import annotations

import dumps


def steps(number, make):
    """What all_gather_object does: it gathers the sizes, and then the objects, filled up to the largest."""
    sizes = {"input_sizes": [[1]], "output_sizes": [[1]] * 4, "input_dtypes": ["Long"], "output_dtypes": ["Long"] * 4}
    data = {"input_sizes": [[97]], "output_sizes": [[97]] * 4, "input_dtypes": ["Byte"], "output_dtypes": ["Byte"] * 4}
    return [dumps.entry(number, "nccl:all_gather", **sizes), make(number + 1, "nccl:all_gather", **data)]


def make(folder):
    """Rank 1 raises between the two steps, as where its object cannot be read, and does not come to the second."""
    files = {}
    for rank in range(4):
        entries = steps(0, dumps.scheduled)[: 1 if rank == 1 else 2]
        counters = {"0": dumps.status(len(entries), -1, 1)}
        files[f"trace_rank_{rank}"] = dumps.dump(entries, world=4, counters=counters)
    dumps.write(folder, files)
