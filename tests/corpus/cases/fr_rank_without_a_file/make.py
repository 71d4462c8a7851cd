from __future__ import annotations

import dumps


def make(folder):
    """Of rank 2 there is no dump; the others have completed two rounds with it and wait in the third."""
    files = {}
    for rank in (0, 1, 3):
        entries = [dumps.entry(0), dumps.entry(1), dumps.scheduled(2)]
        files[f"trace_rank_{rank}"] = dumps.dump(entries, world=4, counters={"0": dumps.status(3, -1, 2)})
    dumps.write(folder, files)
