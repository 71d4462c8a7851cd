"""Jobs written down by hand: calls, ends and signs of life in seconds, made into a `Trace`."""

from __future__ import annotations

import pathlib
from collections import defaultdict

import pyarrow as pa

from roundk.analyze.diagnose import diagnose
from roundk.analyze.trace import Trace, frame
from roundk.tracer import schema

T0 = 1_700_000_000_000_000_000
S = 1_000_000_000

SITES = {
    "loop_a": (1, "/home/u/train.py", 21, "main", 20),
    "loop_b": (2, "/home/u/train.py", 24, "main", 20),
    "other": (3, "/home/u/train.py", 33, "main", 20),
    "after": (4, "/home/u/train.py", 40, "main", None),
    "save": (5, "/home/u/save.py", 7, "save", None),
    "module": (6, "/home/u/train.py", 60, "<module>", None),
    "helper": (7, "/home/u/train.py", 9, "average", None),
    "after_helper": (8, "/home/u/train.py", 40, "main", None),
    "other_helper": (9, "/home/u/train.py", 13, "report", None),
}
_MODULE = ("/home/u/train.py:60 <module>", None)
FRAMES = {
    7: [("/home/u/train.py:9 average", None), ("/home/u/train.py:21 main", 20), _MODULE],
    8: [("/home/u/train.py:40 main", None), _MODULE],
    9: [("/home/u/train.py:13 report", None), ("/home/u/train.py:23 main", 20), _MODULE],
}
"""Whole stacks with the loops around their frames, of the sites that have them."""


def ns(seconds):
    return T0 + round(seconds * S)


