"""What each rank of a made-up job does: its groups, and its calls in order, as data-, tensor- and pipeline-parallel
frameworks issue them.

A program is a list of items per rank. `Call` is a collective, a send, a recv or a batch of sends and recvs; `Compute`
keeps the device busy; `WAIT` makes the device's compute stream wait for the asynchronous calls so far; `SYNC` makes the
host wait for the device. Faults are planted by changing these lists (`faults.py`); `simulator.py` runs them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

P2P = ("send", "recv")
REDUCING = ("all_reduce", "reduce_scatter_tensor", "reduce", "all_reduce_coalesced", "reduce_scatter_tensor_coalesced")
ROOTED = ("broadcast", "reduce", "gather", "scatter")
UNEVEN_GATHER = "uneven all_gather"
"""all_gather of tensors of different sizes, which NCCL runs as a coalesced group of broadcasts."""


@dataclass(frozen=True)
class Group:
    """A process group; `ranks` in group order."""

    key: int
    name: str
    desc: str
    ranks: tuple[int, ...]
    shared_name: str = ""
    """The name where torch gives one name to several groups; tables of calls, which have only names, use the other."""

    @property
    def torch_name(self):
        return self.shared_name or self.name


@dataclass(frozen=True)
class Site:
    """A call site: frames from the innermost one of the user out, `(file, line, function)`."""

    frames: tuple[tuple[str, int, str], ...]


@dataclass(frozen=True)
class Call:
    """One rank's part of a collective, or a send or recv; `batch` are the p2p calls of a batch_isend_irecv."""

    op: str
    group: int
    numel: int = 1024
    dtype: str = "float32"
    root: int | None = None
    peer: int | None = None
    reduce_op: str | None = None
    is_async: bool = False
    site: int = 0
    step: int = 0
    batch: tuple[Call, ...] = ()
    never_ends: bool = False
    """A fault: this rank's device never finishes the call, though the others' do."""

    @property
    def signature(self):
        """What must be equal on all ranks of a round; splits of an all_to_all may differ."""
        numel = None if self.op.startswith("all_to_all") else self.numel
        return (self.op, numel, self.dtype, self.root, self.reduce_op)


@dataclass(frozen=True)
class Compute:
    """Work of the device between calls; `hangs`: a fault, it never ends."""

    seconds: float
    hangs: bool = False


@dataclass(frozen=True)
class Halt:
    """The host stops here: `idle`, `stopped`, `dead`, `exit` (in order, once the device is done)."""

    how: str


WAIT = "wait"
SYNC = "sync"


class Layout:
    """Groups of a job in the order in which every rank asks for them; groups of one rank are made too at times."""

    def __init__(self, rng, world):
        self.rng = rng
        self.world = world
        self.groups = [Group(0, "0", "default_pg", tuple(range(world)))]
        self.families = {"world": [0]}
        self._made = 0
        self.is_described = rng.random() < 0.6

    def family(self, desc, member_lists):
        """One group per member list, as frameworks make them: each takes a name, on every rank."""
        keys = []
        for ranks in member_lists:
            self._made += 1
            key = len(self.groups)
            name = desc if self.is_described else "undefined"
            self.groups.append(Group(key, str(self._made), name, tuple(sorted(ranks))))
            keys.append(key)
        self.families[desc] = keys
        return keys

    def of(self, desc, rank):
        """The group of a family that a rank is in; None where it is in none."""
        return next((key for key in self.families[desc] if rank in self.groups[key].ranks), None)

    def grid(self, **sizes):
        """Coordinates of every rank, the first axis varying fastest."""
        at = {}
        for rank in range(self.world):
            rest, at[rank] = rank, {}
            for axis, size in sizes.items():
                at[rank][axis] = rest % size
                rest //= size
        return at

    def lines(self, at, along):
        """Member lists of the groups along some axes: ranks that agree on all others."""
        found = {}
        for rank, place in at.items():
            found.setdefault(tuple(v for axis, v in place.items() if axis not in along), []).append(rank)
        return list(found.values())


