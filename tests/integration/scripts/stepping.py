"""A training loop with an optimizer, whose settings, calls and pace the environment of a test chooses."""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist


def main() -> None:
    if os.environ["RANK"] == os.environ.get("ODD_RANK"):
        os.environ["NCCL_IB_HCA"] = "mlx5_1"
    dist.init_process_group("gloo")
    model = torch.nn.Linear(16, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(int(os.environ["STEPS"])):
        model(torch.ones(4, 16)).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        if "EXTRA_CALL" in os.environ:
            dist.barrier()
        time.sleep(float(os.environ["STEP_S"]))
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