class Job:
    """A job of `world` ranks in one group (key 0); more groups by `group()`. Times are seconds from the start."""

    def __init__(self, world=4):
        self.world = world
        self.groups = {0: ("0", "default_pg", "gloo", list(range(world)))}
        self.calls = []
        self.seqs = defaultdict(int)
        self.ranks = {rank: {} for rank in range(world)}
        self.facts = []
        self.stacks = []
        self.clock = 0.0
        self.until = None

    def group(self, ranks, name=None, backend="gloo"):
        key = len(self.groups)
        self.groups[key] = (name or str(key), "", backend, list(ranks))
        return key

    def control(self, ranks=None, name=""):
        """The group of calls that make and destroy groups."""
        key = len(self.groups)
        self.groups[key] = (name, "control", "", list(range(self.world) if ranks is None else ranks))
        return key

    def call(
        self,
        rank,
        enter,
        end=None,
        *,
        outcome=None,
        op="all_reduce",
        group=0,
        site="loop_a",
        numel=4,
        seq=None,
        **extra,
    ):
        """One call; without `end` it stays open. `seq` counts by itself, and the backend has it at once."""
        peer = extra.get("peer")
        key = (group, op, rank, peer) if op in ("send", "recv") else (group, rank)
        self.seqs[key] = self.seqs[key] + 1 if seq is None else seq
        row = {
            "rank": rank,
            "group": group,
            "seq": self.seqs[key],
            "op": op,
            "source_op": op,
            "numel": numel,
            "bytes_in": 4 * numel,
            "bytes_out": 4 * numel,
            "dtype": "float32",
            "shapes": f"[[{numel}]]",
            "reduce_op": "SUM" if "reduce" in op else None,
            "is_async": False,
            "site": SITES[site][0],
            "enter_ns": ns(enter),
            "issued_ns": ns(enter) + 20_000,
            "end_ns": None if end is None else ns(end),
            "outcome": outcome or ("open" if end is None else "completed"),
        }
        self.calls.append(row | extra)
        return self

    def round(self, enter=None, *, late=None, lasts=0.01, without=(), group=0, only=None, **columns):
        """A round that completes: everyone enters within a millisecond but those who are late by so many seconds."""
        enter = self.clock if enter is None else enter
        late = late or {}
        members = [r for r in (only or self.groups[group][3]) if r not in without]
        enters = {r: enter + 0.0002 * (r % 5) + late.get(r, 0.0) for r in members}
        end = max(enters.values()) + lasts
        for rank in members:
            self.call(rank, enters[rank], end, group=group, **columns)
        self.clock = end + 0.02
        return self

    def rounds(self, count, **columns):
        for _ in range(count):
            self.round(**columns)
        return self

    def hang(self, *, without=(), enter=None, gave_up=None, only=None, group=0, **columns):
        """A round that nobody completes; with `gave_up`, those inside fail so many seconds later, one by one."""
        enter = self.clock if enter is None else enter
        members = [r for r in (only or self.groups[group][3]) if r not in without]
        for number, rank in enumerate(members):
            at = enter + 0.0002 * number
            end = None if gave_up is None else at + gave_up + 0.002 * number
            self.call(rank, at, end, outcome="open" if end is None else "failed", group=group, **columns)
        self.clock = enter + (gave_up or 0.0)
        return self

    def rank(self, rank, **columns):
        """Set columns of a rank; `*_ns` columns are given in seconds."""
        timed = {k: ns(v) if k.endswith("_ns") and v is not None else v for k, v in columns.items()}
        self.ranks[rank] |= timed
        return self

    def exits(self, *ranks, at, code=None, signal=None, alive=None, goodbye=False, source="agent"):
        for rank in ranks:
            self.rank(rank, exit_code=code, exit_signal=signal, exit_ns=at + 0.1, exit_source=source)
            self.rank(rank, last_alive_ns=at if alive is None else alive)
            if goodbye:
                self.rank(rank, goodbye_ns=at)
        return self

    def raises(self, rank, *, at, kind="ValueError", message="bad batch", site="train.py:18"):
        self.rank(rank, exception_type=kind, exception_message=message, exception_site=site, exception_ns=at)
        return self.exits(rank, at=at + 0.2, code=1)

    def clean(self, *ranks, at):
        return self.exits(*ranks, at=at, code=0, goodbye=True)

    def fact(self, kind, text, *, rank=None, at=None, host="a", file="f"):
        time_ns = None if at is None else ns(at)
        source = f"{host}/{file}.jsonl:1"
        self.facts.append(
            {"time_ns": time_ns, "host": host, "rank": rank, "kind": kind, "text": text, "source": source}
        )
        return self

    def stack(self, rank, *frames, trigger="stall", at=None, after=0.0, what="", main=True):
        """The stack of one thread in a dump; `at`: when; `after`: the mark before one without a time."""
        self.stacks.append(
            {
                "rank": rank,
                "time_ns": None if at is None else ns(at),
                "not_before_ns": ns(after if at is None else at),
                "trigger": trigger,
                "what": what,
                "thread": 1000 * rank + main,
                "is_main": main,
                "frames": list(frames),
                "source": f"a/rank-{rank:05d}-{100 + rank}.stacks",
            }
        )
        return self

    def trace(self, *, ended=None, exit_code=None, alive=None, world=None):
        """`ended`: the launcher's end marker; `alive`: last sign of life of whoever has none of its own."""
        last = max((c["end_ns"] or c["enter_ns"] for c in self.calls), default=T0)
        alive_ns = max(last, ns(ended or 0)) if alive is None else ns(alive)
        ranks = [self._rank(rank, alive_ns) for rank in range(self.world)]
        calls = sorted(self.calls, key=lambda c: (c["rank"], c["enter_ns"]))
        return Trace(
            root=pathlib.Path("run"),
            calls=table(calls, schema.CALLS),
            groups=table(
                [
                    {"group": k, "name": n, "desc": d, "backend": b, "ranks": r}
                    for k, (n, d, b, r) in self.groups.items()
                ],
                schema.GROUPS,
            ),
            ranks=table(ranks, schema.RANKS),
            sites=table(
                [
                    {
                        "site": k,
                        "file": f,
                        "line": n,
                        "function": fn,
                        "loop": lp,
                        "stack": [frame for frame, _ in FRAMES.get(k, [])],
                        "loops": [loop for _, loop in FRAMES[k]] if k in FRAMES else None,
                    }
                    for k, f, n, fn, lp in SITES.values()
                ],
                schema.SITES,
            ),
            facts=table(self.facts, schema.FACTS),
            stacks=table(self.stacks, schema.STACKS),
            world_size=world or self.world,
            ended_ns=None if ended is None else ns(ended),
            exit_code=exit_code,
            last_alive_ns=alive_ns,
            clock_error_ns=0,
            sources={"hand": 1},
        )

    def report(self, *, now=None, stall_s=30.0, **trace):
        made = self.trace(**trace)
        now_ns = made.last_alive_ns + 3600 * S if now is None else ns(now)
        return diagnose(made, now_ns=now_ns, stall_ns=round(stall_s * S))

    def _rank(self, rank, alive_ns):
        mine = [c for c in self.calls if c["rank"] == rank]
        row = {
            "rank": rank,
            "host": "a",
            "pid": 100 + rank,
            "data": "present" if mine else "empty",
            "calls": len(mine),
            "calls_lost": 0,
            "first_call": 1 if mine else None,
            "last_alive_ns": alive_ns,
        }
        row |= self.ranks[rank]
        row.setdefault("source", f"{row['host']}/rank-{rank:05d}-{100 + rank}.jsonl")
        if row["data"] == "missing":
            row |= {"host": None, "pid": None, "last_alive_ns": None, "source": None}
        return row


def table(rows, columns):
    names = columns.names
    return frame(pa.Table.from_pylist([{n: row.get(n) for n in names} for row in rows], schema=columns))


def outline(report, number=0):
    """What most tests compare: (structure, detail, cause, culprits, seq, exit code)."""
    v = report.verdicts[number]
    return (
        v.structure.value,
        v.detail and v.detail.value,
        v.cause and v.cause.value,
        v.culprit_ranks,
        v.seq,
        report.exit_code,
    )
