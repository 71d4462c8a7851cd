"""One fault of a known kind, planted in the programs of a job, and what may be said about it.

A planter changes the items of `program` and gives the `Truth`, or None where the job has no place for such a fault.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace

from generated.program import P2P, WAIT, Call, Compute, Halt

NOBODY = frozenset()
LATE = ("RANK_NOT_ENTERED", "P2P_UNPAIRED")
OPEN = ("ALL_ENTERED_NONE_COMPLETED", "PARTIAL_COMPLETION")
DIVERGED = ("SIGNATURE_MISMATCH", "SKIPPED_CALL", "EXTRA_CALL")


@dataclass
class Truth:
    """What was planted, and which verdicts are right or honest.

    Attributes:
        kind: Name of the fault.
        guilty: Ranks that may be named; every other rank is innocent.
        right: Structures that are right, with culprits among the guilty.
        right_empty: Structures that are right without culprits.
        honest: Structures that are honest without culprits: they say less than could be known, and nothing false.
        spared: Ranks whose naming is wrong, but cannot be told from a right one by what is recorded: not counted as
            innocents.
        what: For the reader.
    """

    kind: str
    guilty: frozenset[int] = NOBODY
    right: tuple[str, ...] = ()
    right_empty: tuple[str, ...] = ()
    honest: tuple[str, ...] = ()
    spared: frozenset[int] = NOBODY
    what: str = ""
    dead_rounds: dict = field(default_factory=dict)
    needs: str = "hang"


@dataclass
class Job:
    """What a planter may look at."""

    rng: object
    program: object
    layout: object
    is_blocking: bool

    @property
    def world(self):
        return self.layout.world

    def rank(self):
        return self.rng.randrange(self.world)

    def members(self, key):
        return self.layout.groups[key].ranks

    def place(self, rank, fits=lambda item: isinstance(item, Call)):
        """A place in a rank's program, not in its first fifth, whose item fits; None where there is none."""
        items = self.program.items[rank]
        first = len(items) // 5
        places = [at for at in range(first, len(items)) if fits(items[at])]
        return self.rng.choice(places) if places else None

    def number(self, rank, at):
        """Which of its group's collectives a call is, from 0."""
        items, group = self.program.items[rank], self.program.items[rank][at].group
        return sum(1 for item in items[:at] if is_collective(item) and item.group == group)

    def twin(self, rank, group, number):
        """Where the collective of this number in a group stands in the program of another member."""
        found = [at for at, item in enumerate(self.program.items[rank]) if is_collective(item) and item.group == group]
        return found[number]


def is_collective(item):
    return isinstance(item, Call) and item.op not in P2P and not item.batch


def is_p2p(item):
    return isinstance(item, Call) and not is_collective(item)


def healthy(job):
    # A dump on demand does not say that the job goes on: an open round may be told, but nobody is to be named.
    return Truth("healthy", right_empty=("HEALTHY", "IN_PROGRESS"), honest=OPEN, needs="no hang")


def _halt(job, how, kind, rank=None, at=None):
    rank = job.rank() if rank is None else rank
    at = job.place(rank) if at is None else at
    if at is None:
        return None
    job.program.items[rank][at:] = [Halt(how)]
    # One that ends may have entered calls that it never finishes; one that leaves has made fewer calls than the others.
    right = {
        "dead": (*LATE, *OPEN, "DEVICE_STUCK", "KERNEL_NOT_STARTED", "ERROR_REPORTED"),
        "exit": (*LATE, "SKIPPED_CALL"),
    }.get(how, LATE)
    return Truth(kind, frozenset({rank}), right, honest=(*LATE, *OPEN, "ERROR_REPORTED"), what=f"rank {rank}: {how}")


def idle(job):
    return _halt(job, "idle", "idle")


def stopped(job):
    return _halt(job, "stopped", "stopped")


def dead(job):
    return _halt(job, "dead", "dead")


def exited_early(job):
    """It leaves the loop a step or more before the others."""
    rank = job.rank()
    steps = [item.step for item in job.program.items[rank] if isinstance(item, Call)]
    if not steps or steps[-1] < 2:
        return None
    last = job.rng.randint(1, steps[-1])
    at = next(n for n, item in enumerate(job.program.items[rank]) if isinstance(item, Call) and item.step >= last)
    return _halt(job, "exit", "exited_early", rank, at)


def two_faults(job):
    """Two ranks stop on their own, at about the same place."""
    if job.world < 4:
        return None
    one, two = job.rng.sample(range(job.world), 2)
    at = job.place(one)
    if at is None or at >= len(job.program.items[two]):
        return None
    job.program.items[one][at:] = [Halt("idle")]
    job.program.items[two][at:] = [Halt(job.rng.choice(("idle", "dead")))]
    both = frozenset({one, two})
    return Truth(
        "two_faults",
        both,
        (*LATE, *OPEN, "DEVICE_STUCK", "KERNEL_NOT_STARTED", "ERROR_REPORTED"),
        honest=(*LATE, *OPEN),
        what=f"ranks {one} and {two}",
    )


