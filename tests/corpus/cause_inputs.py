"""What the cases named `cause_*` and `log_*` share: dumps of four ranks on a host each, and lines that go with them."""

from __future__ import annotations

import dumps

WORLD = 4


def log(*lines):
    """A log of these lines."""
    return "\n".join([*lines, ""]).encode()


def where():
    """NCCL's lines that put each rank on a host of its own, `node-0` to `node-3`, as process 700 and so on."""
    lines = []
    for rank in range(WORLD):
        at = f"node-{rank}:{700 + rank}:{700 + rank} [0] NCCL INFO"
        made = f"{at} ncclCommInitRank comm 0x55a{rank} rank {rank} nranks {WORLD} cudaDev 0 nvmlDev 0 busId 1b000"
        lines.append(f"{at} Bootstrap : Using eth0:192.0.2.{rank + 1}<0>")
        lines += [f"{made} commId 0x1ad9 - Init {end}" for end in ("START", "COMPLETE")]
    return lines


def event(rank, what, device="mlx5_0:1", second=39):
    """An asynchronous event of a port, 15:06 on the day of the dumps; they begin at second 40."""
    at = f"[2025-06-15 15:06:{second}] node-{rank}:{700 + rank}:740 [0] transport/net_ib.cc:92"
    return f"{at} NCCL WARN NET/IB : {device} Got async event : {what}"


def completion(rank, peer, status=12):
    """A completion error that a rank prints of its connection to another, 34 s into the hang."""
    at = f"[2025-06-15 15:07:14] node-{rank}:{700 + rank}:741 [0] transport/net_ib.cc:1298"
    gids = f"localGid fe80::{rank + 1} remoteGidsfe80::{peer + 1} hca mlx5_0"
    said = (
        f"Got completion from peer 192.0.2.{peer + 1}<51240> with status={status} opcode=0 len=0 vendor err 129 (Recv)"
    )
    return f"{at} NCCL WARN NET/IB : {said} {gids}"


def kernel(rank, what, second=40):
    """A line of a host's kernel."""
    return f"2025-06-15T15:06:{second}+00:00 node-{rank} kernel: {what}"


def summary(rank, signal, name):
    """torchrun's last words on a rank that a signal ended."""
    return [
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
        "train.py FAILED",
        "Failures:",
        "  <NO_OTHER_FAILURES>",
        "Root Cause (first observed failure):",
        "[0]:",
        "  time      : 2025-06-15_15:06:41",
        f"  host      : node-{rank}",
        f"  rank      : {rank} (local_rank: 0)",
        f"  exitcode  : -{signal} (pid: {700 + rank})  ({name})",
        "  error_file: <N/A>",
        f"  traceback : Signal {signal} ({name}) received by PID {700 + rank}",
    ]


def desync(names):
    """torch's desync report, as rank 0 prints it ten minutes later."""
    head = "[rank0]:[E615 15:16:41.100000000 ProcessGroupNCCL.cpp:632] [Rank 0] "
    why = "\n\t - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:"
    who = f"\n\t   - {names} finished collective #3, but didn't join collective #4 (count from 1)"
    return log(f"{head}\n\t - [0] Timeout at collective: ALLREDUCE, #4{why}{who}")


def all_in():
    """Everybody enters the fourth round, which starts and which nobody leaves."""
    started = dumps.T0 + 31 * dumps.MS
    running = dumps.scheduled(3, state="started", time_discovered_started_ns=started)
    entries = [*(dumps.entry(n) for n in range(3)), running]
    made = dumps.dump(entries, world=WORLD, counters={"0": dumps.status(4, 4, 3)})
    return {f"nccl_trace_rank_{rank}": made for rank in range(WORLD)}


def absent(culprit, *, leaves_dump):
    """Everybody but one enters the fourth round."""
    files = {}
    for rank in range(WORLD):
        entries = [*(dumps.entry(n) for n in range(3)), *([] if rank == culprit else [dumps.scheduled(3)])]
        counters = {"0": dumps.status(len(entries), -1, 3)}
        if rank != culprit or leaves_dump:
            files[f"nccl_trace_rank_{rank}"] = dumps.dump(entries, world=WORLD, counters=counters)
    return files


def lagging(culprit):
    """One rank has entered as many calls as its peers and completed fewer, in the group of all and in its pair."""
    files = {}
    for rank in range(WORLD):
        pair = str(1 + rank // 2)
        groups = {pair: dumps.group(pair, [rank - rank % 2, rank - rank % 2 + 1], "tp")}
        done, of_pair = (1, 1) if rank == culprit else (3, 2)
        entries = [dumps.entry(n) if n < done else dumps.scheduled(n) for n in range(4)]
        counters = {"0": dumps.status(4, 4, done), pair: dumps.status(2, 2, of_pair)}
        files[f"nccl_trace_rank_{rank}"] = dumps.dump(entries, world=WORLD, groups=groups, counters=counters)
    return files
