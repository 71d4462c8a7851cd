from __future__ import annotations

import cause_inputs as inputs
import dumps


def make(folder):
    lines = inputs.where()
    for rank in range(inputs.WORLD):
        at = f"node-{rank}:{700 + rank}:{750 + rank} [0] NCCL INFO"
        lines.append(f"{at} NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_7:1/IB [RO]; OOB eth0:192.0.2.{rank + 1}<0>")
        lines.append(f"{at} Channel 00/0 : {rank}[0] -> {(rank + 1) % inputs.WORLD}[0] [send] via NET/IB/0")
    lines.append(inputs.event(2, "port error", device="mlx5_7:1"))
    dumps.write(folder, inputs.all_in() | {"job.log": inputs.log(*lines)})
