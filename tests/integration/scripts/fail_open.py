"""Deterministic training whose recorder loses its ground: `fail_open.py RESULTS [ACT [PLACE]]`.

Every rank writes its parameters and losses, to the last bit, into RESULTS. ACT: `full`, the file system of PLACE has no
byte free from the start; `fill`, it gets so in the middle; `remove`, the folder PLACE goes away in the middle;
`processes`, every rank starts and ends some of all kinds in the middle.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import os
import pathlib
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

STEPS = 6
CALLS = 500
"""A step's calls besides training. The recorder wants a second segment after 2,048, so after the middle."""
LOOKS_S = 0.5
"""Time for the recorder's thread to come by, which it does every 0.01 s."""


def fill(folder: pathlib.Path) -> None:
    """Leave no byte free."""
    with contextlib.suppress(OSError), (folder / f"filler-{os.getpid()}").open("ab", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def start_processes() -> None:
    if not (pid := os.fork()):
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    for method in ("fork", "spawn"):
        own = torch.Generator()  # the loader's seeds must not change training's numbers
        loaded = DataLoader(list(range(8)), num_workers=1, multiprocessing_context=method, generator=own)
        assert sum(batch.sum().item() for batch in loaded) == 28
    child = multiprocessing.get_context("fork").Process(target=sys.exit, args=(4,))
    child.start()
    child.join()
    assert child.exitcode == 4
    thread = threading.Thread(target=sys.exit, args=(5,))
    thread.start()
    thread.join()


def strike(what: str, place: str) -> None:
    """What happens in the middle of training."""
    if what == "processes":
        start_processes()
    elif dist.get_rank() == 0 and what == "remove":
        pathlib.Path(place).rename(f"{place}.gone")  # at once: to delete a folder that is written to may fail halfway
    elif dist.get_rank() == 0 and what == "fill":
        fill(pathlib.Path(place))
    dist.barrier()


def main() -> None:
    results, what, place = (*sys.argv[1:], "", "")[:3]
    if what == "full":
        fill(pathlib.Path(place))
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    alone = [dist.new_group([member]) for member in range(dist.get_world_size())][rank]
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(rank)
    losses = []
    for step in range(STEPS):
        if step == STEPS // 2:
            strike(what, place)
        loss = model(torch.randn(4, 16)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item().hex())
        for _ in range(CALLS):
            dist.all_reduce(torch.ones(1), group=alone)
    time.sleep(LOOKS_S)
    parameters = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    came_to = {"parameters": hashlib.sha256(parameters).hexdigest(), "losses": losses}
    pathlib.Path(results, f"rank{rank}.json").write_text(json.dumps(came_to))
    print(f"rank {rank} done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
