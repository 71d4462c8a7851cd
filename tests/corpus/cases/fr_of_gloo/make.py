from __future__ import annotations

import dumps


def make(folder):
    """As gloo of torch 2.13 records: no members, no ends but `retired`. Rank 1 does not come to the third."""
    files = {}
    for rank in range(4):
        entries = [dumps.scheduled(number, "gloo:all_reduce", retired=True) for number in range(2)]
        if rank != 1:
            entries.append(dumps.scheduled(2, "gloo:all_reduce"))
        config = {"": {"name": "", "desc": "", "ranks": "[]"}}
        counters = {"0": dumps.status(len(entries), -1, 2)}
        files[f"trace_rank_{rank}"] = dumps.dump(entries, counters=counters, pg_config=config, comm_lib_version="")
    dumps.write(folder, files)
