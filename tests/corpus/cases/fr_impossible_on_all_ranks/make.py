from __future__ import annotations

import dumps


def make(folder):
    """An all_reduce into a larger tensor, alike on all ranks."""
    sizes = {"input_sizes": [[4, 4]], "output_sizes": [[5, 4]]}
    entries = [dumps.entry(0), dumps.scheduled(1, **sizes)]
    told = {"0": dumps.status(2, -1, 1)}
    dumps.write(folder, {f"trace_rank_{r}": dumps.dump(entries, world=4, counters=told) for r in range(4)})
