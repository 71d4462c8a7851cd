"""One line per known format and version, with values of our own in the exact printf formats, and what it says.

`log_lines.txt` has three lines each: what it is, the line, and the fact's kind with some of its fields.
"""

from __future__ import annotations

import json
import pathlib
from typing import NamedTuple


class Known(NamedTuple):
    what: str
    text: str
    kind: str
    fields: dict


def _read():
    for block in pathlib.Path(__file__).with_suffix(".txt").read_text().split("\n\n"):
        what, text, said = block.rstrip("\n").split("\n")
        kind, _, fields = said.partition(" ")
        yield Known(what, text, kind, json.loads(fields))


LINES = list(_read())


def line(what):
    """The text of a line by what it is."""
    return next(known.text for known in LINES if known.what == what)


def family(name):
    """The texts of a family's lines."""
    return [known.text for known in LINES if known.what.startswith(f"{name}: ")]


SUMMARY = """\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-29_17:48:29
  host      : node-a.cluster.example
  rank      : 9 (local_rank: 1)
  exitcode  : -15 (pid: 24319)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 24319
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-29_17:48:28
  host      : node-a.cluster.example
  rank      : 8 (local_rank: 0)
  exitcode  : 3 (pid: 24318)
  error_file: /tmp/errors/8.json
  traceback : Traceback (most recent call last):
    File "/app/train.py", line 12, in main
      raise ValueError("no")
  ValueError: no

============================================================
"""
"""What torchrun prints in the end."""

DESYNC = """\
[rank0]:[E626 10:42:17.1 ProcessGroupNCCL.cpp:632] [Rank 0] something
\t - [0] Timeout at collective: ALLREDUCE, #315
\t - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:
\t   - [1, 3] joined but didn't finish collective #315 (count from 1)
\t     [2] finished collective #314, but didn't join collective #315 (count from 1)
\t - Snapshot of ranks' latest states:
\t   #315 started ranks:
\t     [0, 1, 3] started ALLREDUCE
\t   #314 finished ranks:
\t     [2] finished BROADCAST
nothing of it
"""
"""torch's desync report."""

NCCL_START = """\
node-a:101:101 [0] NCCL INFO Bootstrap : Using eth0:192.0.2.1<0>
NCCL version 2.27.3+cuda12.9
node-a:101:111 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:192.0.2.1<0>
node-a:101:111 [0] NCCL INFO Using network IB
node-a:101:111 [0] NCCL INFO ncclCommInitRank comm 0x55a0 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x1ad9 - Init START
node-b:202:222 [0] NCCL INFO Bootstrap : Using eth0:192.0.2.2<0>
node-b:202:222 [0] NCCL INFO ncclCommInitRank comm 0x55b0 rank 1 nranks 2 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x1ad9 - Init START
node-a:101:111 [0] NCCL INFO Channel 00/02 :    0   1
node-a:101:111 [0] NCCL INFO Ring 00 : 1 -> 0 -> 1
node-a:101:111 [0] NCCL INFO Trees [0] 1/-1/-1->0->-1 [1] -1/-1/-1->0->1
node-a:101:111 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0/GDRDMA
node-a:101:111 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/1(0)/GDRDMA(PCI)/Shared
node-b:202:222 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [send] via NET/Socket/0
node-b:202:222 [0] NCCL INFO Channel 01 : 1[3d000] -> 0[1b000] via P2P/direct pointer
node-a:101:111 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 1
node-a:101:111 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0/GDRDMA
node-a:101:111 [0] NCCL INFO Connected all trees
node-a:101:111 [0] NCCL INFO ncclCommInitRank comm 0x55a0 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x1ad9 - Init COMPLETE
node-a:101:101 [0] NCCL INFO Channel 02/1 : 0[0] -> 1[0] [send] via NET/IB/0
node-a:101:101 [0] NCCL INFO AllReduce: opCount 1f sendbuff 0x7f0 recvbuff 0x7f0 count 1024 datatype 7 op 0 root 0 comm 0x55a0 [nranks=2] stream 0x66
[2026-05-04 19:55:27] node-b:202:202 [0] NCCL INFO Broadcast: opCount 20 sendbuff 0x7f0 recvbuff 0x7f0 count 12 datatype 9 op 0 root 1 comm 0x55b0 [nranks=2] stream 0x66
node-a:101:101 [0] NCCL INFO Send: opCount 21 sendbuff 0x7f0 recvbuff (nil) count 12 datatype 9 op 0 root 1 comm 0x55a0 [nranks=2] stream 0x66
"""  # noqa: E501
"""INFO lines of two processes, of which one finishes its initialisation."""

MIXED = SUMMARY + DESYNC + NCCL_START
