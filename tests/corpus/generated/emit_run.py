"""What our own recorder would have kept of a run, as the tables that its reader makes, with how the ranks ended."""

from __future__ import annotations

import pathlib

import jobs
from generated.emit_dumps import START_NS
from generated.program import P2P, UNEVEN_GATHER

from roundk.analyze.diagnose import diagnose
from roundk.analyze.trace import Trace
from roundk.tracer import schema

S = 1_000_000_000
ENDS = ("live", "killed", "gave up")
BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


class Recording:
    """The tables of a run."""

    def __init__(self, case):
        self.case = case
        rng = case.rng
        self.is_timed = not case.is_blocking and rng.random() < 0.5
        halted = {how for how, _ in case.run.halted.values()}
        self.end = "live" if case.is_cut_short else rng.choice(ENDS)
        self.is_quick = "dead" in halted and rng.random() < 0.5
        """The launcher ends the others as soon as it sees the death."""
        if self.is_quick:
            self.end = "killed"
            case.cut = min(at for how, at in case.run.halted.values() if how == "dead") + rng.uniform(0.5, 5.0)
        self.missing = set()
        if rng.random() < 0.12:
            self.missing = set(rng.sample(range(case.world), min(case.world - 1, rng.randint(1, 2))))
        case.lost = frozenset(self.missing)
        self.timeout = max(15.0, case.cut - case.run.last_time() - 5.0)
        self.calls, self.facts = [], []
        self.gave_up = {}

    def words(self):
        kind = "gloo" if self.case.is_blocking else "nccl"
        return f"run {kind} end={self.end}" + (f" missing={self.missing}" if self.missing else "")

    def ns(self, rank, seconds):
        return START_NS + round((seconds + self.case.offsets[self.case.hosts[rank]]) * 1e9)

    def trace(self):
        case = self.case
        for rank in range(case.world):
            if rank not in self.missing:
                self._calls(rank)
        ranks = [self._rank(rank) for rank in range(case.world)]
        hosts = set(case.hosts.values())
        ended = None if self.end == "live" else START_NS + round((case.cut + 8.0) * 1e9)
        sites = [
            {
                "site": key,
                "file": f,
                "line": line,
                "function": n,
                "loop": None,
                "stack": self._stack(site),
                "loops": None,
            }
            for key, site in enumerate(case.program.sites)
            for f, line, n in site.frames[:1]
        ]
        groups = [
            {
                "group": g.key,
                "name": g.torch_name,
                "desc": "" if g.desc == "undefined" else g.desc,
                "backend": self._backend(),
                "ranks": g.ranks,
            }
            for g in case.layout.groups
        ]
        return Trace(
            root=pathlib.Path("run"),
            calls=jobs.table(self.calls, schema.CALLS),
            groups=jobs.table(groups, schema.GROUPS),
            ranks=jobs.table(ranks, schema.RANKS),
            sites=jobs.table(sites, schema.SITES),
            facts=jobs.table(sorted(self.facts, key=lambda fact: fact["time_ns"]), schema.FACTS),
            world_size=case.world,
            ended_ns=ended,
            exit_code=None if ended is None else 1 if case.truth.needs.startswith("hang") else 0,
            last_alive_ns=max(r["last_alive_ns"] or 0 for r in ranks),
            clock_error_ns=0 if len(hosts) == 1 else None,
            sources={"run_directory": 1},
        )

    def report(self):
        trace = self.trace()
        # A recording that goes on is looked at a moment later.
        later = S if self.end == "live" else 3600 * S
        return diagnose(trace, now_ns=(trace.last_alive_ns or START_NS) + later)

    def _backend(self):
        return "gloo" if self.case.is_blocking else "nccl"

    @staticmethod
    def _stack(site):
        return [f"{f}:{line} {n}" for f, line, n in site.frames]

    def _calls(self, rank):
        case, seqs = self.case, {}
        until = case.run.halted[rank][1] if case.run.halted.get(rank, ("",))[0] in ("dead", "stopped") else case.cut
        for node in case.run.calls[rank]:
            if node.enter > min(case.cut, until):
                break
            for part in node.call.batch or (node.call,):
                is_p2p = part.op in P2P
                pair = (part.op, part.peer) if is_p2p else None
                seq = seqs[part.group, pair] = seqs.get((part.group, pair), 0) + 1
                self.calls.append(self._row(rank, node, part, seq, is_p2p=is_p2p, until=until))

    def _row(self, rank, node, part, seq, *, is_p2p, until):
        case = self.case
        is_ended = node.end is not None and node.end <= min(until, case.cut)
        is_started = self.is_timed and node.start is not None and node.start <= min(until, case.cut)
        op = "all_gather" if part.op == UNEVEN_GATHER else part.op
        end, outcome = (node.end, "completed") if is_ended else (None, "open")
        if not is_ended and self.end == "gave up" and case.is_blocking and self._waits(rank):
            end, outcome = max(self.gave_up.get(rank, 0.0), node.enter + self.timeout), "failed"
            self.gave_up[rank] = end
        size = len(case.layout.groups[part.group].ranks)
        numel = part.numel * (size if part.op == "reduce_scatter_tensor" else 1)
        width = BYTES[part.dtype]
        out = part.numel * (size if part.op.startswith(("all_gather", "uneven")) else 1)
        return {
            "rank": rank,
            "group": part.group,
            "seq": seq,
            "op": op,
            "source_op": op,
            "root": part.root,
            "peer": part.peer if is_p2p else None,
            "numel": numel,
            "bytes_in": numel * width,
            "bytes_out": out * width,
            "dtype": part.dtype,
            "shapes": f"[[{numel}]]" if numel == out else f"[[{numel}]] -> [[{out}]]",
            "reduce_op": part.reduce_op,
            "is_async": part.is_async,
            "step": part.step,
            "thread": 1000 + rank,
            "site": part.site,
            "enter_ns": self.ns(rank, node.enter),
            "issued_ns": self.ns(rank, node.enter + 20e-6),
            "start_ns": self.ns(rank, node.start) if is_started else None,
            "end_ns": None if end is None else self.ns(rank, end),
            "is_timed": self.is_timed,
            "outcome": outcome,
        }

    def _waits(self, rank):
        return rank not in self.case.run.halted

    def _rank(self, rank):
        case = self.case
        row = {
            "rank": rank,
            "host": case.hosts[rank],
            "pid": 100 + rank,
            "data": "present",
            "calls_lost": 0,
            "first_call": 1,
        }
        row |= {"calls": sum(1 for call in self.calls if call["rank"] == rank), "start_ns": START_NS}
        row |= {
            "last_alive_ns": self.ns(rank, case.cut),
            "source": f"{case.hosts[rank]}/rank-{rank:05d}-{100 + rank}.jsonl",
        }
        if rank in self.missing:
            return {"rank": rank, "data": "missing", "calls": 0, "calls_lost": 0, "last_alive_ns": None}
        if not row["calls"]:
            row |= {"data": "empty", "first_call": None}
        how, at = case.run.halted.get(rank, ("", 0.0))
        if how == "dead" and at < case.cut:
            row |= self._death(rank, at)
        elif how == "stopped":
            row |= {
                "last_alive_ns": self.ns(rank, at),
                "process_state": "T",
                "process_state_ns": self.ns(rank, at + 0.3),
            }
            self._fact(rank, at + 0.3, "state", f"process {100 + rank} is T")
            row |= self._ended(rank, 9)
        elif how == "exit" or (rank in case.run.at_end and not case.is_cut_short and case.run.at_end[rank] < case.cut):
            last = (at if how == "exit" else case.run.at_end[rank]) + 0.05
            row |= {"goodbye_ns": self.ns(rank, last), "last_alive_ns": self.ns(rank, last)}
            row |= {"exit_code": 0, "exit_ns": self.ns(rank, last + 0.1), "exit_source": "agent"}
            self._fact(rank, last, "goodbye", "the interpreter shut down in order")
            self._fact(rank, last + 0.1, "exit", f"process {100 + rank} ended with code 0")
        elif rank in self.gave_up:
            last = self.gave_up[rank] + 0.01
            text = f"Timed out waiting {self.timeout * 1e3:.0f}ms for recv operation to complete"
            row |= {"exception_type": "RuntimeError", "exception_message": text, "exception_ns": self.ns(rank, last)}
            row |= {"goodbye_ns": self.ns(rank, last + 0.02), "last_alive_ns": self.ns(rank, last + 0.02)}
            row |= {"exit_code": 1, "exit_ns": self.ns(rank, last + 0.5), "exit_source": "agent"}
            self._fact(rank, last, "exception", f"uncaught RuntimeError: {text}")
            self._fact(rank, last + 0.5, "exit", f"process {100 + rank} ended with code 1")
        elif self.end == "gave up" and any(node.end is None for node in case.run.calls[rank]):
            row |= self._ended(rank, 6)  # the watchdog aborts it
        else:
            row |= self._ended(rank, 15)
        return row

    def _ended(self, rank, signal):
        """By a signal at the end of the job."""
        if self.end == "live":
            return {}
        self._fact(rank, self.case.cut + 1, "exit", f"process {100 + rank} ended with code -{signal}")
        return {"exit_signal": signal, "exit_ns": self.ns(rank, self.case.cut + 1), "exit_source": "agent"}

    def _death(self, rank, at):
        rng = self.case.rng
        row = {"last_alive_ns": self.ns(rank, at), "exit_ns": self.ns(rank, at + 0.1), "exit_source": "agent"}
        how = rng.choice(("raised", "killed", "vanished"))
        if how == "raised":
            row |= {
                "exception_type": "ValueError",
                "exception_message": "bad batch",
                "exception_site": "/app/train.py:61",
            }
            row |= {"exception_ns": self.ns(rank, at), "exit_code": 1}
            self._fact(rank, at, "exception", "uncaught ValueError: bad batch at /app/train.py:61")
            self._fact(rank, at + 0.1, "exit", f"process {100 + rank} ended with code 1")
        elif how == "killed":
            signal = rng.choice((9, 11, 7))
            row["exit_signal"] = signal
            self._fact(rank, at + 0.1, "exit", f"process {100 + rank} ended with code -{signal}")
        else:
            row["exit_source"] = "vanished"
            self._fact(rank, at + 0.1, "state", f"process {100 + rank} is gone")
        return row

    def _fact(self, rank, at, kind, text):
        fact = {"time_ns": self.ns(rank, at), "host": self.case.hosts[rank], "rank": rank, "kind": kind, "text": text}
        self.facts.append(fact | {"source": f"{self.case.hosts[rank]}/launcher-1.jsonl:1"})
