from __future__ import annotations

import dumps
from older_dumps import dump, entry


def make(folder):
    files = {}
    for rank in range(2):
        entries = [entry(0, "all_reduce", 1), entry(1, "all_reduce", 1, group=("1", "sub_pg"))]
        files[f"dump{rank}"] = dump(rank, entries)
    dumps.write(folder, files)
