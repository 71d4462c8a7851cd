"""Training with DistributedDataParallel: three buckets of gradients in every step."""

from __future__ import annotations

from datetime import timedelta

import faults
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=faults.TIMEOUT_S))
    rank = dist.get_rank()
    torch.manual_seed(0)
    layers = [torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.Linear(256, 256)]
    # Small buckets, so that a step has several all-reduces as a large model has.
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for number in range(1, faults.ROUNDS + 1):
        faults.flight_recorder(rank, number)
        faults.strike(rank, number)
        loss = model(torch.randn(8, 256)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"rank {rank} done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
