"""A signal handler that raises at every line of roundk's code in turn: `interrupted.py RUN_DIR EXCEPTION`.

Prints, as JSON, at how many lines it struck, where the exception did not come out (PLACES), and how many calls were
recorded afterwards, by a recorder that is still on.
"""

from __future__ import annotations

import builtins
import json
import os
import signal
import sys

import torch
import torch.distributed as dist
from roundk.hooks import failsafe, install, kernels

OURS = os.path.dirname(os.path.dirname(kernels.__file__))
raised = getattr(builtins, sys.argv[2])


def handler(number, frame):
    raise raised


class Striker:
    """Raises the signal at the n-th line of ours that the main thread comes to."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.place: str | None = None

    def trace(self, frame, event, arg):
        if self.place is not None or not frame.f_code.co_filename.startswith(OURS):
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                self.place = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
                signal.raise_signal(signal.SIGALRM)
        return self.trace


def work(tensor, optimizer):
    """Calls of every kind that this thread hands to roundk."""
    group = dist.new_group([0])
    dist.all_reduce(tensor, group=group)
    dist.all_reduce(tensor, async_op=True).wait()
    dist.all_gather([torch.empty(4)], tensor)
    dist.broadcast(tensor, 0)
    dist.barrier()
    optimizer.step()
    dist.destroy_process_group(group)


def strike(at, *arguments):
    """Whether the n-th line of ours was come to, and where the exception did not come out (None: it did)."""
    striker, out = Striker(at), False
    sys.settrace(striker.trace)
    try:
        work(*arguments)
    except raised:
        out = True
    finally:
        sys.settrace(None)
    return striker.place is not None, None if out else striker.place


def main() -> None:
    signal.signal(signal.SIGALRM, handler)
    install(sys.argv[1])
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    tensor = torch.ones(4, requires_grad=True)
    optimizer = torch.optim.SGD([tensor], lr=0.1)
    with torch.no_grad():
        number, places = 1, []
        while (found := strike(number, tensor, optimizer))[0]:
            places += [found[1]] if found[1] else []
            number += 1
        for _ in range(100):
            dist.all_reduce(tensor)
    print(json.dumps({"lines": number - 1, "places": places, "errors": failsafe.errors}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
