from __future__ import annotations

import dumps


def make(folder):
    """Rank 0 waits in a fourth all_reduce that nobody else has come to; all calls look alike, and none has a stack."""
    files = {}
    for rank in range(4):
        entries = [dumps.entry(number) for number in range(3)]
        if rank == 0:
            entries.append(dumps.scheduled(3))
        files[f"trace_rank_{rank}"] = dumps.dump(entries, world=4, counters={"0": dumps.status(len(entries), -1, 3)})
    dumps.write(folder, files)
