from __future__ import annotations

import dumps
from older_dumps import dump, entry


def make(folder):
    files = {}
    for rank in range(2):
        entries = [entry(0, "_reduce_oop", 1), entry(1, "_reduce_oop", 1, size=(3, 4))]
        entries.append(entry(2, "REDUCE_SCATTER_coalesced", 1, input_sizes=[], output_sizes=[]))
        files[f"dump{rank}"] = dump(rank, entries)
    dumps.write(folder, files)
