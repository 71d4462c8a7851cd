from __future__ import annotations

import dumps


def make(folder):
    files = {}
    for rank in range(4):
        peers = (0, 1) if rank < 2 else (2, 3)
        name = str(1 + rank // 2)
        entries = []
        for n in range(12):
            of_pair = n % 2 == 1
            of = {"pg_id": 1, "process_group": (name, "tp"), "seq": n // 2 + 1} if of_pair else {"seq": n // 2 + 1}
            # The device of rank 1 stops behind its fourth call; its host goes on handing over calls for a while.
            is_done = n < 4 if rank == 1 else n < 6 if rank == 0 else n < 6 or of_pair
            make_one = dumps.entry if is_done else dumps.scheduled
            entries.append(make_one(n, **of))
        made = dumps.dump(entries, world=4, groups={name: dumps.group(name, peers, "tp")})
        del made["pg_status"]
        files[f"nccl_trace_rank_{rank}"] = made
    dumps.write(folder, files)
