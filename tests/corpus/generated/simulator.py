"""Runs the programs of a job: when each call was entered, reached by the device, and done, on each rank.

The host puts calls into the queues of its device and goes on; only `SYNC` and, with `is_blocking` (gloo), every
synchronous call make it wait. On the device a call begins when the calls before it in its communicator's stream have
ended and the compute stream has come to it. A collective ends when all members' calls are at it and agree; a send and
its recv end together; a batch ends when each of its parts has met its other side. What never happens has no time:
whoever waits for it waits for ever.

There is no clock to advance: times follow from the order of things (the latest of what something waits for, plus how
long it takes), so a work list does.
"""

from __future__ import annotations

from collections import defaultdict, deque

from generated.program import P2P, SYNC, WAIT, Call, Compute, Halt

ENQUEUE_S = 60e-6
"""What a call costs the host."""
TRANSFER_S = 400e-6
"""How long a round takes once everyone is there."""
SPREAD_S = 150e-6
"""By how much the ends of a round differ between ranks."""


NEVER = float("inf")
EAGER_NUMEL = 4096
"""A broadcast so small is handed over before the others come."""


class Node:
    """Something on a rank's device: a call or a piece of compute work."""

    __slots__ = ("call", "end", "enter", "failed", "index", "pending", "rank", "ready", "seconds", "start", "users")

    def __init__(self, rank, call, enter, index):
        self.rank, self.call, self.enter, self.index = rank, call, enter, index
        self.start = self.end = None
        self.pending = 0
        self.ready = enter
        self.users = []
        self.seconds = 0.0
        self.failed = False


class Run:
    """The outcome: `calls[rank]` are the nodes of its calls in order of entering."""

    def __init__(self, world):
        self.calls = {rank: [] for rank in range(world)}
        self.at_end = {}
        """Time at which a rank's host came to the end of its program."""
        self.halted = {}
        """rank -> (how, time)."""
        self.blocked = {}
        """rank -> node that its host waits for."""
        self.rounds = defaultdict(list)
        self.mismatched = []

    def last_time(self):
        """The last thing that happened anywhere."""
        times = [node.end or node.start or node.enter for nodes in self.calls.values() for node in nodes]
        return max(times + list(self.at_end.values()) + [time for _, time in self.halted.values()])

    def hangs(self):
        """Whether a call was left open."""
        return any(node.end is None for nodes in self.calls.values() for node in nodes)


class _Rank:
    def __init__(self, rank, items, start):
        self.rank, self.items, self.time = rank, items, start
        self.place = 0
        self.compute = None  # the last node of the compute stream
        self.streams = {}  # communicator -> its last node
        self.asyncs = []  # asynchronous calls that nothing has waited for


