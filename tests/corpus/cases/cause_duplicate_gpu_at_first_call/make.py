from __future__ import annotations

import cause_inputs as inputs
import dumps


def make(folder):
    made = dumps.dump([dumps.scheduled(0)], world=4, counters={"0": dumps.status(1, -1, -1)})
    twice = "NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1b000"
    files = {f"nccl_trace_rank_{rank}": made for rank in range(4)}
    dumps.write(folder, files | {"job.log": inputs.log(f"node-a:101:111 [0] init.cc:936 {twice}")})
