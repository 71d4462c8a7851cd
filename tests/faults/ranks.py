"""Starts jobs in the lab's namespaces: imports torch once and forks, which takes 0.3 s instead of the import's seconds.

Run as a program by `job.Zygote`. A line of JSON on standard input describes a job, and a process per host is forked for
it; that one enters the host's namespaces, forks the sampler of links and the ranks, and does what `roundk run` does
beside its command: it notes the ranks' states and how they ended. The answer is a line of JSON with the hosts' pids.
No thread may exist where a fork is made: threads begin in the ranks.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime as dt
import gc
import json
import os
import pathlib
import random
import signal
import socket
import sys
import time

import lab
from board import Board, Order, State

from roundk.hooks import watch
from roundk.tracer import rundir, words

_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWNET = 0x00020000, 0x04000000, 0x40000000
_MS_REC, _MS_SLAVE, _MNT_DETACH = 0x4000, 1 << 19, 2
_LOOK_S = 0.25
"""Between two looks at the ranks, as in `roundk run`."""
_SMALL_EVERY = 3
"""Every so many rounds there is a small call too: a broadcast and a barrier in turn."""
_MTU_PASSES = 16
"""Elements of the small broadcast: one packet at any MTU."""


def main():
    """Serve jobs until standard input ends; in a forked child, be that child."""
    lab.die_with_parent()
    import torch
    import torch.distributed

    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver's to handle, and it ends us
    gc.freeze()  # a child that looks at none of it at its end copies none of it
    print("ready", flush=True)
    for line in sys.stdin:
        child = _serve(json.loads(line))
        if child is not None:
            return child()
    return 0


def _serve(request):
    """Do what the driver asks; in a forked child give what that is to do."""
    if "poll" in request:
        print(json.dumps([_poll(pid) for pid in request["poll"]]), flush=True)
        return None
    pids = []
    for host in range(request["hosts"]):
        pid = os.fork()
        if pid == 0:
            return lambda host=host: _Host(request, host).run()  # its ranks come back from there too
        pids.append(pid)
    print(json.dumps(pids), flush=True)
    return None


def _poll(pid):
    """Exit code of a host's process; None while it runs."""
    done, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if done else None


class _Host:
    """One host: its namespaces, its sampler, its ranks, and the launcher's part."""

    def __init__(self, job, host):
        self._job = job
        self._host = host
        self._run = pathlib.Path(job["run"])
        self._scratch = pathlib.Path(job["scratch"])

    def run(self):
        """Be this host until all its ranks have ended; in a forked rank, be that."""
        lab.die_with_parent()
        with pathlib.Path(os.devnull).open("rb") as null:
            os.dup2(null.fileno(), 0)
        self._to_file(f"host{self._host}.out")
        _enter(self._host)
        os.environ.update(
            {
                "ROUNDK_HOST": lab.host_name(self._host),
                "ROUNDK_DIR": str(self._run),
                "ROUNDK_STALL_S": str(self._job["stall_s"]),
                "GLOO_SOCKET_IFNAME": lab.USED,
                "MASTER_ADDR": lab.address(0),
                "MASTER_PORT": "29500",
                "WORLD_SIZE": str(self._job["ranks"]),
                "OMP_NUM_THREADS": "1",
            }
        )
        folder = rundir.prepare(str(self._run))
        stop_sampler, tell_sampler = os.pipe()
        sampler = os.fork()
        if sampler == 0:
            os._exit(_sample(folder, stop_sampler))  # not through the end of an interpreter with torch: seconds
        file = rundir.LineFile(f"{folder}/launcher-{os.getpid()}.jsonl")
        file.append(self._start())
        looking = watch.Watch(folder, file)
        per_host = self._job["ranks"] // self._job["hosts"]
        ranks = set()
        for local_rank in range(per_host):
            rank = self._host * per_host + local_rank
            pid = os.fork()
            if pid == 0:
                return self._rank(rank, local_rank)
            ranks.add(pid)
        code = _look_until_ended(file, looking, ranks)
        os.write(tell_sampler, b"x")
        _, status = os.waitpid(sampler, 0)
        file.append({"kind": "end", "time_ns": time.time_ns(), "code": code})
        os._exit(os.waitstatus_to_exitcode(status))

    def _start(self):
        return {
            "kind": "start",
            "schema": words.SCHEMA_VERSION,
            "time_ns": time.time_ns(),
            "monotonic_ns": time.monotonic_ns(),
            "host": rundir.host_name(),
            "host_full": rundir.full_host_name(),
            "pid": os.getpid(),
            "command": ["train.py"],
        }

    def _to_file(self, name):
        with (self._scratch / name).open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)

    def _rank(self, rank, local_rank):
        lab.die_with_parent()
        self._to_file(f"rank{rank}.out")
        os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(local_rank)})
        import roundk.hooks

        roundk.hooks.install()
        board = Board(self._scratch / "board", self._job["ranks"])
        board.started(rank, os.getpid())
        try:
            _Program(self._job, rank, board).run()
        except BaseException:
            board.set_state(rank, State.FAILED)
            raise
        board.set_state(rank, State.FINISHED)
        return 0


