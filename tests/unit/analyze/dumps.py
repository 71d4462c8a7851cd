"""Flight Recorder dumps made by hand: entries with defaults, and a pickler that lays bytes out as torch's does."""

from __future__ import annotations

import json
import struct

from roundk.analyze.sources import flight_recorder
from roundk.analyze.sources.inputs import Hints, Input

T0 = 1_750_000_000_000_000_000
MS = 1_000_000


class Pickler:
    """Protocol 2; each string once, each frame once, by identity; integers by their size, as torch/csrc/jit does it."""

    def __init__(self):
        self.out = bytearray(b"\x80\x02")
        self.memo = {}

    def stored(self, key):
        """Refer to a value that was written before; False where it was not."""
        if key not in self.memo:
            return False
        number = self.memo[key]
        self.out += b"h" + bytes([number]) if number < 256 else b"j" + struct.pack("<I", number)
        return True

    def store(self, key):
        number = self.memo[key] = len(self.memo)
        self.out += b"q" + bytes([number]) if number < 256 else b"r" + struct.pack("<I", number)

    def text(self, value):
        if not self.stored(value):
            data = value.encode("utf-8", errors="surrogatepass")
            self.out += b"X" + struct.pack("<I", len(data)) + data
            self.store(value)

    def integer(self, value):
        if 0 <= value < 1 << 8:
            self.out += b"K" + bytes([value])
        elif 0 <= value < 1 << 16:
            self.out += b"M" + struct.pack("<H", value)
        elif -(1 << 31) <= value < 1 << 31:
            self.out += b"J" + struct.pack("<i", value)
        else:
            self.out += b"\x8a\x08" + struct.pack("<q", value)

    def value(self, value):
        if value is None:
            self.out += b"N"
        elif isinstance(value, bool):
            self.out += b"\x88" if value else b"\x89"
        elif isinstance(value, int):
            self.integer(value)
        elif isinstance(value, float):
            self.out += b"G" + struct.pack(">d", value)
        elif isinstance(value, str):
            self.text(value)
        elif isinstance(value, tuple):
            for item in value:
                self.value(item)
            self.out += b"\x86"
        elif isinstance(value, list):
            self.out += b"]("
            for item in value:
                self.value(item)
            self.out += b"e"
        else:
            self.mapping(value)

    def mapping(self, value):
        is_frame = set(value) == {"name", "filename", "line"}
        key = ("frame", *value.values()) if is_frame else None
        if is_frame and self.stored(key):
            return
        self.out += b"}("
        for name, item in value.items():
            self.text(name)
            self.value(item)
        self.out += b"u"
        if is_frame:
            self.store(key)


def pickled(value):
    """A value as torch pickles it."""
    pickler = Pickler()
    pickler.value(value)
    pickler.store("the whole")
    return bytes(pickler.out) + b"."


def entry(number, op="nccl:all_reduce", seq=None, **fields):
    """An entry of schema 2.10: record `number`, of the default group, completed within 2 ms unless said otherwise."""
    created = T0 + number * 10 * MS
    made = {
        "record_id": number,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "thread_name": "python3",
        "thread_id": "140000000000001",
        "collective_seq_id": number + 1 if seq is None else seq,
        "p2p_seq_id": 0,
        "op_id": number + 1,
        "profiling_name": op,
        "time_created_ns": created,
        "input_sizes": [[4, 2]],
        "input_dtypes": ["Float"],
        "output_sizes": [[4, 2]],
        "output_dtypes": ["Float"],
        "state": "completed",
        "time_discovered_started_ns": created + MS // 2,
        "time_discovered_completed_ns": created + 2 * MS,
        "retired": True,
        "timeout_ms": 600_000,
        "is_p2p": False,
    }
    return made | fields


def scheduled(number, op="nccl:all_reduce", seq=None, **fields):
    """An entry that has not been seen to start."""
    times = {"time_discovered_started_ns": None, "time_discovered_completed_ns": None}
    return entry(number, op, seq, **({"state": "scheduled", "retired": False} | times | fields))


def group(name, ranks, desc=""):
    return {"name": name, "desc": desc or "undefined", "ranks": str(list(ranks))}


def status(enqueued, started, completed):
    names = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")
    return dict(zip(names, (enqueued, started, completed), strict=True))


def dump(entries, world=2, groups=None, counters=None, **head):
    """A dump of schema 2.10."""
    config = {"0": group("0", range(world), "default_pg")} | (groups or {})
    if counters is None:
        counters = {"0": status(len(entries), len(entries), len(entries))}
    made = {"version": "2.10", "pg_config": config, "comm_lib_version": "2.27.5", "pg_status": counters}
    return made | head | ({} if entries is None else {"entries": entries})


def write(folder, files):
    """Write files; a value that is no bytes is pickled, or written as JSON where the name says so."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_bytes(json.dumps(content).encode() if name.endswith(".json") else pickled(content))
    return [Input(name, folder / name) for name in files]


def load(folder, files, hints=None):
    """Write files and load them all as Flight Recorder dumps."""
    return flight_recorder.load(write(folder, files), hints or Hints())


def rows(table, *columns):
    """Rows of a table as tuples, or as values where one column is asked for."""
    found = table.select(columns).rows()
    return [row[0] for row in found] if len(columns) == 1 else found
