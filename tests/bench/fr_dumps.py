"""Large sets of Flight Recorder dumps, byte by byte as torch 2.13 pickles them: `python tests/bench/fr_dumps.py DIR`.

A job with a data, a tensor and a world group makes the same steps over and over; one rank does not come to the last
round of the world. Each rank's entries differ from its peers' in their times only, so that the bytes of one rank serve
for all whose names were stored under the same numbers.
"""

from __future__ import annotations

import argparse
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "unit" / "analyze"))

from dumps import Pickler, group, status

T0 = 1_790_000_000_000_000_000
US = 1_000
CALL_NS = 700 * US
"""From one call of a rank to the next."""
TENSOR = 8
"""Ranks of a tensor group."""
DEPTH = 15
SITES = 30
TIMES = ("time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns")

TP_CALLS = (
    ("_all_gather_base", [[1024, 1, 8192]], [[8192, 1, 8192]], "BFloat16"),
    ("_reduce_scatter_base", [[8192, 1, 8192]], [[1024, 1, 8192]], "BFloat16"),
    ("all_reduce", [[2048, 4096]], [[2048, 4096]], "BFloat16"),
)
LOSS = ("all_reduce", [[1]], [[1]], "Float")


def step(mix, world):
    """The calls of one step: role of the group, operation, sizes, type."""
    if mix == "world":  # FSDP: everything on the group of all ranks
        gather = ("world", "_all_gather_base", [[2_000_000]], [[2_000_000 * world]], "BFloat16")
        scatter = ("world", "_reduce_scatter_base", [[2_000_000 * world]], [[2_000_000]], "Float")
        return [gather] * 32 + [gather, scatter] * 32 + [("world", *LOSS)]
    size = max(world // TENSOR, 1)
    gather = ("data", "_all_gather_base", [[40_000_000]], [[40_000_000 * size]], "BFloat16")
    scatter = ("data", "_reduce_scatter_base", [[40_000_000 * size]], [[40_000_000]], "Float")
    calls = [("tensor", *TP_CALLS[number % 3]) for number in range(64)]
    return calls + [scatter, gather] * 4 + [("world", "all_reduce", [[120]], [[120]], "Float"), ("world", *LOSS)]


def frames(site):
    """The stack of a call site: outer frames shared, inner ones its own."""
    top = [("wrapper", "/opt/env/torch/distributed/c10d_logger.py", 83)]
    own = [(f"layer_{depth}", f"/opt/model/part_{depth}.py", 100 * depth + 7 * site) for depth in range(4)]
    outer = [(f"outer_{depth}", f"/opt/train/loop_{depth}.py", 40 + depth) for depth in range(DEPTH - 5)]
    return [{"name": name, "filename": file, "line": line} for name, file, line in top + own + outer]


class Job:
    """A job whose rank `hung` does not enter the last round of the world."""

    def __init__(self, world, entries, mix="megatron", *, with_frames=False):
        self.world = world
        self.hung = (world * 5 // 8 + 3) % world
        self.with_frames = with_frames
        one = step(mix, world)
        repeats = -(-(entries + 1) // len(one))
        made = {"world": 3000, "tensor": 39_000, "data": 6000}
        self.calls = []
        for number, call in enumerate((one * repeats)[-(entries + 1) :]):
            made[call[0]] += 1
            self.calls.append((*call, made[call[0]], 86_000 + number))
        self.roles = ["world"] if mix == "world" else ["world", "data", "tensor"]
        self.text_of_all = str(list(range(world)))
        self._bodies = {}

    def groups(self, rank):
        """Name, description and members of the rank's groups by their role."""
        data, tensor = rank % TENSOR, rank // TENSOR
        members = range(tensor * TENSOR, min(tensor * TENSOR + TENSOR, self.world))
        return {
            "world": ("0", "default_pg", range(self.world)),
            "data": (str(1 + data), "DATA_PARALLEL_GROUP", range(data, self.world, TENSOR)),
            "tensor": (str(1 + TENSOR + tensor), "TENSOR_PARALLEL_GROUP", members),
        }

    def dump(self, rank):
        """The dump of a rank."""
        is_hung = rank == self.hung
        calls = self.calls[:-1] if is_hung else self.calls[1:]
        groups = {role: self.groups(rank)[role] for role in self.roles}
        pickler = Pickler()
        counters = {}
        for number, role in enumerate(self.roles):
            last = max((call[5] for call in calls if call[0] == role), default=None)
            if last is not None:
                done = last - (role == "world" and not is_hung)
                counters[str(number)] = status(last, done, done)
        config = {name: group(name, members, desc) for name, desc, members in groups.values()}
        config["0"]["ranks"] = self.text_of_all
        head = {"version": "2.10", "pg_config": config, "comm_lib_version": "2.27.5", "pg_status": counters}
        pickler.out += b"}("
        for key, value in head.items():
            pickler.text(key)
            pickler.value(value)
        pickler.text("entries")
        role_of = {name: role for role, (name, _, _) in groups.items()}
        form = (is_hung, frozenset((role_of.get(key, number), number) for key, number in pickler.memo.items()))
        if form not in self._bodies:
            self._bodies[form] = self._body(pickler, calls, groups, is_hung=is_hung)
        body, places = self._bodies[form]
        return bytes(pickler.out) + self._timed(rank, calls, body, places)

    def _body(self, pickler, calls, groups, *, is_hung):
        """The bytes of the entries, and where the three times of each are; -1: it has none."""
        begin, places = len(pickler.out), []
        pickler.out += b"]("
        for number, (role, op, given, got, dtype, seq, record) in enumerate(calls):
            is_open = not is_hung and number == len(calls) - 1
            name, desc, _ = groups[role]
            entry = {"frames": frames(record % SITES)} if self.with_frames else {}
            entry |= {
                "record_id": record,
                "pg_id": self.roles.index(role),
                "process_group": (name, desc),
                "thread_name": "python3",
                "thread_id": "140000000000001",
                "collective_seq_id": seq,
                "p2p_seq_id": 0,
                "op_id": seq,
                "profiling_name": f"nccl:{op}",
                "time_created_ns": T0,
                "input_sizes": given,
                "input_dtypes": [dtype],
                "output_sizes": got,
                "output_dtypes": [dtype],
                "state": "scheduled" if is_open else "completed",
                "time_discovered_started_ns": None if is_open else T0,
                "time_discovered_completed_ns": None if is_open else T0,
                "retired": not is_open,
                "timeout_ms": 600_000,
                "is_p2p": False,
            }
            pickler.out += b"}("
            at = []
            for key, value in entry.items():
                pickler.text(key)
                if key in TIMES:
                    at.append(-1 if value is None else len(pickler.out) - begin + 2)
                pickler.value(value)
            pickler.out += b"u"
            places.append(at)
        pickler.out += b"eu"
        pickler.store("the whole")
        pickler.out += b"."
        body = np.frombuffer(bytes(pickler.out[begin:]), np.uint8)
        del pickler.out[begin:]
        return body, np.array(places)

    def _timed(self, rank, calls, body, places):
        body = body.copy()
        rng = np.random.default_rng(rank)
        record = np.array([call[6] for call in calls], np.int64) - 86_000
        created = T0 + record * CALL_NS + rng.exponential(40 * US, len(calls)).astype(np.int64)
        ended = created + 500 * US + rng.exponential(60 * US, len(calls)).astype(np.int64)
        for column, times in enumerate((created, created + 120 * US, ended)):
            told = places[:, column] >= 0
            offsets = places[told, column][:, None] + np.arange(8)
            body[offsets] = times[told].view(np.uint8).reshape(-1, 8)
        return body.tobytes()


def write(folder, world, entries, mix="megatron", *, with_frames=False):
    """Write the dumps of a job; the rank that hangs."""
    job = Job(world, entries, mix, with_frames=with_frames)
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(world):
        (folder / f"nccl_trace_rank_{rank}").write_bytes(job.dump(rank))
    return job.hung


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--entries", type=int, default=2000)
    parser.add_argument("--mix", choices=["megatron", "world"], default="megatron")
    parser.add_argument("--frames", action="store_true")
    asked = parser.parse_args()
    hung = write(asked.folder, asked.ranks, asked.entries, asked.mix, with_frames=asked.frames)
    size = sum(path.stat().st_size for path in asked.folder.iterdir())
    print(f"{size / 1e6:.1f} MB, {size / asked.ranks / asked.entries:.0f} bytes an entry; rank {hung} hangs")


if __name__ == "__main__":
    main()
