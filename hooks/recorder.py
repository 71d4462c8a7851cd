"""The recorder of one process: takes calls from torch's dispatcher, stores them, and keeps its files in order.

The caller's thread stores into memory only. The recorder's own thread, once per `PERIOD_S`, renews the sign of life,
asks pending works for their end, and makes files before they are needed. Where it comes too late, calls are counted as
lost rather than waited for.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import sys
import threading
import time
from threading import get_native_id
from time import time_ns
from typing import TYPE_CHECKING, Any

from roundk.hooks import failsafe, flight_recorder, methods, settings, sites, works
from roundk.hooks.device import DeviceTimes, Mark, harmless_to_captures
from roundk.hooks.groups import Groups
from roundk.hooks.plans import NO_WORK, ONLY_RESULT
from roundk.hooks.stacks import Stacks
from roundk.hooks.stall import StallWatch
from roundk.hooks.works import ASKED, UNSEEN, WAITED
from roundk.tracer import ports, ring, rundir, template, words

if TYPE_CHECKING:
    from roundk.hooks.config import Config
    from roundk.hooks.groups import Group
    from roundk.hooks.methods import Running
    from roundk.hooks.plans import Plan, Signature

PERIOD_S = 0.01
"""Between two looks at pending works: an end seen by asking is at most this late."""
LOOK_S = 0.25
"""Between two looks for a stall."""
_MOST_SIGNATURES = 65_536
"""Distinct signatures to remember: a job whose shapes never repeat must not eat memory."""
_STEP = words.OPS.index(words.STEP)
_FIRST_ROWS, _LATER_ROWS = sorted(template.SEGMENTS)


class Recorder:
    """Records the calls of this process as rank `rank` of `world_size`."""

    def __init__(self, config: Config, rank: int, world_size: int, pending: works.Pending) -> None:
        """Open the files.

        Raises:
            OSError: they cannot be made.
        """
        self._config = config
        self.rank = rank
        self._folder = rundir.prepare(config.run)
        self._stem, self.side = rundir.side_file(self._folder, rank)
        self.side.append(_process(rank, world_size))
        try:
            self.side.append(settings.line(config))
            self._begin(pending)
        except BaseException as error:
            self.side.append(_off(repr(error)))
            raise

    def _begin(self, pending: works.Pending) -> None:
        import torch

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
        self._numbers = itertools.count(1)
        """Of signatures. Each is given once, whatever interrupts: a signal handler with calls of its own, a thread."""
        self._unbox = torch.distributed.Work.unbox
        self.pending = pending
        self.device = DeviceTimes(torch.cuda, harmless_to_captures)
        self.step = 0
        self._watch = StallWatch(self._config.stall_s)
        self._watch.follow(self._segment)
        self._look_at = 0.0
        self.stacks: Stacks | None = None
        self._stopped = False
        self._thread = threading.Thread(target=self._tend, name="roundk", daemon=True)
        self._thread.start()

    @property
    def exit_file(self) -> str:
        """Where the process's exit code goes; see `goodbye`."""
        return f"{self._stem}.exit"

    # Called by the training threads

    def enter(self, plan: Plan, args: tuple[Any, ...], running: Running) -> works.Call | None:  # noqa: C901 - one frame
        """Store that a call entered the dispatcher; None where it is not recorded.

        `running` is the method of a process group that made it, if it is of the same operation.
        """
        now = time_ns()
        key, tensor = plan.key(args)
        cpu = tensor is None or tensor.is_cpu
        if not cpu and tensor.is_meta:
            return None  # a trace with fake tensors, not a call
        code = plan.code
        by_method = running.op == code and methods.first_tensor(args[0]) is running.tensor
        if by_method:
            running.op = methods.NONE  # the same call once more, by a dispatch mode, is not the method's
            pg = running.group
        else:
            pg = plan.unbox(args[plan.group_at])
        group = self.groups.by_name.get(pg.group_name) or self.groups.register(pg)
        number, numel, bytes_in, bytes_out, dtype = self._signatures.get(key) or self._new_signature(key, plan, args)
        peer = group.peer(args[plan.peer_at]) if plan.peer_at >= 0 else 0
        seq = group.next_of_pair(plan.op, peer) if plan.is_p2p else group.next_seq()
        site = self._sites.here()
        segment = self._segment
        row = segment.take()
        if row >= segment.rows:
            place = self._next_place(segment)
            if place is None:
                return None
            segment, row = place
        # Unpacked once: cheaper than one attribute of the tuple for each store.
        commits, enters, seqs, numels, ins, outs, groups, signatures, sites_, threads, ops, dtypes = segment.entry
        enters[row] = now
        seqs[row] = seq
        numels[row] = numel
        ins[row] = bytes_in
        outs[row] = bytes_out
        groups[row] = group.id
        signatures[row] = number
        sites_[row] = site
        threads[row] = running.thread
        ops[row] = code
        dtypes[row] = dtype
        columns = segment.columns
        if peer:  # a new row is all zeros: what is zero need not be stored
            columns.peer[row] = peer
        if self.step:
            columns.step[row] = self.step
        if args[plan.async_at] if plan.async_at < len(args) else plan.async_default:
            columns.is_async[row] = 1
        if by_method and running.reduce_op:
            columns.reduce_op[row] = running.reduce_op
        commits[row] = segment.base + row + 1
        if not cpu:
            mark = self.device.mark(tensor.device.index, group.coalescing) if tensor.is_cuda else UNSEEN
            return columns, row, mark
        call = columns, row, WAITED if plan.gloo_end_unseen and group.is_gloo_on_cpu else ASKED
        if by_method:
            running.call = call
        return call

    def returned(self, plan: Plan, call: works.Call, result: Any, running: Running) -> None:
        """Store that the dispatcher came back with its results or, `failsafe.RAISED`, an exception."""
        now = time_ns()
        columns, row, end = call
        if result is failsafe.RAISED:
            running.call = None
            works.finish(call, words.FAILED, now)
            return
        columns.issued_ns[row] = now
        if running.call is call:
            return  # the method has its Work and awaits that
        at = plan.work_at
        if at == NO_WORK:
            works.finish(call, words.COMPLETED, now)
            return
        boxed = result if at == ONLY_RESULT else result[at]
        work = None if boxed is None else self._unbox(boxed)
        if isinstance(end, Mark):
            if end.coalescing is None:
                self.device.watch(call, work)
            else:
                end.coalescing.append(call)  # its own Work tells nothing: that of the end of coalescing does
        elif work is not None and end != UNSEEN:
            self.pending.add(work, call)
        else:
            columns.outcome[row] = words.NOT_RECORDED

    def interrupted(self, call: works.Call | None) -> None:
        """Store that the job's own exception came up in our code: before this thread's call was made, or after."""
        call = call or self._unissued()
        if call is not None:
            columns, row, _ = call
            if columns.issued_ns[row]:
                works.finish(call, words.NOT_RECORDED, 0)
            else:
                works.finish(call, words.FAILED, time_ns())

    def _unissued(self) -> works.Call | None:
        """The newest row of this thread, where its call has not returned."""
        segment, thread = self._segment, get_native_id()
        columns = segment.columns
        for row in range(segment.rows - 1, -1, -1):
            if columns.commit[row] and columns.thread[row] == thread and columns.op[row] != _STEP:
                return None if columns.issued_ns[row] or columns.outcome[row] else (columns, row, UNSEEN)
        return None

    def enter_pseudo(self, code: int, group: Group, enter_ns: int) -> works.Call | None:
        """Store that a call entered which torch does not dispatch; None where it is not recorded."""
        seq, site = group.next_seq(), self._sites.here()
        place = self._place()
        if place is None:
            return None
        segment, row = place
        columns = segment.columns
        columns.enter_ns[row] = enter_ns
        columns.seq[row] = seq
        columns.group[row] = group.id
        columns.site[row] = site
        columns.step[row] = self.step
        columns.thread[row] = get_native_id()
        columns.op[row] = code
        columns.commit[row] = segment.base + row + 1
        return columns, row, UNSEEN

    def stepped(self) -> None:
        """Store that a training step ended."""
        now = time_ns()
        self.step += 1
        place = self._place()
        if place is not None:
            segment, row = place
            columns = segment.columns
            columns.enter_ns[row] = columns.issued_ns[row] = columns.end_ns[row] = now
            columns.seq[row] = self.step
            columns.op[row] = _STEP
            columns.outcome[row] = words.COMPLETED
            columns.commit[row] = segment.base + row + 1

    def leave_pseudo(self, call: works.Call, *, raised: bool) -> None:
        """Store that such a call returned, and so ended, or raised."""
        now = time_ns()
        columns, row, _ = call
        if not raised:
            columns.issued_ns[row] = now
        works.finish(call, words.FAILED if raised else words.COMPLETED, now)

    def _place(self) -> tuple[ring.Segment, int] | None:
        """A new row; None where there is none yet."""
        segment = self._segment
        row = segment.take()
        return (segment, row) if row < segment.rows else self._next_place(segment)

    def _next_place(self, full: ring.Segment) -> tuple[ring.Segment, int] | None:
        """A row in the segment after a full one; None where there is none yet."""
        while True:
            with self._rotation:
                if self._segment is full:
                    if self._spare is None:
                        self._lost += 1
                        return None
                    self._sealed.append((full.path, full.size))
                    self._segment, self._spare = self._spare, None
            segment = self._segment
            row = segment.take()
            if row < segment.rows:
                return segment, row
            full = segment

    def _new_signature(self, key: Any, plan: Plan, args: tuple[Any, ...]) -> Signature:
        is_kept = len(self._signatures) < _MOST_SIGNATURES
        signature, line = plan.describe(args, next(self._numbers) if is_kept else 0)
        if signature.id:
            self.side.append(line)
            self._signatures[key] = signature
        return signature

    # The recorder's own thread

    def _tend(self) -> None:
        tend_once = failsafe.guard(self._tend_once)
        time.sleep(PERIOD_S)
        while not self._stopped and not failsafe.errors:
            tend_once()
            time.sleep(PERIOD_S)  # an event to wait for would double the price of waking up

    def _tend_once(self) -> None:
        self.side.renew(time_ns(), self._watch.waits_since_ns)
        if self.stacks is None:
            self.stacks = Stacks(f"{self._stem}.stacks", self._config.stall_s)
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_S
            self._look_for_stall()
        self.pending.ask()
        self.device.ask()
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
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            self.side.append({"kind": "deleted", "segment": os.path.basename(path)})

    # The end

    def note(self, kind: str, **fields: Any) -> None:
        """Store a line about this process with the time."""
        self.side.append({"kind": kind, "time_ns": time_ns(), **fields})

    def switch_off(self, reason: str) -> None:
        """Stop after an error of ours: say why, and leave no call open whose end will not be seen."""
        self._stopped = True
        for step in (lambda: self.side.append(_off(reason)), self.pending.close, self.device.close, self._let_go):
            failsafe.attempt(step)

    def _let_go(self) -> None:
        if self.stacks is not None:
            self.stacks.close()

    def close(self) -> None:
        """Say goodbye and stop the thread: the interpreter shuts down in order."""
        self._stopped = True
        self._thread.join(timeout=1.0)
        self._let_go()
        self.pending.ask()
        self.note("goodbye")
        self.side.reserve()
        self.side.renew(time_ns())


def _off(reason: str) -> dict[str, Any]:
    return {"kind": "off", "time_ns": time_ns(), "why": reason}


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
        "time_ns": time_ns(),
        "monotonic_ns": time.monotonic_ns(),
        "python": sys.version.split()[0],
        "torch": str(torch.__version__),
        "network": {name: os.environ[name] for name in ports.VARIABLES if name in os.environ},
    }