class Program:
    """Builds the item lists of all ranks."""

    def __init__(self, rng, layout):
        self.rng = rng
        self.layout = layout
        self.items = {rank: [] for rank in range(layout.world)}
        self.sites = [Site((("train.py", 1, "<module>"),))]
        self._site_keys = {}
        self.step = 0
        self.depth = rng.choice((1, 1, 2, 3))

    def site(self, name):
        """The call site of this name; its frames are made up once."""
        if name not in self._site_keys:
            line = 20 + 7 * len(self._site_keys)
            inner = (("/app/model.py", 200 + line, name.split(".")[0]), ("/app/engine.py", 90, "step"))[
                : self.depth - 1
            ]
            frames = (*inner, ("/app/train.py", line, "main"), ("/app/train.py", 300, "<module>"))
            self._site_keys[name] = len(self.sites)
            self.sites.append(Site(frames))
        return self._site_keys[name]

    def call(self, rank, group, op, site, **more):
        if group is None:
            return
        if op in REDUCING:
            more.setdefault("reduce_op", "SUM")
        if op in ROOTED:
            more.setdefault("root", self.layout.groups[group].ranks[0])
        self.items[rank].append(Call(op=op, group=group, site=self.site(site), step=self.step, **more))

    def compute(self, rank, seconds):
        self.items[rank].append(Compute(seconds * self.rng.uniform(0.9, 1.1)))

    def add(self, rank, item):
        self.items[rank].append(item)

    def everyone(self):
        return range(self.layout.world)


SIZES = (16, 1024, 4096, 65536, 1 << 20)


def loop(rng, world):
    """A plain loop over the world group: a few collectives per step, each at a line of its own."""
    layout = Layout(rng, world)
    program = Program(rng, layout)
    ops = (
        "all_reduce",
        "all_reduce",
        "all_gather_into_tensor",
        "reduce_scatter_tensor",
        "broadcast",
        "all_to_all_single",
    )
    ops += ("barrier", "reduce", "all_gather", "all_reduce_coalesced", UNEVEN_GATHER)
    calls = [(rng.choice(ops), rng.choice(SIZES), rng.random() < 0.3) for _ in range(rng.randint(1, 4))]
    syncs = rng.choice((0, 1, 1, 3))
    for step in range(rng.randint(4, 24)):
        program.step = step
        for rank in program.everyone():
            program.compute(rank, 0.005)
            for number, (op, numel, is_async) in enumerate(calls):
                more = {"numel": 1} if op == "barrier" else {"numel": numel, "is_async": is_async}
                program.call(rank, 0, op, f"loop{number}", **more)
            program.add(rank, WAIT)
            if syncs and step % syncs == 0:
                program.add(rank, SYNC)
    return program


def ddp(rng, world):
    """Broadcasts at the start, buckets of asynchronous all_reduces, a loss all_reduce now and then, barriers."""
    layout = Layout(rng, world)
    if rng.random() < 0.3:
        layout.family("EVAL_GROUP", [range(world)])
    program = Program(rng, layout)
    buckets = [rng.choice(SIZES[2:]) for _ in range(rng.randint(1, 5))]
    every, saves = rng.choice((1, 2, 4)), rng.choice((5, 8, 100))
    for rank in program.everyone():
        program.call(rank, 0, "broadcast", "init", numel=4096)
        program.call(rank, 0, "broadcast", "init", numel=64)
    for step in range(rng.randint(4, 16)):
        program.step = step
        for rank in program.everyone():
            program.compute(rank, 0.01)
            for numel in buckets:
                program.compute(rank, 0.002)
                program.call(rank, 0, "all_reduce", "backward", numel=numel, is_async=True)
            program.add(rank, WAIT)
            if step % every == every - 1:
                group = layout.families.get("EVAL_GROUP", [0])[0]
                program.call(rank, group, "all_reduce", "loss", numel=1)
                program.add(rank, SYNC)
            if step % saves == saves - 1:
                program.call(rank, 0, "barrier", "save", numel=1)
                program.add(rank, SYNC)
    return program


