"""A training loop that calls its collectives by hand: one all_reduce in every round."""

from __future__ import annotations

from datetime import timedelta

import faults
import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=faults.TIMEOUT_S))
    rank = dist.get_rank()
    gradient = torch.ones(1024)
    for number in range(1, faults.ROUNDS + 1):
        faults.flight_recorder(rank, number)
        faults.strike(rank, number)
        if faults.mine(rank, number):
            if faults.FAULT == "skip":
                continue
            if faults.FAULT == "size":
                gradient = torch.ones(2048)
            if faults.FAULT == "broadcast":
                dist.broadcast(gradient, src=0)
                continue
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()
    print(f"rank {rank} done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
