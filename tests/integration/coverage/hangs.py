"""A job in which one rank does not come to a call that is not dispatched: `hangs.py init|new_group RANK`."""

from __future__ import annotations

import datetime as dt
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist

LIMIT = dt.timedelta(seconds=120)


def main():
    where, absent = sys.argv[1], int(sys.argv[2])
    rank = int(os.environ["RANK"])
    missing = rank == absent
    if where == "init" and missing:
        mark(rank)
        time.sleep(600)
    if where == "init":
        mark(rank)
    dist.init_process_group("gloo", timeout=LIMIT)
    dist.all_reduce(torch.ones(4))
    mark(rank)
    if where == "new_group" and missing:
        time.sleep(600)
    dist.new_group([0, 1])


def mark(rank):
    """Tell the test that this rank is about to hang."""
    pathlib.Path(os.environ["MARKS"], f"rank{rank}").write_text(str(os.getpid()))


if __name__ == "__main__":
    main()