def device_stuck(job):
    """The device does not get through its work: before a call, or in it while the others' calls end."""
    if job.is_blocking:
        return None
    rank = job.rank()
    at = job.place(rank, lambda item: is_collective(item) and len(job.members(item.group)) > 1)
    if at is None:
        return None
    items = job.program.items[rank]
    right = ("DEVICE_STUCK", "KERNEL_NOT_STARTED", *LATE)
    if job.rng.random() < 0.3:
        items.insert(at, Compute(0.01, hangs=True))
        # Without recorded starts, its call looks like those of the ranks that wait for it.
        what = f"rank {rank}: its device hangs before a call"
        return Truth("device_stuck", frozenset({rank}), right, OPEN[:1], (*OPEN, *LATE), what=what)
    items[at] = replace(items[at], never_ends=True)
    what = f"rank {rank}: its device does not end a call that the others end"
    return Truth("device_stuck", frozenset({rank}), right, honest=(*OPEN, *LATE, "DEVICE_STUCK"), what=what)


def network(job):
    """A round that everyone is in and nobody, or not everybody, gets out of."""
    rank = job.rank()
    at = job.place(rank, lambda item: is_collective(item) and len(job.members(item.group)) > 1)
    if at is None:
        return None
    call = job.program.items[rank][at]
    members = job.members(call.group)
    key = (call.group, job.number(rank, at))
    out = NOBODY
    if len(members) >= 6 and job.rng.random() < 0.3:
        # An arc of two or more ranks, as of a ring that is cut, and two or more beside it.
        first, length = job.rng.randrange(len(members)), job.rng.randint(2, len(members) - 2)
        arc = {members[(first + n) % len(members)] for n in range(length)}
        out = frozenset(members) - arc
    right = ("PARTIAL_COMPLETION",) if out else ("ALL_ENTERED_NONE_COMPLETED",)
    what = f"group {call.group} call {key[1] + 1}: the network; out of it: {sorted(out)}"
    return Truth("network", right_empty=right, honest=(*OPEN, "DEVICE_STUCK"), dead_rounds={key: out}, what=what)


def order_deadlock(job):
    """One rank makes two calls in the opposite order."""
    rank = job.rank()
    items = job.program.items[rank]
    calls = [at for at, item in enumerate(items) if isinstance(item, Call)]
    pairs = []
    for one, two in itertools.pairwise(calls):
        first, second = items[one], items[two]
        if not (is_collective(first) and is_collective(second)) or first.group == second.group:
            continue
        common = set(job.members(first.group)) & set(job.members(second.group))
        if len(common) > 1 and one > len(items) // 5:
            pairs.append((one, two))
    if not pairs:
        return None
    one, two = job.rng.choice(pairs)
    groups = (items[one].group, items[two].group)
    for number, at in ((job.number(rank, one), one), (job.number(rank, two), two)):
        for member in job.members(items[at].group):
            there = job.twin(member, items[at].group, number)
            job.program.items[member][there] = replace(job.program.items[member][there], is_async=False)
    items[one], items[two] = items[two], items[one]
    what = f"rank {rank} calls group {groups[1]} before group {groups[0]}"
    return Truth("order_deadlock", right_empty=("ORDER_DEADLOCK",), honest=OPEN, spared=frozenset({rank}), what=what)


def skipped(job):
    rank = job.rank()
    at = job.place(rank, lambda item: is_collective(item) and len(job.members(item.group)) > 2)
    if at is None:
        return None
    call = job.program.items[rank].pop(at)
    right = ("SKIPPED_CALL", "SIGNATURE_MISMATCH", "RANK_NOT_ENTERED")
    what = f"rank {rank} skips {call.op} of group {call.group} in step {call.step}"
    return Truth("skipped", frozenset({rank}), right, honest=(*DIVERGED, *LATE, *OPEN, "ORDER_DEADLOCK"), what=what)


def extra(job):
    rank = job.rank()
    at = job.place(rank, lambda item: is_collective(item) and len(job.members(item.group)) > 2)
    if at is None:
        return None
    call = replace(job.program.items[rank][at], site=job.program.site("extra"), is_async=False)
    if job.rng.random() < 0.4:
        call = replace(call, op="all_reduce", numel=3, reduce_op="SUM", root=None)
    job.program.items[rank].insert(at, call)
    right = ("EXTRA_CALL", "SIGNATURE_MISMATCH")
    what = f"rank {rank} makes one more {call.op} in group {call.group} in step {call.step}"
    return Truth("extra", frozenset({rank}), right, honest=(*DIVERGED, *LATE, *OPEN, "ORDER_DEADLOCK"), what=what)


OTHER_DTYPE = {"float32": "float16", "bfloat16": "float32"}
CHANGES = ("op", "size", "dtype", "root", "reduce_op")


