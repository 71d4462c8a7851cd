"""Hosts with InfiniBand ports, made up: synthetic trees of /sys that change while the real sampler reads them.

Nothing here was recorded on a machine with InfiniBand: the trees are `sysfs_tree`'s, what happens in them is written by
a test. The sampler's own loop runs, on a clock that stands still while it works and jumps while it sleeps: a minute of
sampling takes part of a second, and what it sees does not depend on how busy the machine is. The ranks' files beside
it are written by the recorder's own writers.
"""

from __future__ import annotations

import itertools
import select
import time
import types

import sysfs_tree

from roundk.analyze import sources
from roundk.analyze.diagnose import diagnose
from roundk.tracer import linkfiles, links, linkstore, pacing, ring, rundir, side, waiting, words

S = 1_000_000_000
T0 = 1_795_000_000 * S
AFTER_S = 600
"""From the end of the sampling to the analysis."""
_STOP = 1_000_000
"""No file's descriptor."""


class Clock:
    """Stands in for `time` in the sampler's modules, and for its `select`: sleeping moves it on, and acts the script.

    Every look at it takes 5 us, as reading files takes time.
    """

    POLLIN = select.POLLIN

    def __init__(self, script, until_s):
        self.ns = T0
        self.script = sorted(script, key=lambda pair: pair[0])
        self.until_ns = T0 + round(until_s * S)

    def time_ns(self):
        self.ns += 5_000
        return self.ns

    def monotonic(self):
        return self.monotonic_ns() / S

    def monotonic_ns(self):
        return self.time_ns() - T0 + 1_000 * S

    def thread_time(self):
        return 0.0

    def poll(self):
        return types.SimpleNamespace(register=lambda *_: None, poll=self._sleep)

    def _sleep(self, timeout_ms):
        self.ns += int(timeout_ms * 1e6) + 1_000
        while self.script and T0 + self.script[0][0] * S <= self.ns:
            self.script.pop(0)[1]()
        return [(_STOP, select.POLLIN)] if self.ns >= self.until_ns else []


class Host:
    """One host with a rank and ports of one or two HCAs, and what happens to them."""

    def __init__(self, fabric, name, rank):
        self.fabric, self.name, self.rank = fabric, name, rank
        self.sys = fabric.root / "trees" / name / "sys"
        self.script = []
        self.ports = {}
        for device, port in fabric.hcas:
            self.ports[device, port] = sysfs_tree.add_port(self.sys, device, port)
            self.set(0, device, port, port_xmit_data=2**40, port_rcv_data=2**40)

    def set(self, at_s, device, port=1, **files):
        """From a time on, files of a port say this; counters are known by their names."""
        folder = self.ports[device, port]
        paths = {name: self._path(folder, name) for name in files}

        def write():
            for name, value in files.items():
                paths[name].write_text(f"{value}\n")

        self.script.append((at_s, write))
        return self

    def grow(self, begin_s, end_s, device, port=1, *, start=0, **per_s):
        """Counters that go up at these rates between two times, by the tenth of a second; they wrap at 32 bits."""
        for number in range(round(10 * (end_s - begin_s)) + 1):
            values = {name: (start + int(rate * number / 10)) % 2**32 for name, rate in per_s.items()}
            self.set(begin_s + number / 10, device, port, **values)
        return self

    def flap(self, at_s, device, port=1, *, for_s=0.5, before=0):
        """A port that goes down, and comes back after so long (None: never); `link_downed` counts it."""
        self.set(at_s, device, port, state="1: DOWN", phys_state="2: Polling", link_downed=(before + 1) % 2**32)
        if for_s is not None:
            self.set(at_s + for_s, device, port, state="4: ACTIVE", phys_state="5: LinkUp")
        return self

    @staticmethod
    def _path(folder, name):
        inside = "counters" if name in sysfs_tree.COUNTERS else "hw_counters" if name in sysfs_tree.HW_COUNTERS else ""
        return folder / inside / name


