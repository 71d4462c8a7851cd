from __future__ import annotations

import dumps
from older_dumps import dump, entry


def make(folder):
    files = {}
    for rank in range(2):
        entries = [entry(0, "broadcast", 1), entry(1, "broadcast", 1)]
        entries.append(entry(2, "coalesced", 1, input_sizes=[], output_sizes=[]))
        files[f"dump{rank}"] = dump(rank, entries)
    dumps.write(folder, files)
