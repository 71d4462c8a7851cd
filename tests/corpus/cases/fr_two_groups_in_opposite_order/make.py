from __future__ import annotations

import dumps


def make(folder):
    """Rank 0 calls in group tp and then dp, rank 1 the other way round, each blocked in its first call."""
    groups = {"1": dumps.group("1", [0, 1], "tp"), "2": dumps.group("2", [0, 1], "dp")}
    files = {}
    for rank, (name, desc) in enumerate((("1", "tp"), ("2", "dp"))):
        entries = [dumps.entry(0), dumps.entry(1)]
        entries.append(dumps.scheduled(2, seq=1, process_group=(name, desc), pg_id=int(name)))
        counters = {"0": dumps.status(2, -1, 2), name: dumps.status(1, -1, -1)}
        files[f"trace_rank_{rank}"] = dumps.dump(entries, groups=groups, counters=counters)
    dumps.write(folder, files)
