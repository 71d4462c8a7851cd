from __future__ import annotations

import dumps


def steps(number, make):
    """What all_gather_object does: it gathers the sizes, and then the objects, filled up to the largest."""
    sizes = {"input_sizes": [[1]], "output_sizes": [[1]] * 4, "input_dtypes": ["Long"], "output_dtypes": ["Long"] * 4}
    data = {"input_sizes": [[97]], "output_sizes": [[97]] * 4, "input_dtypes": ["Byte"], "output_dtypes": ["Byte"] * 4}
    return [dumps.entry(number, "nccl:all_gather", **sizes), make(number + 1, "nccl:all_gather", **data)]


def make(folder):
    dumps.write(folder, {f"trace_rank_{r}": dumps.dump(steps(0, dumps.entry), world=4) for r in range(4)})
