from __future__ import annotations

import dumps


def make(folder):
    """Rank 1 is the root of both; the others have a tensor without a type where it has the list, or none."""
    files = {}
    for rank in range(4):
        whole, part = [[4, 2]] * 4, [[4, 2]]
        types = ["Float"] * 4
        if rank == 1:
            gathered = {"output_sizes": whole, "output_dtypes": types}
            scattered = {"input_sizes": whole, "input_dtypes": types}
        elif rank == 2:
            gathered = {"output_sizes": part, "output_dtypes": ""}
            scattered = {"input_sizes": [], "input_dtypes": []}
        else:
            gathered = {"output_sizes": [[]], "output_dtypes": ["Undefined"]}
            scattered = {"input_sizes": [[]], "input_dtypes": ["Undefined"]}
        entries = [dumps.entry(0, "nccl:gather", **gathered), dumps.entry(1, "nccl:scatter", **scattered)]
        files[f"trace_rank_{rank}"] = dumps.dump(entries, world=4)
    dumps.write(folder, files)
