"""Flight Recorder rings as NCCL fills them: what one rank calls, in its order, with sends, receives and batches.

Times are seconds from the start. A call without an end is open. Numbers count as torch's do: the collectives of a
group apart from its sends and receives, of which a batch counts once; counters have the number of the newest of both.
"""

from __future__ import annotations

from collections import defaultdict

import dumps

S = 1_000_000_000
WORLD = "0"


class Ring:
    """The ring of one rank; `groups` maps names to members, `WORLD` is the default one."""

    def __init__(self, rank, world, groups=None, *, timed=False):
        self.rank = rank
        self.groups = {WORLD: list(range(world))} | (groups or {})
        self.timed = timed
        self.entries = []
        self.count = 0
        self.seqs = defaultdict(int)
        self.pairs = defaultdict(int)
        self.status = {}

    def call(self, at, end=None, op="all_reduce", group=WORLD, *, started=None, **fields):
        """A collective; `started`: when its kernel began, for open calls of a timed ring."""
        self.seqs[group] += 1
        self._count_to(self.seqs[group], end, group)
        self._add(f"nccl:{op}", at, end, group, started, **fields)
        return self

    def send(self, to, at, end=None, group=WORLD, **fields):
        self._next_pair(end, group)
        return self._p2p("send", to, at, end, group, **fields)

    def recv(self, source, at, end=None, group=WORLD, **fields):
        self._next_pair(end, group)
        return self._p2p("recv", source, at, end, group, **fields)

    def batch(self, ops, at, end=None, group=WORLD, **fields):
        """batch_isend_irecv: its parts never end themselves, the entry behind them does."""
        self._next_pair(end, group)
        for number, (op, peer) in enumerate(ops):
            self._p2p(op, peer, at + 0.00001 * number, None, group, **fields)
        none = {"input_sizes": [], "input_dtypes": [], "output_sizes": [], "output_dtypes": []}
        self._add("nccl:coalesced", at + 0.0001, end, group, None, is_p2p=True, **none)
        return self

    def _next_pair(self, end, group):
        self.pairs[group] += 1
        self._count_to(self.pairs[group], end, group)

    def _count_to(self, number, end, group):
        completed = self.status.get(group, (-1, -1))[1]
        self.status[group] = number, completed if end is None else number

    def _p2p(self, op, peer, at, end, group, **fields):
        members = self.groups[group]
        mine, other = members.index(self.rank), members.index(peer)
        arrow = f"{mine}->{other}" if op == "send" else f"{mine}<-{other}"
        self._add(f"nccl:{op} {arrow}", at, end, group, None, is_p2p=True, **fields)
        return self

    def _add(self, op, at, end, group, started, **fields):
        began = started if end is None else at + (end - at) / 2 if started is None else started
        made = dumps.entry(
            self.count,
            op,
            self.seqs[group],
            p2p_seq_id=self.pairs[group],
            pg_id=list(self.groups).index(group),
            process_group=(group, "default_pg" if group == WORLD else group),
            time_created_ns=ns(at),
            time_discovered_started_ns=ns(began) if self.timed and began is not None else None,
            time_discovered_completed_ns=None if end is None else ns(end),
            state="completed" if end is not None else "started" if self.timed and began is not None else "scheduled",
            retired=end is not None,
        )
        self.entries.append(made | fields)
        self.count += 1

    def dump(self, keep=None):
        """The dump; `keep`: how many entries the ring holds."""
        kept = self.entries if keep is None else self.entries[-keep:]
        told = {
            str(number): dumps.status(self.status[name][0], -1, self.status[name][1])
            for number, name in enumerate(self.groups)
            if name in self.status
        }
        config = {name: dumps.group(name, ranks, name) for name, ranks in self.groups.items() if name != WORLD}
        return dumps.dump(kept, len(self.groups[WORLD]), config, told)


def ns(seconds):
    return dumps.T0 + round(seconds * S)


def write(folder, rings, keep=None):
    """One dump per ring; `keep`: entries kept, of all or by rank."""
    kept = keep if isinstance(keep, dict) else {ring.rank: keep for ring in rings}
    return dumps.write(folder, {f"nccl_trace_rank_{ring.rank}": ring.dump(kept.get(ring.rank)) for ring in rings})
