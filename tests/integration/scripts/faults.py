"""What goes wrong in these training scripts, and where: FAULT at round FAULT_ROUND of rank FAULT_RANK.

Nothing here knows of any tool that may be watching. `MARKS`, where set, names a folder in which every rank notes that
it is about to begin the round of the fault, so that whoever started the job need not guess when it hangs.
"""

from __future__ import annotations

import os
import pathlib
import pickle
import signal
import time

FAULT = os.environ.get("FAULT", "none")
RANK = int(os.environ.get("FAULT_RANK", "1"))
ROUND = int(os.environ.get("FAULT_ROUND", "6"))
ROUNDS = int(os.environ.get("ROUNDS", "10"))
PAUSE_S = float(os.environ.get("FAULT_PAUSE_S", "0.3"))
TIMEOUT_S = float(os.environ.get("GROUP_TIMEOUT_S", "10"))


def mine(rank: int, number: int) -> bool:
    """Whether the fault is this rank's, in this round."""
    return rank == RANK and number == ROUND


def strike(rank: int, number: int) -> None:
    """Do to the process what the fault says. To be called before the first collective of a round (from 1)."""
    if number == ROUND:
        _mark(rank)
    if FAULT == "late" and rank == RANK:
        time.sleep(PAUSE_S)
    if FAULT == "late_then_missing":
        _late_then_missing(rank, number)
    if not mine(rank, number):
        return
    if FAULT == "sleep":
        time.sleep(3600)
    elif FAULT == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif FAULT == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif FAULT == "raise":
        message = f"no batch for round {number}"
        raise LookupError(message)


def _late_then_missing(rank: int, number: int) -> None:
    """Rank RANK is late by PAUSE_S in every round; the rank after it never comes to round ROUND."""
    if rank == RANK:
        time.sleep(PAUSE_S)
    if rank == RANK + 1 and number == ROUND:
        time.sleep(3600)


def _mark(rank: int) -> None:
    folder = os.environ.get("MARKS")
    if folder:
        pathlib.Path(folder, f"rank{rank}").write_text(str(os.getpid()))


def flight_recorder(rank: int, number: int) -> None:
    """With FAULT=count: write what torch's own Flight Recorder has seen before this round began."""
    if FAULT != "count" or rank != RANK:
        return
    from torch._C._distributed_c10d import _dump_fr_trace

    entries = pickle.loads(_dump_fr_trace(True, False, False))["entries"]
    seen = [(entry["process_group"][0], entry["profiling_name"]) for entry in entries]
    with pathlib.Path(os.environ["COUNTS"]).open("a") as file:
        print(number, seen, file=file)
