"""A pipelined ring and tree as NCCL's kernels and proxies run them, with one edge cut or one rank stopped.

A process of a rank is a list of moves; a move takes from some edges and puts into some, all at once and only when all
can. An edge has `slots` places on either side. With `credit` the proxy sends only into a place that the receiver has
posted, as over InfiniBand; without, what is put is on the network at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Edge:
    put: int = 0
    transmitted: int = 0
    delivered: int = 0
    consumed: int = 0


@dataclass
class Pipeline:
    processes: list
    slots: int
    credit: bool = True
    cut: tuple | None = None
    after: int = 0
    freeze: int | None = None
    moves: int = 0
    edges: dict = field(default_factory=dict)

    def __post_init__(self):
        for _, moves in self.processes:
            for takes, puts in moves:
                for edge in (*takes, *puts):
                    self.edges.setdefault(edge, Edge())
        self.at = [0] * len(self.processes)

    def run(self):
        while self._network() | self._kernels():
            pass
        return self

    def _network(self):
        moved = False
        for name, edge in self.edges.items():
            room = edge.consumed + self.slots if self.credit else edge.put
            sent = min(edge.put, room)
            come = min(sent, self.after) if name == self.cut else sent
            moved |= (sent, come) != (edge.transmitted, edge.delivered)
            edge.transmitted, edge.delivered = max(sent, edge.transmitted), max(come, edge.delivered)
        return moved

    def _kernels(self):
        moved = False
        for number, (rank, moves) in enumerate(self.processes):
            if self.at[number] < len(moves) and self._may(rank, *moves[self.at[number]]):
                for edge in moves[self.at[number]][0]:
                    self.edges[edge].consumed += 1
                for edge in moves[self.at[number]][1]:
                    self.edges[edge].put += 1
                self.at[number] += 1
                moved = True
        return moved

    def _may(self, rank, takes, puts):
        if rank == self.freeze and self._made(rank) >= self.moves:
            return False
        return all(self.edges[e].delivered > self.edges[e].consumed for e in takes) and all(
            self.edges[e].put - (self.edges[e].delivered if self.credit else self.edges[e].consumed) < self.slots
            for e in puts
        )

    def _made(self, rank):
        return sum(at for at, (of, _) in zip(self.at, self.processes, strict=True) if of == rank)

    def total(self, edge):
        """Steps of an edge in the whole operation."""
        return sum(edge in takes for _, moves in self.processes for takes, _ in moves)

    @property
    def incomplete(self):
        return {rank for at, (rank, moves) in zip(self.at, self.processes, strict=True) if at < len(moves)}

    @property
    def members(self):
        return {rank for rank, _ in self.processes}


def ring(order, rounds, loops):
    """The processes of a ring: per loop a send, receive-and-sends, a receive; `rounds` of each edge.

    all_gather and reduce_scatter have n - 1 rounds, all_reduce has 2 (n - 1).
    """
    processes = []
    for at, rank in enumerate(order):
        come, go = (order[at - 1], rank), (rank, order[(at + 1) % len(order)])
        loop = [((), (go,)), *[((come,), (go,))] * (rounds - 1), ((come,), ())]
        processes.append((rank, loop * loops))
    return processes


def tree(parents, chunks):
    """The processes of a tree, all_reduce: up to the root and down again, each chunk by itself; both at once."""
    processes = []
    for rank in sorted({*parents, *parents.values()}):
        children = [child for child, parent in parents.items() if parent == rank]
        up_in = tuple((child, rank) for child in children)
        down_out = tuple((rank, child) for child in children)
        if rank not in parents:
            processes.append((rank, [(up_in, down_out)] * chunks))
        else:
            parent = parents[rank]
            processes.append((rank, [(up_in, ((rank, parent),))] * chunks))
            processes.append((rank, [(((parent, rank),), down_out)] * chunks))
    return processes
