"""Jobs of two ranks that take a fraction of a second each, and together call what roundk's hooks have.

`injected.py` calls each in both ranks, forked from one process that has torch. They print what training came to.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import hashlib
import multiprocessing
import os
import pathlib
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
import time

import torch
import torch._dynamo  # which DistributedDataParallel loads: a second for each rank otherwise
import torch.distributed as dist
import torch.distributed.run
import torch.multiprocessing
from torch.nn.parallel import DistributedDataParallel

from roundk.hooks import autoload, config, launch, recorder, step

STEPS = 3
LOOK_S = 0.05
"""Time for the recorder's thread to come by, which it does every 0.01 s."""


def connect(rank: int, timeout_s: float = 60) -> None:
    store = f"file://{pathlib.Path('store').resolve()}"
    timeout = dt.timedelta(seconds=timeout_s)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2, timeout=timeout)


def disconnect() -> None:
    """Leave all groups, once gloo's threads are at rest.

    One that is still letting go of a finished call may want the GIL, while whoever has it joins that thread as it
    deletes the group: torch 2.13 was seen to hang so in a fifth of all exits, without roundk.
    """
    time.sleep(0.1)
    dist.destroy_process_group()


def model_of(rank: int) -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(16, 16) for _ in range(3)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.001)
    torch.manual_seed(rank)
    return model