class Simulator:
    """One run of a job.

    Args:
        rng: For jitter.
        world: Number of ranks.
        items: Program of each rank.
        groups: By key.
        is_blocking: The host waits for each synchronous call (gloo).
        dead_rounds: `(group, number)` of rounds that the network never ends, with the ranks that get out all the same.
    """

    def __init__(self, rng, world, items, groups, *, is_blocking=False, dead_rounds=None):
        self.rng, self.groups, self.is_blocking = rng, groups, is_blocking
        self.dead_rounds = dead_rounds or {}
        self.run = Run(world)
        self.ranks = [_Rank(rank, items[rank], rng.uniform(0, 0.02)) for rank in range(world)]
        self.sent = defaultdict(deque)
        self.counts = defaultdict(int)
        self.deaths = {}
        self.ends = defaultdict(float)  # the last end on a rank
        self.work = deque()
        self.parts = {}

    def go(self):
        """Run to the end, or to where nothing moves any more."""
        for rank in self.ranks:
            self._host(rank)
        while self.work:
            self._settle(self.work.popleft())
        return self.run

    # The host.

    def _host(self, rank):
        """Go on with a rank's program until it has to wait, or ends."""
        while rank.place < len(rank.items):
            item = rank.items[rank.place]
            rank.place += 1
            if self._does(rank, item):
                return
        if not self._waits(rank, self._tail(rank)):
            self.run.at_end[rank.rank] = rank.time

    def _does(self, rank, item):
        """Do one item; whether the host cannot go on."""
        if isinstance(item, Compute):
            self._compute(rank, item)
            return False
        if isinstance(item, Halt):
            return self._halts(rank, item)
        if item == SYNC:
            return self._waits(rank, self._tail(rank))
        if item == WAIT:
            self._join(rank)
            # gloo's wait is the host's.
            return self.is_blocking and self._waits(rank, self._tail(rank))
        node = self._enqueue(rank, item)
        return self.is_blocking and not item.is_async and self._waits(rank, node)

    def _halts(self, rank, item):
        if item.how == "exit" and self._waits(rank, self._tail(rank)):
            rank.place -= 1  # it comes back to this item
            return True
        # It dies or stops after whatever was seen of it.
        at = max(rank.time, self.ends[rank.rank]) + 1e-4
        self.run.halted[rank.rank] = (item.how, at)
        if item.how in ("dead", "exit"):
            self.deaths[rank.rank] = at
        return True

    def _waits(self, rank, node):
        """Whether the host has to wait for a node; it comes back when that has ended."""
        if node is None:
            return False
        if node.end is None:
            self.run.blocked[rank.rank] = node
            node.users.append(rank)
            return True
        rank.time = max(rank.time, node.end)
        return False

    def _tail(self, rank):
        """A node that ends when everything enqueued so far has; None where it has."""
        tails = [node for node in (rank.compute, *rank.streams.values()) if node is not None]
        open_ones = [node for node in tails if node.end is None]
        if open_ones:
            return self._add(rank, None, open_ones)
        rank.time = max([rank.time, *(node.end for node in tails)])
        return None

    def _join(self, rank):
        if rank.asyncs:
            before = [rank.compute] if rank.compute else []
            rank.compute = self._add(rank, None, before + rank.asyncs)
            rank.asyncs = []

    def _compute(self, rank, item):
        node = self._add(rank, None, [rank.compute] if rank.compute else [], seconds=item.seconds, hangs=item.hangs)
        rank.compute = node
        if self.is_blocking:
            rank.time += item.seconds

    def _enqueue(self, rank, call):
        rank.time += ENQUEUE_S * self.rng.uniform(0.5, 1.5)
        key = self._stream(rank.rank, call)
        before = [node for node in (rank.compute, rank.streams.get(key)) if node is not None]
        node = self._add(rank, call, before)
        rank.streams[key] = node
        if call.is_async:
            rank.asyncs.append(node)
        else:
            rank.compute = node
        return node

    @staticmethod
    def _stream(rank, call):
        """A lone send or recv runs on a communicator of the two; everything else on the group's."""
        if call.op in P2P:
            return (call.group, *sorted((rank, call.peer)))
        return (call.group,)

    def _add(self, rank, call, before, *, seconds=0.0, hangs=False):
        node = Node(rank.rank, call, rank.time, len(self.run.calls[rank.rank]))
        node.seconds = seconds
        node.failed = hangs
        if call is not None:
            self.run.calls[rank.rank].append(node)
            self._announce(node)
        for other in before:
            if other.end is None:
                node.pending += 1
                other.users.append(node)
            else:
                node.ready = max(node.ready, other.end)
        if node.pending == 0:
            self.work.append(node)
        return node

    def _announce(self, node):
        """Give a call its place among those of the other ranks, in the order of entering."""
        call = node.call
        if call.op in P2P or call.batch:
            for part in call.batch or (call,):
                there = (node.rank, part.peer) if part.op == "send" else (part.peer, node.rank)
                kind = "batch" if call.batch else "lone"
                number = self.counts[kind, call.group, there, part.op]
                self.counts[kind, call.group, there, part.op] += 1
                key = (kind, call.group, there, number)
                self.parts.setdefault(id(node), []).append(key)
                self.run.rounds[key].append(node)
        else:
            number = self.counts[node.rank, call.group]
            self.counts[node.rank, call.group] += 1
            key = (call.group, number)
            self.parts[id(node)] = [key]
            self.run.rounds[key].append(node)

    # The device.

    def _settle(self, node):
        """A node whose predecessors have ended starts; what can end then does."""
        if node.start is None:
            death = self.deaths.get(node.rank)
            if death is not None and node.ready > death:
                return
            node.start = node.ready
        if node.failed:
            return
        if node.call is None:
            self._end(node, node.start + node.seconds)
        elif node.call.batch or node.call.op in P2P:
            for key in self.parts[id(node)]:
                for other in self.run.rounds[key]:
                    self._end_p2p(other)
        else:
            if self._is_eager(node.call, node.rank):
                self._end(node, self._spread(node.start))
            self._end_round(self.parts[id(node)][0])

    def _is_eager(self, call, rank):
        """The root of a small broadcast need not wait for anybody."""
        small = call.op == "broadcast" and call.numel <= EAGER_NUMEL and call.root == rank
        return small and not self.is_blocking and not call.never_ends

    def _end_p2p(self, node):
        if node.start is None or node.end is not None or node.call.never_ends:
            return
        last = node.start
        for key in self.parts[id(node)]:
            both = self.run.rounds[key]
            if len(both) < 2 or any(one.start is None for one in both):
                return
            last = max(last, *(one.start for one in both))
            if any(self.deaths.get(one.rank, NEVER) < last for one in both):
                return
        self._end(node, self._spread(last))

    def _end_round(self, key):
        group, number = key
        nodes = self.run.rounds[key]
        if len(nodes) < len(self.groups[group].ranks):
            return
        if len({node.call.signature for node in nodes}) > 1:
            self.run.mismatched.append(key)
            return
        if any(node.start is None for node in nodes):
            return
        last = max(node.start for node in nodes)
        if any(self.deaths.get(node.rank, NEVER) < last for node in nodes):
            return
        dead = self.dead_rounds.get((group, number))
        for node in nodes:
            if (dead is None or node.rank in dead) and not node.call.never_ends:
                self._end(node, self._spread(last))

    def _spread(self, last):
        return last + TRANSFER_S + self.rng.uniform(0, SPREAD_S)

    def _end(self, node, time):
        death = self.deaths.get(node.rank)
        if node.end is not None or (death is not None and time > death):
            return
        node.end = time
        self.ends[node.rank] = max(self.ends[node.rank], time)
        users, node.users = node.users, []
        for user in users:
            if isinstance(user, _Rank):
                self.run.blocked.pop(user.rank, None)
                user.time = max(user.time, time)
                self._host(user)
            else:
                user.ready = max(user.ready, time)
                user.pending -= 1
                if user.pending == 0:
                    self.work.append(user)


def is_call(item):
    """Whether an item of a program is a call."""
    return isinstance(item, Call)
