"""What a pipeline that hangs leaves behind: NCCLX dumps with counters of proxies, and NCCL's lines of its rings."""

from __future__ import annotations

from comm_dumps import HASH, T, comm, record

NUMBER = 4
"""The collective that hangs, after three that went well."""
STEP = 64
"""Bytes of a step."""


def op(kind, channel, mine, other, at, *, number=NUMBER, coll="AllReduce", total=0):
    """An operation of a proxy that is under way."""
    names = ("POSTED", "TRANSMITTED", "DONE") if kind == "SEND" else ("POSTED", "RECEIVED", "TRANSMITTED", "DONE")
    moved = max(at[name] for name in names[1:])
    return {
        "commHash": HASH,
        "opCount": number + 1,
        "coll": coll,
        "proxyOpId": channel,
        "channelId": channel,
        "rank": mine,
        "remoteRank": other,
        "stepSize": STEP,
        "nSteps": total,
        "opType": kind,
        "status": "IN_PROGRESS",
        "transSize": STEP * moved,
        "startTs": T + 41_000,
        "doneTs": None,
        **{name: {"step": at[name], "ts": T + 42_000 if at[name] else None} for name in names},
    }


def ops_of(pipelines, **fields):
    """The operations under way of each rank, of one pipeline per channel."""
    found = {}
    for channel, pipeline in enumerate(pipelines):
        total = {edge: pipeline.total(edge) for edge in pipeline.edges}
        for (a, b), edge in pipeline.edges.items():
            if edge.delivered < total[a, b]:
                at = {"POSTED": edge.consumed + pipeline.slots, "TRANSMITTED": edge.transmitted, "DONE": edge.delivered}
                found.setdefault(a, []).append(op("SEND", channel, a, b, at, total=total[a, b], **fields))
            if edge.consumed < total[a, b]:
                at = {"POSTED": edge.consumed + pipeline.slots, "RECEIVED": edge.delivered, "DONE": edge.consumed}
                at["TRANSMITTED"] = edge.delivered
                found.setdefault(b, []).append(op("RECV", channel, b, a, at, total=total[a, b], **fields))
    return found


def dumps(
    pipelines, *, coll="AllReduce", algorithm="Baseline_Simple_Ring_2", ahead=0, counters=True, count=1024, waits_s=60
):
    """A dump of each rank; `ahead` moves the proxies' count of the operation away from the collective's.

    Who got out goes on to the next collective, `waits_s` later.
    """
    size = len(pipelines[0].members)
    incomplete = set().union(*(one.incomplete for one in pipelines))
    active = ops_of(pipelines, coll=coll, number=NUMBER + ahead)
    made = {}
    for rank in range(size):
        told = {"opName": coll, "algoName": algorithm, "rank": rank, "nRanks": size, "count": count}
        past = [record(n, 10 * n, 10 * n + 1, 10 * n + 3, **told) for n in range(1, NUMBER)]
        last = record(NUMBER, 40, 41, None if rank in incomplete else 60, **told)
        after = record(NUMBER + 1, 1000 * waits_s, None, None, **told)
        lists = ([*past, last], [after]) if rank not in incomplete else (past, [last])
        proxies = {"PT_activeOps": active.get(rank, []), "PT_pastColls": []} if counters else {}
        made[rank] = {HASH: comm(rank, *lists, size=size, **proxies)}
    return made


def lines(orders, *, host="node-{}", trees=(), device=True, nranks=None):
    """NCCL's INFO lines of a communicator with these rings, and trees (parents of each rank), two ranks to a host."""
    size = len(orders[0]) if orders else nranks
    out = []
    for rank in range(size):
        name, pid = host.format(rank // 2), 100 + rank
        head = f"{name}:{pid}:{pid} [{rank % 2}] NCCL INFO "
        init = f"comm 0x{rank + 1:x}000 rank {rank} nranks {size} cudaDev {rank % 2} nvmlDev {rank % 2} busId 1b000 "
        if device:
            out.append(f"{head}NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.{rank // 2}<0>")
        out.append(f"{head}ncclCommInitRank {init}commId 0xabc - Init START")
        for channel, order in enumerate(orders):
            at = order.index(rank)
            before, after = order[at - 1], order[(at + 1) % size]
            out.append(f"{head}Ring {channel:02d} : {before} -> {rank} -> {after}")
            for a, b in ((before, rank), (rank, after)):
                side = "receive" if b == rank else "send"
                via = f"NET/IB/{rank % 2}" if a // 2 != b // 2 else "P2P/IPC"
                if a // 2 != b // 2 or side == "send":
                    out.append(f"{head}Channel {channel:02d}/0 : {a}[{a % 2}] -> {b}[{b % 2}] [{side}] via {via}")
        if trees:
            parts = []
            for channel, parents in enumerate(trees):
                below = [child for child, parent in parents.items() if parent == rank]
                three = "/".join(str(child) for child in [*below, -1, -1, -1][:3])
                parts.append(f"[{channel}] {three}->{rank}->{parents.get(rank, -1)}")
            out.append(f"{head}Trees {' '.join(parts)}")
        out.append(f"{head}ncclCommInitRank {init}commId 0xabc - Init COMPLETE")
    return "\n".join(out) + "\n"