class Fabric:
    """A job of one rank on each of some hosts, whose group uses port 1 of mlx5_0, as NCCL_IB_HCA tells."""

    def __init__(self, root, monkeypatch, *, hosts=4, hca="=mlx5_0:1", hcas=(("mlx5_0", 1), ("mlx5_1", 1))):
        self.root, self.run, self.monkeypatch = root, root / "run", monkeypatch
        self.hca, self.hcas = hca, hcas
        self.hosts = [Host(self, f"node-{rank}", rank) for rank in range(hosts)]
        self.clock_s = 0.1
        self.calls = {rank: [] for rank in range(hosts)}
        self.waits_since_s = None
        self.stopped = None

    def __getitem__(self, number):
        return self.hosts[number]

    # The job

    def rounds(self, until_s, *, lasts=0.02, every=0.1):
        """Rounds that complete, one after the other."""
        while self.clock_s < until_s:
            for rank, calls in self.calls.items():
                calls.append((self.clock_s + 0.0002 * rank, self.clock_s + 0.001 + lasts))
            self.clock_s += max(every, lasts + 0.01)
        return self

    def hang(self, without=()):
        """A round that nobody completes; its begin."""
        self.waits_since_s = self.clock_s
        for rank, calls in self.calls.items():
            if rank not in without:
                calls.append((self.clock_s + 0.0002 * rank, None))
        return self

    def stop(self, rank, at_s):
        """A rank's process is stopped, as the launcher of its host notes."""
        self.stopped = (rank, at_s)
        return self

    # The recording

    def record(self, until_s):
        """Run each host's sampler over its script, beside the files of its rank."""
        self.root.joinpath("run").mkdir(exist_ok=True)
        for host in self.hosts:
            self.monkeypatch.setenv(rundir.HOST_VARIABLE, host.name)
            folder = rundir.prepare(str(self.run))
            lines = self._rank(host, folder)
            script = [
                *host.script,
                *((tenth / 10, self._sign(host, lines, tenth / 10)) for tenth in range(10 * until_s)),
            ]
            clock = Clock(script, until_s)
            with self.monkeypatch.context() as patch:
                for module in (links, linkstore, pacing, waiting):
                    patch.setattr(module, "time", clock)
                patch.setattr(links, "select", clock)
                patch.setattr(linkfiles, "time_ns", clock.time_ns)
                sampler = links.Sampler(folder, sysfs_root=str(host.sys))
                sampler._credit._at = clock.monotonic()
                sampler.run(_STOP)
                sampler.close()
            self._launcher(host, folder, until_s)
        return self

    def _sign(self, host, lines, at_s):
        """A rank's sign of life, with since when it waits; a stopped one gives none."""
        now_ns = T0 + round(at_s * S)
        is_in = self.waits_since_s is not None and at_s > self.waits_since_s and self.calls[host.rank][-1][1] is None
        since_ns = T0 + round(self.waits_since_s * S) if is_in else 0
        is_stopped = self.stopped is not None and self.stopped[0] == host.rank and at_s >= self.stopped[1]
        return (lambda: None) if is_stopped else (lambda: lines.renew(now_ns, since_ns))

    def _rank(self, host, folder):
        stem = f"{folder}/rank-{host.rank:05d}-{100 + host.rank}"
        lines = side.SideFile(f"{stem}.jsonl")
        lines.renew(T0)
        process = {"kind": "process", "schema": words.SCHEMA_VERSION, "rank": host.rank, "world_size": len(self.hosts)}
        about = {"host": host.name, "pid": 100 + host.rank, "time_ns": T0, "network": {"NCCL_IB_HCA": self.hca}}
        lines.append({**process, **about})
        group = {"kind": "group", "id": 1, "name": "0", "desc": "default_pg", "backend": "nccl"}
        lines.append({**group, "ranks": [[0, len(self.hosts), 1]]})
        lines.append({"kind": "signature", "id": 1, "op": "all_reduce", "inputs": [[1_048_576]], "outputs": None})
        place = {"kind": "site", "id": 1, "file": "train.py", "line": 21, "function": "main", "loop": 20}
        lines.append({**place, "stack": ["train.py:21 main"], "loops": [20]})
        calls = self.calls[host.rank]
        for number, first in enumerate(range(0, len(calls), 4096)):
            segment = ring.Segment.create(rundir.segment_path(stem, number), 4096, first)
            for row, call in enumerate(calls[first : first + 4096]):
                _store(segment, row, call)
        return lines

    def _launcher(self, host, folder, until_s):
        launcher = rundir.LineFile(f"{folder}/launcher-7.jsonl")
        launcher.append({"kind": "start", "time_ns": T0, "command": ["python", "train.py"]})
        if self.stopped is not None and self.stopped[0] == host.rank:
            about = {"rank": host.rank, "pid": 100 + host.rank, "state": "T"}
            launcher.append({"kind": "state", "time_ns": T0 + round(self.stopped[1] * S), **about})
        end_ns = T0 + round(until_s * S)
        launcher.renew(end_ns)
        if self.waits_since_s is None:
            exits = {"kind": "exit", "rank": host.rank, "pid": 100 + host.rank, "code": 0}
            launcher.append({**exits, "time_ns": end_ns})
            launcher.append({"kind": "end", "time_ns": end_ns, "code": 0})
        launcher.close()

    # The verdict

    def report(self):
        trace, _ = sources.load([str(self.run)])
        last_ns = trace.last_alive_ns or T0
        return diagnose(trace, now_ns=max(last_ns, time.time_ns()) + AFTER_S * S)

    def verdict(self):
        return self.report().verdicts[0]


def _store(segment, row, call):
    begin_s, end_s = call
    begin_ns = T0 + round(begin_s * S)
    stored = {"enter_ns": begin_ns, "issued_ns": begin_ns + 20_000, "seq": segment.base + row + 1, "numel": 1_048_576}
    stored |= {"bytes_in": 4_194_304, "bytes_out": 4_194_304, "group": 1, "signature": 1, "site": 1}
    stored |= {"op": words.OPS.index("all_reduce"), "dtype": 1, "reduce_op": 1}
    if end_s is not None:
        stored |= {"end_ns": T0 + round(end_s * S), "outcome": words.COMPLETED}
    for name, value in itertools.chain(stored.items(), [("commit", segment.base + row + 1)]):
        getattr(segment.columns, name)[row] = value