def _look_until_ended(file, looking, ranks):
    """Do what `roundk run` does while its command runs; the first exit code of the ranks that is not 0."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    first = 0
    while ranks:
        signal.sigtimedwait({signal.SIGCHLD}, _LOOK_S)
        file.renew(time.time_ns())
        looking.look()
        for pid in sorted(ranks):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                code = os.waitstatus_to_exitcode(status)
                file.append({"kind": "exit", "time_ns": time.time_ns(), "pid": pid, "code": code})
                first = first or code
                ranks.remove(pid)
    looking.look()
    return first


def _sample(folder, stop):
    """Be the sampler of this host's links until told to stop."""
    lab.die_with_parent()
    from roundk.tracer.links import Sampler

    sampler = Sampler(folder)
    sampler.run(stop)
    sampler.close()
    return 0


def _enter(host):
    """Move this process into a host's namespaces, and give it the /sys of these: the old one stays the machine's."""
    libc = ctypes.CDLL(None, use_errno=True)

    def must(result, what):
        if result != 0:
            raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")

    netns = os.open(f"/run/netns/{lab.netns(host)}", os.O_RDONLY | os.O_CLOEXEC)
    must(libc.setns(netns, _CLONE_NEWNET), "setns")
    os.close(netns)
    must(libc.unshare(_CLONE_NEWNS | _CLONE_NEWUTS), "unshare")
    must(libc.mount(b"", b"/", None, _MS_REC | _MS_SLAVE, None), "mount --make-rslave /")
    libc.umount2(b"/sys", _MNT_DETACH)
    must(libc.mount(b"sysfs", b"/sys", b"sysfs", 0, None), "mount /sys")
    socket.sethostname(lab.host_name(host))


class _Program:
    """What a rank does: rounds of a large all_reduce with some work before each, and a small call now and then."""

    def __init__(self, job, rank, board):
        import torch
        import torch.distributed as dist

        import roundk.hooks

        self._torch, self._dist, self._step = torch, dist, roundk.hooks.step
        self._job, self._rank, self._board = job, rank, board
        self._random = random.Random(f"{job['seed']} {rank}")

    def run(self):
        dist = self._dist
        dist.init_process_group("gloo", timeout=dt.timedelta(seconds=self._job["timeout_s"]))
        self._rounds()
        dist.destroy_process_group()

    def _rounds(self):
        data = self._torch.ones(self._job["elements"])
        small = self._torch.ones(_MTU_PASSES)
        self._board.set_state(self._rank, State.IN_ROUNDS)
        number, is_last = 0, False
        while not is_last:
            number += 1
            self._board.set_round(self._rank, number)
            self._work()
            skips = self._obey()
            data.fill_(1.0)
            # Who is asked to stop says so in the round itself, so that all ranks leave after the same one.
            data[0] = float(self._rank == 0 and self._board.should_stop)
            if not skips:
                self._dist.all_reduce(data)
                is_last = bool(data[0] > 0)
            if number % _SMALL_EVERY == 0:
                self._small(small, number // _SMALL_EVERY)
            self._step()

    def _small(self, small, count):
        if count % 2 == 0:
            self._dist.barrier()
        else:
            self._dist.broadcast(small, src=0)

    def _work(self):
        time.sleep(self._random.uniform(*self._job["pause_s"]))
        until = time.thread_time() + self._job["cpu_s"]
        while time.thread_time() < until:
            pass

    def _obey(self):
        """Make the fault that the driver ordered; whether this round's call is skipped."""
        order, amount_s = self._board.ordered(self._rank)
        if order == Order.SLOW:
            time.sleep(amount_s)  # in every round until the driver takes it back
        elif order != Order.NONE:
            self._board.done(self._rank)
            if order == Order.SLEEP:
                time.sleep(amount_s)
            elif order == Order.NEVER:
                while True:
                    time.sleep(3600)
        return order == Order.SKIP


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