def fit(model: torch.nn.Module) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(STEPS):
        loss = model(torch.randn(4, 16)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def tell(model: torch.nn.Module, losses: list[float]) -> None:
    """Print what training came to, to the last bit."""
    parameters = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    print(hashlib.sha256(parameters).hexdigest(), [loss.hex() for loss in losses], flush=True)


def begin(rank: int, timeout_s: float = 60) -> torch.nn.Module:
    """Train and tell."""
    connect(rank, timeout_s)
    model = model_of(rank)
    tell(model, fit(model))
    return model


def end(model: torch.nn.Module) -> None:
    """Train on, tell and leave."""
    tell(model, fit(model))
    disconnect()


def train(rank: int) -> None:
    """The shortest, which most functions fail in."""
    begin(rank)
    disconnect()


def call_all(rank: int) -> None:
    """Calls of all kinds."""
    model = begin(rank)
    tensor = torch.ones(4)
    group = dist.new_group([0, 1])
    dist.new_group([rank], use_local_synchronization=True)
    for work in [dist.all_reduce(tensor, group=group, async_op=True) for _ in range(4)]:
        work.wait()
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    dist.reduce_scatter(torch.empty(4), [torch.ones(4), torch.ones(4)])
    if rank:
        dist.send(tensor, 0)
        sent = [dist.isend(tensor, 0), dist.isend(tensor, 0)]
        time.sleep(LOOK_S)  # the recorder's thread sees both
        sent.pop().wait()
    else:
        dist.recv(tensor, 1)
        dist.irecv(tensor, 1).wait()
        dist.recv(tensor, 1)
    with dist._coalescing_manager(group=group):
        dist.all_reduce(tensor, group=group)
        dist.all_reduce(tensor, group=group)
    dist.all_gather_object([None, None], {"rank": rank})
    dist.barrier()
    time.sleep(LOOK_S)
    dist.destroy_process_group(group)
    end(model)


def late_start(rank: int) -> None:
    """The recorder comes in when the group is there."""
    connect(rank)
    autoload.start(str(pathlib.Path("config.json").resolve()))
    model = model_of(rank)
    dist.barrier()
    end(model)


def refused(rank: int) -> None:
    """Calls that gloo does not know: they fail, and the program goes on."""
    model = begin(rank)
    for call in (dist.group.WORLD._start_coalescing, dist.group.WORLD._end_coalescing):
        with contextlib.suppress(RuntimeError):
            call(torch.device("cpu"))
    with contextlib.suppress(RuntimeError):
        dist.split_group(split_ranks=[[0, 1]])
    end(model)


def off(rank: int) -> None:
    """The recorder has failed: what more fails is what switches it off."""
    model = begin(rank)
    recorder.Recorder.stepped = None
    work = dist.all_reduce(torch.ones(4), async_op=True)
    step()
    work.wait()
    end(model)


class AlarmError(Exception):
    """A user's own."""


def interrupted(rank: int) -> None:
    """A signal's handler raises inside roundk, and the program goes on."""
    model = begin(rank)
    alone = [dist.new_group([member]) for member in range(2)][rank]

    def handler(number, frame):
        raise AlarmError

    places = ["read", "enter"]  # a method's reduction, and a kernel's arguments

    def profile(frame, event, arg):
        if event == "call" and frame.f_code.co_name == places[-1] and "roundk" in frame.f_code.co_filename:
            sys.setprofile(None)
            signal.raise_signal(signal.SIGALRM)

    signal.signal(signal.SIGALRM, handler)
    while places:
        with contextlib.suppress(AlarmError):
            sys.setprofile(profile)
            dist.all_reduce(torch.ones(4), group=alone)
        sys.setprofile(None)
        places.pop()
    end(model)


def fall_over() -> None:
    raise LookupError("this thread was meant to")


def processes(rank: int) -> None:
    """Children, threads and their failures."""
    model = begin(rank)
    if not (pid := os.fork()):
        os._exit(0)
    os.waitpid(pid, 0)
    child = multiprocessing.get_context("fork").Process(target=os._exit, args=(3,))
    child.start()
    child.join()
    thread = threading.Thread(target=fall_over)
    thread.start()
    thread.join()
    end(model)


def rotate(rank: int) -> None:
    """More calls than three segments hold; most in a group of one, where they take no time."""
    model = begin(rank)
    alone = [dist.new_group([member]) for member in range(2)][rank]
    tensor = torch.ones(1)
    for _ in range(4):
        for _ in range(2_000):
            dist.all_reduce(tensor, group=alone)
        time.sleep(LOOK_S)  # the recorder's thread makes the next segment
        dist.barrier()
        step()
    end(model)


def stall(rank: int) -> None:
    model = begin(rank)
    if not rank:
        time.sleep(1.2)
    dist.barrier()
    end(model)


def late(rank: int) -> None:
    """Rank 1 comes too late to the last round."""
    begin(rank, timeout_s=1.5)
    if rank:
        time.sleep(3)
    dist.all_reduce(torch.ones(4))


def fail(rank: int) -> None:
    begin(rank)
    dist.barrier()
    if rank:
        raise LookupError("this rank was meant to")
    sys.exit(3)


def leave(rank: int) -> None:
    """Unfinished works, no destruction, and an exit that runs nothing."""
    begin(rank)
    for _ in range(8):
        dist.all_reduce(torch.ones(1 << 16), async_op=True)
    dist.barrier()
    os._exit(7)


def unfinished(rank: int) -> None:
    """Rank 0 exits with works that rank 1 has not come to, and then rank 1 with its own."""
    begin(rank)
    if rank:
        time.sleep(0.5)
    for size in (16, 1 << 20) * 4:
        dist.all_reduce(torch.ones(size), async_op=True)


def never_finished(rank: int) -> None:
    """Rank 0 exits with works to which rank 1 never comes."""
    begin(rank)
    if rank:
        time.sleep(0.7)
        return
    for size in (16, 1 << 20) * 4:
        dist.all_reduce(torch.ones(size), async_op=True)


def _spawned(_: int, rank: int) -> None:
    raise LookupError(f"worker of rank {rank}")


def spawned(rank: int) -> None:
    try:
        torch.multiprocessing.start_processes(_spawned, args=(rank,), nprocs=1, start_method="fork")
    except torch.multiprocessing.ProcessRaisedException as error:
        print(str(error).strip().splitlines()[-1], flush=True)


def agent(rank: int) -> None:
    """torchrun's agent, once, with workers that have no torch."""
    if not rank:
        return
    code = "import os, sys; sys.exit(3 if os.environ['RANK'] == '1' else 0)"
    command = ["--standalone", "--nproc-per-node", "2", "--no-python", sys.executable, "-S", "-c", code]
    torch.distributed.run.main(command)


A_RANK = """
import os, pathlib, signal, socket, sys, time
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
run = pathlib.Path(os.environ.get("ROUNDK_DIR", "run"))
run.mkdir(exist_ok=True)
folder = next((path for path in run.iterdir() if path.is_dir()), run)
server = socket.create_server(("127.0.0.1", 0))
connection = socket.create_connection(server.getsockname())
time.sleep(0.3)
if "ROUNDK_DIR" in os.environ:
    os.kill(os.getppid(), signal.SIGUSR1)
(folder / f"rank-00000-{os.getpid()}.jsonl").write_text(
    '{"kind": "alive", "time_ns": %d}\\n' % time.time_ns() +
    '{"kind": "process", "time_ns": 1, "started_ticks": null,'
    ' "network": {"MASTER_ADDR": "127.0.0.1", "NCCL_SOCKET_IFNAME": "none"}}\\n')
time.sleep(0.9)
print("the command's own output", flush=True)
sys.exit(5)
"""
NO_RANK = "import sys, time; time.sleep(0.4); print('the command is over', flush=True); sys.exit(5)"


def launcher(rank: int) -> None:
    """`roundk run`, once, with a command that has no torch and plays a rank."""
    if rank:
        be_child_with_stdout(*reversed(os.pipe()))
        sys.exit(_launched(A_RANK, "run"))


def terminal(rank: int) -> None:
    """`roundk run` on a terminal of changing size."""
    if rank:
        master, slave = pty.openpty()
        be_child_with_stdout(slave, master)
        sys.exit(_launched(A_RANK, "run"))


def without_ranks(rank: int) -> None:
    """`roundk run`, once, with a command that has no rank, and with other settings."""
    if rank:
        be_child_with_stdout(*reversed(os.pipe()))
        sys.exit(_launched(NO_RANK, None, nccl_debug="INFO"))


def _launched(code: str, directory: str | None, **settings) -> int:
    command = [sys.executable, "-S", "-c", code]
    if config.from_environment():
        return launch.run(command, directory, 64, 30.0, **settings)
    return subprocess.run(command, check=False).returncode


def be_child_with_stdout(end: int, other: int) -> None:
    """Go on in a child that has this stdout; this process reads its other end until nobody writes, then exits alike."""
    child = os.fork()
    if not child:
        os.dup2(end, 1)
        os.close(end)
        os.close(other)
        return
    os.close(end)
    if os.isatty(other):
        for rows in (40, 41, 42):  # the first may come before the launcher has looked, on a busy machine
            time.sleep(0.3)
            fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", rows, 100, 0, 0))
    with contextlib.suppress(OSError):  # a terminal that nobody has open any more
        while data := os.read(other, 1 << 16):
            os.write(1, data)
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF)


CALLING = (train, call_all, late_start, refused, off, interrupted)
ENDING = (processes, fail, leave, rotate, stall, late, spawned, agent)
LAUNCHING = (launcher, terminal, without_ranks)
EXITING = (unfinished, never_finished)
JOBS = {job.__name__: job for job in (*CALLING, *ENDING, *LAUNCHING, *EXITING)}
