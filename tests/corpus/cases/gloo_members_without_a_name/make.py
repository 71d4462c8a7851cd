from __future__ import annotations

import dumps


def make(folder):
    files = {}
    for rank in range(2):
        done = {"state": "scheduled", "time_discovered_started_ns": None, "time_discovered_completed_ns": None}
        entries = [dumps.entry(n, "gloo:all_reduce", **done) for n in range(4)]
        entries.append(dumps.scheduled(4, "gloo:all_reduce"))
        made = dumps.dump(entries, counters={"0": dumps.status(5, -1, 4)}, comm_lib_version="")
        made["pg_config"] = {"": dumps.group("", range(3))}
        files[f"comm_lib_trace_rank_{rank}"] = made
    dumps.write(folder, files)
