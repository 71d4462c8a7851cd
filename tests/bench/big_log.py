"""A job's log of any size, of many ranks in one stream, made by a seed.

Mostly what training prints (the lines that a reader must get over), with NCCL's INFO lines of the start, tracebacks of
retries and warnings in between, progress bars, and the end of a hang: one rank never came, all others time out.
"""

from __future__ import annotations

import itertools
import random
from datetime import UTC, datetime, timedelta

RANKS = 1024
PER_HOST = 8
SILENT = 421
SEQ = 88_000
BEGAN = datetime(2026, 9, 18, 19, 29, 24, tzinfo=UTC)
_BLOCK = 16 << 20


def line(chance, step, rank):
    """One line of noise."""
    at = (BEGAN + timedelta(seconds=step)).strftime("%Y-%m-%d %H:%M:%S")
    kind = chance.random()
    if kind < 0.7:
        return (
            f"[{at}] [rank{rank}]: iteration {step:8d}/ 1000000 | consumed samples: {step * 2048} | "
            f"time per iteration (ms): {chance.uniform(900, 1100):.1f} | lm loss: {chance.uniform(1, 3):.6E} |"
        )
    if kind < 0.9:
        return (
            f"{rank}: {at},123 INFO trainer.data: prefetched shard {chance.randrange(10**6)} in {chance.random():.3f} s"
        )
    return f"\r{rank % 100:3d}%|{'#' * (rank % 10):10}| {step}/1000000 [00:10<00:12,  1.10s/it]\r"


def odd(chance, step):
    """What stands between the noise now and then: an exception that was caught, lines of two ranks mixed."""
    one, other = chance.sample(range(RANKS), 2)
    lines = [
        (one, "Traceback (most recent call last):"),
        (other, "Traceback (most recent call last):"),
        (one, '  File "/app/data.py", line 91, in fetch'),
        (other, '  File "/app/data.py", line 91, in fetch'),
        (one, "    return self.read(key)"),
        (other, "    return self.read(key)"),
        (one, f"TimeoutError: shard {step} was not there"),
        (other, f"TimeoutError: shard {step} was not there"),
    ]
    return [f"[default{rank % PER_HOST}]:[rank{rank}]: {text}" for rank, text in lines]


def start():
    """NCCL's INFO lines of the world's communicator."""
    for rank in range(RANKS):
        host, pid = f"node-{rank // PER_HOST:04d}", 10_000 + rank
        head = f"{host}:{pid}:{pid + 5000} [{rank % PER_HOST}] NCCL INFO "
        comm = (
            f"ncclCommInitRank comm 0x55{rank:06x} rank {rank} nranks {RANKS} cudaDev {rank % PER_HOST} nvmlDev "
            f"0 busId 1b000"
        )
        yield f"{head}{comm} commId 0x1ad9c0ffee - Init START"
        for channel in range(4):
            before, behind = (rank - 1) % RANKS, (rank + 1) % RANKS
            yield f"{head}Ring {channel:02d} : {before} -> {rank} -> {behind}"
            yield f"{head}Channel {channel:02d}/0 : {before}[7] -> {rank}[0] [receive] via NET/IB/{channel}/GDRDMA"
            yield f"{head}Channel {channel:02d}/0 : {rank}[0] -> {behind}[0] [send] via NET/IB/{channel}/GDRDMA"
        yield f"{head}{comm} commId 0x1ad9c0ffee - Init COMPLETE"


def end():
    """The hang: every rank but one times out."""
    for rank in range(RANKS):
        if rank == SILENT:
            continue
        head = f"[rank{rank}]:[E918 23:59:{rank % 60:02d}.{rank:09d} ProcessGroupNCCL.cpp:"
        yield (
            f"{head}632] [Rank {rank}] Watchdog caught collective operation timeout: "
            f"WorkNCCL(SeqNum={SEQ}, OpType=ALLREDUCE, NumelIn=4096, NumelOut=4096, Timeout(ms)=600000) "
            f"ran for 600031 milliseconds before timing out."
        )
        yield (
            f"{head}2271] [PG ID 0 PG GUID 0(default_pg) Rank {rank}]  failure detected by watchdog "
            f"at work sequence id: {SEQ} PG status: last enqueued work: {SEQ}, last completed work: {SEQ - 1}"
        )


def calls(size, chance):
    """NCCL's COLL lines: what NCCL_DEBUG_SUBSYS=COLL makes of a log."""
    written = 0
    for number in itertools.count():
        if written >= size:
            return
        rank = chance.randrange(RANKS)
        text = (
            f"node-{rank // PER_HOST:04d}:{10_000 + rank}:{10_000 + rank} [{rank % PER_HOST}] NCCL INFO "
            f"AllReduce: opCount {number // RANKS:x} sendbuff 0x7f0000000000 recvbuff 0x7f0000000000 count 4096 "
            f"datatype 7 op 0 root 0 comm 0x55{rank:06x} [nranks={RANKS}] stream 0x55"
        )
        written += len(text) + 1
        yield text


def write(path, size, *, is_calls=False):
    """Write a log of about so many bytes."""
    chance = random.Random(4)
    noise = []
    length = 0
    while length < min(size, _BLOCK):
        noise.append(line(chance, len(noise) // RANKS, len(noise) % RANKS))
        length += len(noise[-1]) + 1
        if chance.random() < 0.0005:
            noise += odd(chance, len(noise))
    if is_calls:
        noise = list(calls(min(size, _BLOCK), chance))
    block = "\n".join(noise).encode() + b"\n"
    with path.open("wb") as file:
        file.write("\n".join(start()).encode() + b"\n")
        while file.tell() < size:
            file.write(block)
        file.write("\n".join(end()).encode() + b"\n")
