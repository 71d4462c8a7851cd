from __future__ import annotations

import dumps


def make(folder):
    """Four ranks in the third all_reduce, whose kernels run and do not end."""
    files = {}
    for rank in range(4):
        entries = [dumps.entry(0), dumps.entry(1)]
        entries.append(dumps.entry(2, state="started", time_discovered_completed_ns=None, retired=False))
        files[f"trace_rank_{rank}"] = dumps.dump(entries, world=4, counters={"0": dumps.status(3, 3, 2)})
    dumps.write(folder, files)
