"""The recorder of one process: takes calls from torch's dispatcher, stores them, and keeps its files in order.

The caller's thread stores into memory only. The recorder's own thread, once per `PERIOD_S`, renews the sign of life,
asks pending works for their end, and makes files before they are needed. Where it comes too late, calls are counted as
lost rather than waited for.
"""

from __future__ import annotations

import collections
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from roundk.hooks import failsafe, flight_recorder, sites, works
from roundk.hooks.groups import Groups
from roundk.hooks.stacks import Stacks
from roundk.hooks.stall import StallWatch
from roundk.tracer import ring, rundir, template, words

if TYPE_CHECKING:
    from roundk.hooks.config import Config
    from roundk.hooks.plans import Plan, Signature

PERIOD_S = 0.01
"""Between two looks at pending works: an end seen by asking is at most this late."""
LOOK_S = 0.25
"""Between two looks for a stall."""
_MOST_SIGNATURES = 65_536
"""Distinct signatures to remember: a job whose shapes never repeat must not eat memory."""
_FIRST_ROWS, _LATER_ROWS = sorted(template.SEGMENTS)
_SEND, _RECV = words.OPS.index("send"), words.OPS.index("recv")


class Recorder:
    """Records the calls of this process as rank `rank` of `world_size`."""

    def __init__(self, config: Config, rank: int, world_size: int) -> None:
        """Open the files.

        Raises:
            OSError: they cannot be made.
        """
        self._config = config
        self._folder = rundir.prepare(config.run)
        self._stem, self.side = rundir.side_file(self._folder, rank)
        self.side.append(_process(rank, world_size))
        self._segment = ring.Segment.create(rundir.segment_path(self._stem, 0), _FIRST_ROWS, 0)
        self._number = 1
        self._spare: ring.Segment | None = None
        self._sealed: collections.deque[tuple[str, int]] = collections.deque()
        self._rotation = threading.Lock()
        self._lost = 0
        self._lost_told = 0
        self.groups = Groups(self.side)
        self._sites = sites.Sites(self.side)
        self._signatures: dict[Any, Signature] = {}
        self.pending = works.Pending()
        self.step = 0
        self._thread_ids = threading.local()
        self._watch = StallWatch(config.stall_s)
        self._watch.follow(self._segment)
        self._look_at = 0.0
        self.stacks: Stacks | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._tend, name="roundk", daemon=True)
        self._thread.start()

    # Called by the training threads

    def enter(self, plan: Plan, args: tuple[Any, ...], reduce_op: int) -> works.Call | None:
        """Store that a call entered the dispatcher; None where it is not recorded."""
        now = time.time_ns()
        key, tensor = plan.key(args)
        if tensor is not None and tensor.is_meta:
            return None  # a trace with fake tensors, not a call
        pg = plan.process_group(args)
        group = self.groups.by_name.get(pg.group_name) or self.groups.register(pg)
        signature = self._signatures.get(key) or self._new_signature(key, plan, args)
        peer = group.peer(args[plan.peer_at]) if plan.peer_at >= 0 else 0
        code = plan.code
        seq = group.next_seq() if code < _SEND else group.next_of_pair(plan.op, peer)
        site = self._sites.here(plan.depth)
        place = self._place()
        if place is None:
            return None
        segment, row = place
        c = segment.columns
        c.enter_ns[row] = now
        c.seq[row] = seq
        c.numel[row] = signature.numel
        c.bytes_in[row] = signature.bytes_in
        c.bytes_out[row] = signature.bytes_out
        c.group[row] = group.id
        c.signature[row] = signature.id
        c.site[row] = site
        c.step[row] = self.step
        c.thread[row] = self._thread_id()
        c.peer[row] = peer
        c.op[row] = code
        c.dtype[row] = signature.dtype
        c.reduce_op[row] = reduce_op
        c.is_async[row] = plan.is_async(args)
        c.commit[row] = segment.base + row + 1
        cpu = tensor is None or tensor.is_cpu
        return works.Call(c, row, cpu and not (group.backend == "gloo" and plan.gloo_end_unseen))

    def returned(self, plan: Plan, call: works.Call, work: Any, raised: bool) -> None:
        """Store that the dispatcher came back with a Work, None, or an exception."""
        now = time.time_ns()
        columns, row, askable = call
        if raised:
            works.finish(call, words.FAILED, now)
            return
        columns.issued_ns[row] = now
        if work is not None and (askable or plan.gloo_end_unseen):
            self.pending.add(work, call)
        elif plan.returns_done:
            works.finish(call, words.COMPLETED, now)
        else:
            columns.outcome[row] = words.NOT_RECORDED

    def _place(self) -> tuple[ring.Segment, int] | None:
        while True:
            segment = self._segment
            row = segment.take()
            if row < segment.rows:
                return segment, row
            with self._rotation:
                if self._segment is not segment:
                    continue
                if self._spare is None:
                    self._lost += 1
                    return None
                self._sealed.append((segment.path, segment.size))
                self._segment, self._spare = self._spare, None

    def _thread_id(self) -> int:
        try:
            return self._thread_ids.value  # type: ignore[no-any-return]
        except AttributeError:
            self._thread_ids.value = threading.get_native_id()
            return self._thread_ids.value  # type: ignore[no-any-return]

    def _new_signature(self, key: Any, plan: Plan, args: tuple[Any, ...]) -> Signature:
        known = len(self._signatures)
        signature, line = plan.describe(args, known + 1 if known < _MOST_SIGNATURES else 0)
        if signature.id:
            self.side.append(line)
            self._signatures[key] = signature
        return signature

    # The recorder's own thread

    def _tend(self) -> None:
        tend_once = failsafe.guard(self._tend_once)
        while not self._stop.wait(PERIOD_S) and not failsafe.errors:
            tend_once()

    def _tend_once(self) -> None:
        self.side.renew(time.time_ns())
        if self.stacks is None:
            self.stacks = Stacks(f"{self._stem}.stacks", self._config.stall_s)
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_S
            self._look_for_stall()
        self.pending.ask()
        self.groups.register_created()
        segment = self._segment
        if self._spare is None and segment.columns.commit[segment.rows // 2]:
            base = segment.base + segment.rows
            self._spare = ring.Segment.create(rundir.segment_path(self._stem, self._number), _LATER_ROWS, base)
            self._number += 1
            self._watch.follow(self._spare)
            self._delete_oldest()
        if self._lost != self._lost_told:
            self._lost_told = self._lost
            self.side.append({"kind": "lost", "calls": self._lost_told, "why": "the next segment was not ready"})
        self.side.reserve()

    def _look_for_stall(self) -> None:
        assert self.stacks is not None
        self.stacks.renew()
        self._watch.shorten(self.groups.shortest_timeout_s)
        stalled = self._watch.look()
        if stalled is not None:
            why = "no call for" if stalled.call is None else "in a call for"
            self.stacks.dump(f"{why} {stalled.seconds:.1f} s", stalled.call)
            flight_recorder.dump(f"{self._stem}.fr")

    def _delete_oldest(self) -> None:
        kept = self._segment.size + (self._spare.size if self._spare else 0)
        while self._sealed and kept + sum(size for _, size in self._sealed) > self._config.max_bytes:
            path, _ = self._sealed.popleft()
            os.unlink(path)
            self.side.append({"kind": "deleted", "segment": os.path.basename(path)})

    # The end

    def note(self, kind: str, **fields: Any) -> None:
        """Store a line about this process with the time."""
        self.side.append({"kind": kind, "time_ns": time.time_ns(), **fields})

    def close(self) -> None:
        """Say goodbye and stop the thread: the interpreter shuts down in order."""
        self._stop.set()
        self._thread.join(timeout=1.0)
        if self.stacks is not None:
            self.stacks.close()
        self.pending.ask()
        self.note("goodbye")
        self.side.reserve()
        self.side.renew(time.time_ns())


def _process(rank: int, world_size: int) -> dict[str, Any]:
    import torch

    stat = rundir.process_stat(os.getpid())
    return {
        "kind": "process",
        "schema": words.SCHEMA_VERSION,
        "rank": rank,
        "world_size": world_size,
        "host": rundir.host_name(),
        "host_full": rundir.full_host_name(),
        "pid": os.getpid(),
        "main_thread": threading.main_thread().ident,
        "started_ticks": stat[1] if stat else None,
        **rundir.generation(os.environ),
        "time_ns": time.time_ns(),
        "monotonic_ns": time.monotonic_ns(),
        "python": sys.version.split()[0],
        "torch": str(torch.__version__),
    }
