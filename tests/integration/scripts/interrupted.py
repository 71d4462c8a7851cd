"""A signal handler that raises at every point of roundk's code in turn: `interrupted.py RUN_DIR EXCEPTION...`.

The points are those at which CPython runs handlers: as a function of roundk's begins, and as one of them gets back from
a function in C (backward jumps are left out). Prints as JSON, for every exception, how many points there were and at
which it did not come out of the work; and how many errors roundk took for its own.
"""

from __future__ import annotations

import builtins
import json
import pathlib
import signal
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from roundk.hooks import failsafe, install

OURS = str(pathlib.Path(failsafe.__file__).parents[1])


def work() -> None:
    """Calls of every kind that a main thread hands to roundk."""
    group = dist.new_group([0])
    tensor = torch.ones(4)
    dist.all_reduce(tensor, group=group)
    dist.all_reduce(tensor, async_op=True).wait()
    dist.all_gather([torch.empty(4)], tensor)
    dist.barrier()
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(tensor).sum().backward()
    optimizer.step()
    dist.destroy_process_group(group)


def strike(at: int, kind: type[BaseException]) -> tuple[str | None, bool]:
    """Work, and raise at the n-th point: where that was (None: there are fewer), and whether the exception came out."""
    left, place = at, None

    def handler(number, frame):
        raise kind

    def profile(frame, event, arg):
        nonlocal left, place
        if event in ("call", "c_return") and frame.f_code.co_filename.startswith(OURS):
            left -= 1
            if left == 0:
                place = f"{frame.f_code.co_filename}:{frame.f_lineno} {event}"
                signal.raise_signal(signal.SIGALRM)

    signal.signal(signal.SIGALRM, handler)
    sys.setprofile(profile)
    try:
        work()
    except kind:
        return place, True
    finally:
        sys.setprofile(None)
    return place, False


def every_point(kind: type[BaseException]) -> dict:
    points, swallowed = 0, []
    while (found := strike(points + 1, kind))[0]:
        points += 1
        swallowed += [] if found[1] else [found[0]]
    return {"points": points, "swallowed": swallowed}


def main() -> None:
    install(sys.argv[1])
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    work()  # torch imports what it needs on first use, and swallows what is raised meanwhile
    found = {name: every_point(getattr(builtins, name)) for name in sys.argv[2:]}
    print(json.dumps({"exceptions": found, "errors": failsafe.errors}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
