"""What the ranks of a run leave behind as Flight Recorder dumps, in the layouts of torch 2.2 to 2.14, with losses."""

from __future__ import annotations

import json
import math
import pickle
from dataclasses import dataclass, field

import dumps
from generated.generate import DUMPING_S
from generated.program import P2P, UNEVEN_GATHER

START_NS = 1_750_000_000_000_000_000
POLL_S = 0.1
"""How often torch's watchdog looks for what has ended."""

NAMES = {
    "all_gather_into_tensor": "_all_gather_base",
    "reduce_scatter_tensor": "_reduce_scatter_base",
    "all_to_all_single": "all_to_all",
    "all_reduce_coalesced": "allreduce_coalesced",
    "barrier": "all_reduce_barrier",
}
DTYPES = {"float32": "Float", "float16": "Half", "bfloat16": "BFloat16"}
VERSIONS = {"2.1": "2.4", "2.4": "2.5", "2.9": "2.8", "2.10": "2.13"}
"""Layout -> the torch that first wrote it."""
TORCH_FRAMES = (
    ("all_reduce", "/usr/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 2806),
    ("wrapper", "/usr/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", 83),
)


@dataclass
class Form:
    """How the dumps of a job look."""

    version: str
    backend: str
    is_json: bool
    has_frames: bool
    has_status: bool
    is_timed: bool
    only_active: bool
    buffer: int | None
    is_laid_out: bool
    """Bytes as torch lays them out; else as Python's pickle does, which is quicker to make."""
    prefix: str
    missing: set = field(default_factory=set)
    truncated: set = field(default_factory=set)
    empty: set = field(default_factory=set)
    without_frames: set = field(default_factory=set)
    other_version: dict = field(default_factory=dict)

    def loses(self):
        """Whether anything is missing that the job's ranks would have left behind."""
        return bool(self.missing or self.truncated or self.empty or self.only_active or self.buffer)


def form(case):
    """A random form for a job."""
    rng = case.rng
    version = rng.choice(("2.1", "2.4", "2.4", "2.9", "2.10", "2.10", "2.10"))
    made = Form(
        version=version,
        backend="gloo" if case.is_blocking else "nccl",
        is_json=rng.random() < 0.2 and version != "2.1",
        has_frames=rng.random() < 0.65,
        has_status=version != "2.1",
        is_timed=rng.random() < 0.35,
        only_active=rng.random() < 0.15 and not case.is_blocking,
        buffer=rng.choice((None, None, None, 12, 25, 50)),
        is_laid_out=rng.random() < 0.15,
        prefix=rng.choice(("nccl_trace_rank_", "comm_lib_trace_rank_", "_dump_", "rank_")),
    )
    if case.is_blocking:
        made.version, made.is_timed = "2.10", False
    ranks = range(case.world)
    if rng.random() < 0.35:
        for lost in (made.missing, made.truncated, made.empty):
            if rng.random() < 0.4:
                lost |= set(rng.sample(ranks, min(case.world - 1, rng.randint(1, 2))))
    if rng.random() < 0.1:
        made.without_frames = set(rng.sample(ranks, rng.randint(1, case.world // 2)))
    if rng.random() < 0.04 and made.version == "2.10":
        made.other_version = {rng.choice(ranks): "2.9"}
    return made


def write(case, form, folder):
    """Write the dumps of a job; give the ranks that left one."""
    written = []
    for rank in range(case.world):
        how = case.run.halted.get(rank, ("", 0))[0]
        if rank in form.missing or how in ("dead", "stopped", "exit"):
            continue
        name = f"{form.prefix}{rank}" + (".json" if form.is_json else "")
        data = b"" if rank in form.empty else _bytes(_Dump(case, form, rank).whole(), form)
        if rank in form.truncated:
            data = data[: int(len(data) * case.rng.uniform(0.2, 0.95))]
        (folder / name).write_bytes(data)
        written.append(rank)
    return written


def _bytes(value, form):
    if form.is_json:
        return json.dumps(value).encode()
    return dumps.pickled(value) if form.is_laid_out else pickle.dumps(value, protocol=2)


class _Dump:
    """The dump of one rank."""

    def __init__(self, case, form, rank):
        self.case, self.form, self.rank = case, form, rank
        self.version = form.other_version.get(rank, form.version)
        self.offset = case.offsets[case.hosts[rank]]
        self.cut = case.cut + case.rng.uniform(0, DUMPING_S if case.is_cut_short else 3.0)
        mine = [group for group in case.layout.groups if rank in group.ranks]
        self.ids = {group.key: number for number, group in enumerate(mine)}
        self.mine = mine
        self.entries = []
        self.status = {}
        self.counts = {group.key: [0, 0, 0] for group in mine}  # collectives, p2p, ops
        self.frames = {}

    def ns(self, seconds):
        return START_NS + round((seconds + self.offset) * 1e9)

    def whole(self):
        for node in self.case.run.calls[self.rank]:
            if node.enter > self.cut:
                break
            self._add(node)
        kept = list(enumerate(self.entries))
        if self.form.buffer:
            kept = kept[-self.form.buffer :]
        if self.form.only_active:
            kept = [(number, entry) for number, entry in kept if entry["time_discovered_completed_ns"] is None]
        entries = [self._laid_out(number, entry) for number, entry in kept]
        made = {"version": self.version}
        config = {group.torch_name: self._config(group) for group in self.mine}
        made["pg_config"] = {"": dumps.group("", self.case.layout.groups[0].ranks, "")} if self._is_gloo() else config
        if self.version == "2.10":
            made["comm_lib_version"] = "" if self._is_gloo() else "2.27.5"
        if self.version == "2.9":
            made["nccl_version"] = "2.27.3"
        if self.form.has_status:
            made["pg_status"] = self._status()
        if entries or not self.form.is_json:
            made["entries"] = entries
        return made

    def _is_gloo(self):
        return self.form.backend == "gloo"

    @staticmethod
    def _config(group):
        return {"name": group.torch_name, "desc": group.desc, "ranks": str(list(group.ranks))}

    def _status(self):
        made = {}
        for group in self.mine:
            counters = self.status.get(group.key)
            if counters is None and group.key:
                continue
            enqueued, started, completed = counters or (-1, -1, -1)
            values = dumps.status(enqueued, started if self.form.is_timed else -1, completed)
            made[str(self.ids[group.key])] = {k: str(v) for k, v in values.items()} if self.form.is_json else values
        return made

    def _add(self, node):
        call = node.call
        counts = self.counts[call.group]
        if self._is_gloo():
            # gloo's dumps have no p2p, and no completions but `retired`.
            parts = call.batch or (call,)
            if call.op in P2P or call.batch:
                counts[2] += len(parts)
                self._note(node, counts[2])
                return
            counts[0] += 1
            counts[2] += 1
            self._note(node, counts[2])
            self._entry(node, f"gloo:{self._gloo_name(call)}", call, counts)
        elif call.batch:
            counts[1] += 1
            for part in call.batch:
                counts[2] += 1
                self._entry(node, self._p2p_name(part), part, counts, is_member=True, is_p2p=True)
            self._entry(node, "nccl:coalesced", None, counts, is_p2p=True)
            self._note(node, counts[1])
        elif call.op in P2P:
            counts[1] += 1
            counts[2] += 1
            self._entry(node, self._p2p_name(call), call, counts, is_p2p=True)
            self._note(node, counts[1])
        elif call.op == UNEVEN_GATHER:
            self._uneven(node, call, counts)
        else:
            counts[0] += 1
            counts[2] += 1
            self._entry(node, f"nccl:{NAMES.get(call.op, call.op)}", call, counts)
            self._note(node, counts[0])

    def _uneven(self, node, call, counts):
        """One broadcast per member and the end of the group, from schema 2.7 on."""
        counts[0] += 1
        for number in range(len(self.case.layout.groups[call.group].ranks)):
            counts[2] += 1
            if self.version in ("2.9", "2.10"):
                sizes = [[call.numel + number]]
                self._entry(node, "nccl:_broadcast_oop", call, counts, is_member=True, sizes=(sizes, sizes))
        self._entry(node, "nccl:ALLGATHER_coalesced", None, counts)
        self._note(node, counts[0])

    def _note(self, node, number):
        """What `pg_status` says of a work."""
        before = self.status.get(node.call.group, (-1, -1, -1))
        is_started = node.start is not None and node.start <= self.cut
        is_ended = node.end is not None and node.end <= self.cut
        self.status[node.call.group] = (
            number,
            number if is_started else before[1],
            number if is_ended else before[2],
        )

    def _gloo_name(self, call):
        names = {
            "reduce_scatter_tensor": "all_reduce",
            "all_gather_into_tensor": "all_gather",
            UNEVEN_GATHER: "all_gather",
        }
        names |= {"all_reduce_coalesced": "all_reduce", "all_to_all_single": "all_to_all"}
        return names.get(call.op, call.op)

    def _p2p_name(self, part):
        ranks = self.case.layout.groups[part.group].ranks
        mine, other = ranks.index(self.rank), ranks.index(part.peer)
        return f"nccl:send {mine}->{other}" if part.op == "send" else f"nccl:recv {mine}<-{other}"

    def _sizes(self, call):
        group = len(self.case.layout.groups[call.group].ranks)
        n = call.numel
        if call.op in ("all_gather_into_tensor", "all_gather", UNEVEN_GATHER):
            return [[n]], [[n * group]] if call.op == "all_gather_into_tensor" else [[n]] * group
        if call.op == "reduce_scatter_tensor":
            return [[n * group]], [[n]]
        if call.op == "all_reduce_coalesced":
            return [[n], [n]], [[n], [n]]
        if call.op == "barrier" and self._is_gloo():
            return [], []
        return [[n]], [[n]]

    def _entry(self, node, name, call, counts, *, is_member=False, is_p2p=False, sizes=None):
        group = self.case.layout.groups[node.call.group]
        ins, outs = sizes or (([], []) if call is None else self._sizes(call))
        if self._is_gloo() and call.op == "reduce_scatter_tensor":
            outs = ins
        dtype = DTYPES[node.call.dtype]
        is_started = node.start is not None and node.start <= self.cut and not is_member
        is_ended = node.end is not None and node.end <= self.cut and not is_member
        state = "completed" if is_ended else "started" if is_started and self.form.is_timed else "scheduled"
        found = None
        if is_ended:
            found = min(math.ceil(node.end / POLL_S) * POLL_S, self.cut)
        begun = min(math.ceil(node.start / POLL_S) * POLL_S, self.cut) if is_started else None
        is_retired = is_ended and found < self.cut
        if self._is_gloo():
            state, is_retired, found, begun = "scheduled", is_ended, None, None
        self.entries.append(
            {
                "pg_id": self.ids[group.key],
                "process_group": (group.torch_name, group.desc),
                "collective_seq_id": counts[0],
                "p2p_seq_id": counts[1],
                "op_id": counts[2],
                "profiling_name": name,
                "time_created_ns": self.ns(node.enter),
                "input_sizes": ins,
                "input_dtypes": [dtype] * len(ins),
                "output_sizes": outs,
                "output_dtypes": [dtype] * len(outs),
                "state": state,
                "time_discovered_started_ns": self.ns(begun) if begun is not None and self.form.is_timed else None,
                "time_discovered_completed_ns": None if found is None else self.ns(found),
                "retired": is_retired,
                "is_p2p": is_p2p,
                "_site": node.call.site,
                "_timed": is_ended and is_retired and self.form.is_timed and node.end - node.start,
            }
        )

    def _laid_out(self, number, entry):
        """An entry as this layout has it."""
        site, timed = entry.pop("_site"), entry.pop("_timed")
        made = {"record_id": number} | entry
        if self.version in ("2.9", "2.10"):
            made |= {"thread_id": "140000000000001", "thread_name": "python3"}
        if self.version != "2.1":
            made["timeout_ms"] = 600_000
        if timed:
            made["duration_ms"] = round(timed * 1e3, 4)
        if self.form.is_json:
            made["process_group"] = list(made["process_group"])
            for name in ("time_discovered_started_ns", "time_discovered_completed_ns"):
                made[name] = made[name] or 0
        elif self.form.has_frames and self.rank not in self.form.without_frames:
            made["frames"] = self._frames(site)
        return made

    def _frames(self, site):
        if site not in self.frames:
            inner = [{"name": n, "filename": f, "line": line} for n, f, line in TORCH_FRAMES]
            user = [{"name": n, "filename": f, "line": line} for f, line, n in self.case.program.sites[site].frames]
            self.frames[site] = inner + user
        return self.frames[site]
