from __future__ import annotations

import dumps


def make(folder):
    """JSON as torch writes it: counters as text, 0 where a pickle has None, lists for tuples, no stacks."""
    files = {}
    for rank in range(4):
        entries = [dumps.entry(0), dumps.entry(1)]
        if rank != 3:
            none = {"time_discovered_started_ns": 0, "time_discovered_completed_ns": 0}
            entries.append(dumps.scheduled(2, **none))
        counters = {"0": {name: str(value) for name, value in dumps.status(len(entries), -1, 2).items()}}
        files[f"{rank}.json"] = dumps.dump(entries, world=4, counters=counters)
    dumps.write(folder, files)