def hsdp(rng, world):
    """Fully sharded within groups, replicated across them; with one shard group it is plain FSDP."""
    layout = Layout(rng, world)
    shard = rng.choice([size for size in (2, 4, 8, world) if world % size == 0 and size <= world])
    at = layout.grid(shard=shard, replica=world // shard)
    if shard == world:
        layout.families["SHARD"] = [0]
    else:
        layout.family("SHARD", layout.lines(at, ("shard",)))
        layout.family("REPLICATE", layout.lines(at, ("replica",)))
    program = Program(rng, layout)
    layers = [rng.choice(SIZES[1:]) for _ in range(rng.randint(2, 4))]
    syncs = rng.choice((1, 2, 100))
    for step in range(rng.randint(3, 9)):
        program.step = step
        for rank in program.everyone():
            mine = layout.of("SHARD", rank)
            for numel in layers:
                program.call(rank, mine, "all_gather_into_tensor", "unshard", numel=numel, is_async=True)
                program.add(rank, WAIT)
                program.compute(rank, 0.004)
            for numel in reversed(layers):
                program.call(rank, mine, "all_gather_into_tensor", "unshard_backward", numel=numel, is_async=True)
                program.add(rank, WAIT)
                program.compute(rank, 0.006)
                program.call(rank, mine, "reduce_scatter_tensor", "reduce_grads", numel=numel, is_async=True)
                if shard != world:
                    group = layout.of("REPLICATE", rank)
                    program.add(rank, WAIT)
                    program.call(rank, group, "all_reduce", "replicate_grads", numel=numel, is_async=True)
            program.add(rank, WAIT)
            program.call(rank, 0, "all_reduce", "grad_norm", numel=1)
            if step % syncs == 0:
                program.add(rank, SYNC)
    return program


def mesh2d(rng, world):
    """Rows and columns, synchronous calls in each in a fixed order, and a world-wide one."""
    layout = Layout(rng, world)
    rows = rng.choice([size for size in (2, 3, 4, 8) if world % size == 0 and size < world] or [world])
    at = layout.grid(row=rows, column=world // rows)
    layout.family("ROW", layout.lines(at, ("row",)))
    if rows != world:
        layout.family("COLUMN", layout.lines(at, ("column",)))
    program = Program(rng, layout)
    families = list(layout.families)
    ops = (
        "all_reduce",
        "all_reduce",
        "all_gather_into_tensor",
        "broadcast",
        "reduce_scatter_tensor",
        "all_to_all_single",
    )
    calls = [(rng.choice(families), rng.choice(ops), rng.choice(SIZES)) for _ in range(rng.randint(3, 6))]
    calls.append(("ROW", "all_reduce", 64))
    syncs = rng.choice((0, 1, 2))
    for step in range(rng.randint(4, 14)):
        program.step = step
        for rank in program.everyone():
            for number, (family, op, numel) in enumerate(calls):
                program.compute(rank, 0.003)
                group = layout.of(family, rank)
                # Seen before in a group, these calls stand at one line or at lines of their own.
                program.call(rank, group, op, f"{family}{number}.{op}", numel=numel)
            if syncs and step % syncs == 0:
                program.add(rank, SYNC)
    return program


def megatron(rng, world):
    """Tensor, pipeline and data parallel, experts at times: 1F1B between stages, collectives within."""
    layout = Layout(rng, world)
    pipes = rng.choice([size for size in (2, 2, 4, 8) if world % size == 0])
    tensor = rng.choice([size for size in (1, 2, 4) if (world // pipes) % size == 0])
    data = world // pipes // tensor
    at = layout.grid(tp=tensor, dp=data, pp=pipes)
    layout.family("DATA_PARALLEL_GROUP", layout.lines(at, ("dp",)))
    if tensor > 1:
        layout.family("TENSOR_MODEL_PARALLEL_GROUP", layout.lines(at, ("tp",)))
    layout.family("PIPELINE_MODEL_PARALLEL_GROUP", layout.lines(at, ("pp",)))
    ends = [[rank for rank in line if at[rank]["pp"] in (0, pipes - 1)] for line in layout.lines(at, ("pp",))]
    layout.family("EMBEDDING_GROUP", ends)
    has_experts = tensor * data > 1 and rng.random() < 0.4
    if has_experts:
        layout.family("EXPERT_MODEL_PARALLEL_GROUP", layout.lines(at, ("tp", "dp")))
    program = Program(rng, layout)
    is_batched = rng.random() < 0.6
    micro = rng.randint(2, 4)
    syncs = rng.choice((1, 1, 2))
    hidden = rng.choice(SIZES[1:])
    work = _Stage(program, at, pipes, hidden, is_batched=is_batched, tensor=tensor, has_experts=has_experts)
    for step in range(rng.randint(2, 4)):
        program.step = step
        for rank in program.everyone():
            work.one_step(rank, micro)
            if data > 1:
                group = layout.of("DATA_PARALLEL_GROUP", rank)
                program.call(rank, group, "reduce_scatter_tensor", "finish_grads", numel=1 << 16)
            if pipes > 1 and at[rank]["pp"] in (0, pipes - 1):
                program.call(rank, layout.of("EMBEDDING_GROUP", rank), "all_reduce", "embedding_grads", numel=4096)
            program.call(rank, 0, "all_reduce", "grad_norm", numel=1)
            if data > 1:
                program.call(
                    rank, layout.of("DATA_PARALLEL_GROUP", rank), "all_gather_into_tensor", "params", numel=1 << 14
                )
            if step % syncs == 0:
                program.add(rank, SYNC)
    return program


class _Stage:
    """The work of a pipeline stage: 1F1B, with pairs of sends and recvs batched or one by one."""

    def __init__(self, program, at, pipes, hidden, *, is_batched, tensor, has_experts):
        self.program, self.at, self.pipes, self.hidden = program, at, pipes, hidden
        self.is_batched, self.tensor, self.has_experts = is_batched, tensor, has_experts

    def one_step(self, rank, micro):
        stage = self.at[rank]["pp"]
        warm = min(self.pipes - stage - 1, micro)
        for _ in range(warm):
            self._p2p(rank, "recv_forward", recv=-1)
            self._layer(rank, "forward")
            self._p2p(rank, "send_forward", send=+1)
        rest = micro - warm
        if rest:
            self._p2p(rank, "recv_forward", recv=-1)
        for number in range(rest):
            self._layer(rank, "forward")
            self._p2p(rank, "send_forward_recv_backward", send=+1, recv=+1)
            self._layer(rank, "backward")
            if number == rest - 1:
                self._p2p(rank, "send_backward", send=-1)
            else:
                self._p2p(rank, "send_backward_recv_forward", send=-1, recv=-1)
        for _ in range(warm):
            self._p2p(rank, "recv_backward", recv=+1)
            self._layer(rank, "backward")
            self._p2p(rank, "send_backward", send=-1)

    def _layer(self, rank, way):
        program = self.program
        program.compute(rank, 0.004)
        if self.tensor > 1:
            group = program.layout.of("TENSOR_MODEL_PARALLEL_GROUP", rank)
            program.call(rank, group, "all_reduce", f"{way}.attention", numel=self.hidden)
            program.call(rank, group, "all_reduce", f"{way}.mlp", numel=self.hidden)
        if self.has_experts:
            group = program.layout.of("EXPERT_MODEL_PARALLEL_GROUP", rank)
            program.call(rank, group, "all_to_all_single", f"{way}.dispatch", numel=self.hidden + 8 * (rank % 3))

    def _p2p(self, rank, site, send=None, recv=None):
        program = self.program
        group = program.layout.of("PIPELINE_MODEL_PARALLEL_GROUP", rank)
        ranks = program.layout.groups[group].ranks
        stage = self.at[rank]["pp"]
        calls = []
        for op, way in (("send", send), ("recv", recv)):
            if way is not None and 0 <= stage + way < self.pipes:
                more = {"peer": ranks[stage + way], "numel": self.hidden, "dtype": "bfloat16"}
                calls.append(Call(op, group, site=program.site(site), step=program.step, is_async=True, **more))
        if not calls:
            return
        if self.is_batched:
            first = calls[0]
            program.add(rank, replace(first, op="coalesced", batch=tuple(calls), peer=None))
        else:
            # Both ends must not begin with a send: even stages send first.
            program.items[rank] += calls if stage % 2 == 0 else calls[::-1]
        program.add(rank, WAIT)


def add_own_calls(program):
    """Calls of each rank in a group of its own, a different number on every rank: records get different numbers."""
    layout, rng = program.layout, program.rng
    shared = rng.choice(("", "own"))
    for rank in program.everyone():
        key = layout.family("OWN", [[rank]])[0]
        layout.groups[key] = replace(layout.groups[key], shared_name=shared)
        items = program.items[rank]
        for _ in range(rng.randint(0, 6)):
            call = Call("all_reduce", key, numel=8, reduce_op="SUM", site=program.site("own"))
            items.insert(rng.randrange(len(items) + 1), call)


STYLES = {"loop": loop, "ddp": ddp, "hsdp": hsdp, "mesh2d": mesh2d, "megatron": megatron}
