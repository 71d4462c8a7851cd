"""A training loop that calls two collectives in every round: the gradient's all_reduce, then the loss's."""

from __future__ import annotations

from datetime import timedelta

import faults
import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=faults.TIMEOUT_S))
    rank = dist.get_rank()
    weight = torch.ones(1024)
    for number in range(1, faults.ROUNDS + 1):
        faults.flight_recorder(rank, number)
        faults.strike(rank, number)
        gradient = weight * 0.1
        if not (faults.FAULT == "skip" and faults.mine(rank, number)):
            dist.all_reduce(gradient)
        weight = weight - gradient / dist.get_world_size()
        loss = weight.square().clone()
        dist.all_reduce(loss)
    print(f"rank {rank} done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
