"""A gloo job that fails: `raise`, rank 1 raises; `late`, it comes too late; `monitored`, at a monitored barrier."""

from __future__ import annotations

import datetime as dt
import sys
import time

import torch
import torch.distributed as dist

LATE_S = 30
TIMEOUT = dt.timedelta(seconds=3)

how = sys.argv[1]
dist.init_process_group("gloo", timeout=TIMEOUT)
dist.all_reduce(torch.ones(4))
if dist.get_rank() == 1:
    if how == "raise":
        raise ValueError("could not decode sample 7")
    if how == "mismatch":
        dist.broadcast(torch.ones(3), 0)
    time.sleep(LATE_S)
if how == "monitored":
    dist.monitored_barrier(timeout=TIMEOUT)
dist.all_reduce(torch.ones(4))