def _changed(job, call, how):
    """The call with another signature; None where that cannot be."""
    if how == "op":
        op = "all_gather_into_tensor" if call.op == "all_reduce" else "all_reduce"
        return replace(call, op=op, root=None, reduce_op="SUM" if op == "all_reduce" else None)
    if how == "size" and not call.op.startswith(("all_to_all", "barrier", "uneven")):
        return replace(call, numel=call.numel + 8 * job.rng.randint(1, 9))
    if how == "dtype" and call.op != "barrier":
        return replace(call, dtype=OTHER_DTYPE[call.dtype])
    if how == "root" and call.root is not None:
        others = [rank for rank in job.members(call.group) if rank != call.root]
        return replace(call, root=job.rng.choice(others))
    if how == "reduce_op" and call.reduce_op:
        return replace(call, reduce_op="MAX")
    return None


def _signature(job, kind, how_many):
    rank = job.rank()
    at = job.place(rank, lambda item: is_collective(item) and len(job.members(item.group)) >= how_many[0])
    if at is None:
        return None
    call = job.program.items[rank][at]
    members = job.members(call.group)
    number = job.number(rank, at)
    count = how_many[1](len(members))
    if count is None:
        return None
    how = job.rng.choice(CHANGES)
    changed = _changed(job, call, how)
    if changed is None or changed.signature == call.signature:
        return None
    others = job.rng.sample([member for member in members if member != rank], count - 1)
    for member in (rank, *others):
        there = job.twin(member, call.group, number)
        mine = job.program.items[member][there]
        differing = {name: getattr(changed, name) for name in ("op", "numel", "dtype", "root", "reduce_op")}
        job.program.items[member][there] = replace(mine, **differing)
    changes = f"{how} {changed.signature} for {call.signature}"
    what = f"ranks {sorted((rank, *others))}: {changes} in group {call.group} call {number + 1}"
    truth = Truth(kind, what=what, honest=("SIGNATURE_MISMATCH", *OPEN, *LATE))
    if how in ("root", "reduce_op"):
        truth.needs = "hang, hidden in dumps"
    return truth, frozenset((rank, *others))


def signature(job):
    """Fewer than half of a group make another call."""
    made = _signature(job, "signature", (3, lambda size: job.rng.randint(1, max(1, (size - 1) // 4))))
    if made is None:
        return None
    truth, guilty = made
    truth.guilty, truth.right = guilty, ("SIGNATURE_MISMATCH",)
    return truth


def half_split(job):
    """Half of a group makes another call: no side is the right one."""
    made = _signature(job, "half_split", (2, lambda size: size // 2 if size % 2 == 0 else None))
    if made is None:
        return None
    truth, _ = made
    truth.right_empty = ("SIGNATURE_MISMATCH",)
    return truth


def pair_split(job):
    """One of two ranks skips a call, or makes one more: neither can be said to be the right one."""
    rank = job.rank()
    at = job.place(rank, lambda item: is_collective(item) and len(job.members(item.group)) == 2)
    if at is None:
        return None
    call = job.program.items[rank][at]
    if job.rng.random() < 0.5:
        job.program.items[rank].pop(at)
        what = f"rank {rank} skips a call of group {call.group}"
    else:
        job.program.items[rank].insert(at, replace(call, site=job.program.site("extra"), is_async=False))
        what = f"rank {rank} makes one more call in group {call.group}"
    both = frozenset(job.members(call.group))
    honest = (*LATE, *OPEN, "ORDER_DEADLOCK")
    return Truth("pair_split", right_empty=DIVERGED, honest=honest, spared=both, what=what)


def p2p_unpaired(job):
    """A send or a recv is left out, or goes to the wrong peer."""
    rank = job.rank()
    at = job.place(rank, is_p2p)
    if at is None:
        return None
    call = job.program.items[rank][at]
    parts = list(call.batch or (call,))
    which = job.rng.randrange(len(parts))
    part = parts[which]
    others = [member for member in job.members(call.group) if member not in (rank, part.peer)]
    if others and job.rng.random() < 0.4:
        parts[which] = replace(part, peer=job.rng.choice(others))
        what = f"rank {rank}: {part.op} with {parts[which].peer} for {part.peer} in step {call.step}"
    else:
        del parts[which]
        what = f"rank {rank}: no {part.op} with {part.peer} in step {call.step}"
    if not call.batch:
        job.program.items[rank][at : at + 1] = parts
    elif parts:
        job.program.items[rank][at] = replace(call, batch=tuple(parts))
    else:
        job.program.items[rank][at] = WAIT
    right = (*LATE,)
    return Truth("p2p_unpaired", frozenset({rank}), right, LATE[1:], (*LATE, *OPEN, "ORDER_DEADLOCK"), what=what)


PLANTERS = {
    "healthy": healthy,
    "in_progress": healthy,
    "idle": idle,
    "stopped": stopped,
    "dead": dead,
    "exited_early": exited_early,
    "two_faults": two_faults,
    "device_stuck": device_stuck,
    "network": network,
    "order_deadlock": order_deadlock,
    "skipped": skipped,
    "extra": extra,
    "signature": signature,
    "half_split": half_split,
    "pair_split": pair_split,
    "p2p_unpaired": p2p_unpaired,
}
