"""What recording costs a job: `python tests/bench/step_cost.py [ROUNDS]`, some five minutes on an idle machine.

Three jobs of two ranks on gloo stand ready, by torchrun: without roundk, with a kernel that does nothing (what torch
takes for any kernel in Python), and under `roundk run`. They take blocks of steps in turn, so that all see the same
machine. A step is of DDP with buckets of one parameter each, the worst case for a recorder (twenty calls and nothing
else to do), or makes 50 small calls in 200 ms.

What counts is the 10th percentile of process CPU over steps: the ranks wait for each other, and the machine may have
other work. A step of a few milliseconds can pass between two looks of the recorder's own thread, so that DDP's are also
taken ten at a time. CPU is given of the whole process, and without gloo's TCP thread: that one is in the kernel, for a
time per call that is larger than what is looked for and varies. What a call costs is the difference of the latter.

The 200 ms are busy: after a sleep the core and its caches are as no training leaves them. The work is counted by the
thread's own CPU clock and taken off again: what a fixed piece of it takes varies too.

Then: memory, disk, and the start of Python processes that import torch and that do not. Prints Markdown.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from roundk.hooks import config, site
from roundk.tracer import template

ROUNDS = 20
RANKS = 2
LAYERS = 10
"""Each has two parameters, and so two calls in a step."""
CALLS, BUSY_NS = 50, 3_500_000
"""Calls of a long step, and work before each: 175 ms of work, and the calls themselves."""
BLOCKS = {"ddp": 60, "long": 4}
"""Steps of a block: a second or so of each kind."""
TOGETHER = 10
JOBS = ("without", "empty kernel", "with")
GLOO_TCP = "gloo_tcp_loop"
"""Beginning of the name of gloo's TCP threads, torch 2.13."""
OURS = "roundk"
"""Name of the recorder's thread."""
_CLOCK_OF_THREAD = 6
"""CPUCLOCK_SCHED | CPUCLOCK_PERTHREAD_MASK. Source: Linux, include/linux/posix-timers_types.h, and glibc's
pthread_getcpuclockid, which shifts the complement of the thread's id by 3."""
CALLS_TO_STORE = 300_000
STARTS, TORCH_STARTS = 60, 7


# In a rank


def rank(folder: str) -> None:
    """Take blocks of steps as they are asked for, and tell what they took."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    number, steps = dist.get_rank(), {"ddp": ddp_step(), "long": long_step()}
    ask, tell = (pathlib.Path(folder, f"{name}-{number}") for name in ("ask", "tell"))
    with contextlib.ExitStack() as stack:
        if pathlib.Path(folder).name == JOBS[1]:
            import hook_cost  # which imports torch, as only the ranks do

            stack.enter_context(hook_cost.empty_kernel())
        asked, told = stack.enter_context(ask.open()), stack.enter_context(tell.open("w", buffering=1))
        for line in asked:
            kind = line.strip()
            print(json.dumps(measured(steps[kind], BLOCKS[kind])), file=told)
    dist.destroy_process_group()


def ddp_step():
    import torch

    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(LAYERS)))
    ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1e-6)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-3)
    data = torch.ones(4, 8)

    def step():
        optimizer.zero_grad()
        ddp(data).sum().backward()
        optimizer.step()
        return 0

    return step


def long_step():
    import torch
    import torch.distributed as dist

    tensor, matrix = torch.ones(16), torch.ones(48, 48)

    def step():
        busy = 0
        for _ in range(CALLS):
            begin = time.thread_time_ns()
            while (now := time.thread_time_ns()) < begin + BUSY_NS:
                torch.mm(matrix, matrix)
            busy += now - begin
            dist.all_reduce(tensor)
        return busy

    return step


def measured(step, steps):
    """Of each step: CPU of the process less the work that the step says it did, that without gloo's TCP, and wall.

    Calls per step are by torch's own count.
    """
    import torch.distributed as dist

    first, clocks, own = dist.group.WORLD._get_sequence_number_for_group(), clocks_of(GLOO_TCP), clocks_of(OURS)
    cpu, less_tcp, wall, own_ns = [], [], [], -total(own)
    for _ in range(steps):
        began, tcp, before = time.perf_counter_ns(), total(clocks), time.process_time_ns()
        work = step()
        took = time.process_time_ns() - before - work
        cpu.append(took)
        less_tcp.append(took - total(clocks) + tcp)
        wall.append(time.perf_counter_ns() - began)
    calls = (dist.group.WORLD._get_sequence_number_for_group() - first) / steps
    return {
        "calls": calls,
        "cpu_ns": cpu,
        "less_tcp_ns": less_tcp,
        "wall_ns": wall,
        "own_ns": own_ns + total(own),
        "rss_kib": rss_kib(),
    }


def clocks_of(name):
    """CPU clocks of the threads whose name begins so: to the kernel, or to Python."""
    tasks = pathlib.Path("/proc/self/task").iterdir()
    found = {int(task.name) for task in tasks if (task / "comm").read_text().startswith(name)}
    found |= {thread.native_id for thread in threading.enumerate() if thread.name.startswith(name)}
    assert found or name != GLOO_TCP, f"gloo has no thread named {name} here"
    return [(~thread << 3) | _CLOCK_OF_THREAD for thread in found]


def total(clocks):
    return sum(map(time.clock_gettime_ns, clocks))


def rss_kib() -> int:
    (line,) = (line for line in pathlib.Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1])


def store(run: str) -> None:
    """Make calls as fast as they go, recorded into RUN."""
    import torch
    import torch.distributed as dist

    from roundk.hooks import install

    install(run)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    tensor = torch.ones(4)
    for _ in range(CALLS_TO_STORE):
        dist.all_reduce(tensor)
    dist.destroy_process_group()


# Around it


class Job:
    """A job whose ranks take steps when they are asked."""

    def __init__(self, folder: pathlib.Path) -> None:
        folder.mkdir()
        for number in range(RANKS):
            os.mkfifo(folder / f"ask-{number}")
            os.mkfifo(folder / f"tell-{number}")
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
        roundk = [sys.executable, "-m", "roundk", "run", "--no-logs", "--dir", str(folder / "run"), "--"]
        command = [*torchrun, __file__, "rank", str(folder)]
        command = [*roundk, *command] if folder.name == JOBS[-1] else command
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(command, env=environment)
        self.asks = [(folder / f"ask-{number}").open("w", buffering=1) for number in range(RANKS)]
        self.tolds = [(folder / f"tell-{number}").open() for number in range(RANKS)]

    def take(self, kind):
        """A block of steps: what each rank measured."""
        for ask in self.asks:
            print(kind, file=ask)
        return [json.loads(told.readline()) for told in self.tolds]

    def end(self) -> None:
        for ask in self.asks:
            ask.close()
        assert self.process.wait(60) == 0


def rounds(folder: pathlib.Path, count: int):
    """Per kind of step and round what the ranks of each job measured; who begins changes."""
    jobs = [Job(folder / name) for name in JOBS]
    found = {kind: [] for kind in BLOCKS}
    for number in range(count + 1):
        for kind, taken in found.items():
            begins = number % len(jobs)
            blocks = {job: job.take(kind) for job in (*jobs[begins:], *jobs[:begins])}
            if number:  # the first ones warm up
                taken.append([blocks[job] for job in jobs])
    for job in jobs:
        job.end()
    return found


def per_step(ranks, column, together=1):
    """Milliseconds per step of all ranks' steps, taken `together` at a time."""
    groups = [r[column][k : k + together] for r in ranks for k in range(0, len(r[column]), together)]
    return [sum(group) / len(group) / 1e6 for group in groups]


def tenth(values):
    return statistics.quantiles(values, n=10, method="inclusive")[0]


def row(*cells):
    print("|", " | ".join(map(str, cells)), "|")


def header(*cells):
    row(*cells)
    row(*["---"] * len(cells))


COLUMNS = {
    "CPU p10, ms": ("cpu_ns", tenth),
    "less gloo's TCP": ("less_tcp_ns", tenth),
    "wall p50, ms": ("wall_ns", statistics.median),
}


def steps_table(found) -> None:
    header("step", "job", *COLUMNS, "CPU per call, µs")
    for name, kind, together in (("DDP", "ddp", 1), ("DDP by tens", "ddp", TOGETHER), ("200 ms", "long", 1)):
        calls = found[kind][0][0][0]["calls"]
        for number, job in enumerate(JOBS):
            ranks = [r for taken in found[kind] for r in taken[number]]
            cells = (f"{of(per_step(ranks, column, together)):.2f}" for column, of in COLUMNS.values())
            row(f"{name}, {calls:.0f} calls", job, *cells, per_call(found[kind], number, together, calls))


def per_call(rounds_taken, number, together, calls) -> str:
    """Microseconds of CPU that a job's call takes beyond the first job's: median of rounds, and quartiles."""
    if not number:
        return "-"
    plain, other = (
        [tenth(per_step(taken[job], "less_tcp_ns", together)) for taken in rounds_taken] for job in (0, number)
    )
    costs = [(b - a) / calls * 1e3 for a, b in zip(plain, other, strict=True)]
    low, middle, high = statistics.quantiles(costs, n=4, method="inclusive")
    return f"{middle:.0f} ({low:.0f} to {high:.0f})"


def thread_line(found) -> None:
    """What the recorder's own thread takes in ranks that are busy otherwise."""
    ranks = [r for taken in found["long"] for r in taken[-1]]
    share = sum(r["own_ns"] for r in ranks) / sum(sum(r["wall_ns"]) for r in ranks)
    print(f"The recorder's own thread: {100 * share:.1f} % of a core in the 200 ms steps, part of the figures above.")


def memory_line(taken) -> None:
    without, *_, recorded = (statistics.median(r["rss_kib"] for r in ranks) / 1024 for ranks in taken)
    print(f"Memory of a rank (VmRSS): {without:.0f} MiB without, {recorded:.0f} MiB with ({recorded - without:+.1f}).")


def disk_lines(folder: pathlib.Path) -> None:
    subprocess.run([sys.executable, __file__, "store", str(folder)], check=True)
    files = [path for path in folder.rglob("*") if path.is_file()]
    segments = [path for path in files if path.suffix == ".arrow"]
    taken = sum(path.stat().st_blocks for path in files) * 512
    rows, parts = max(template.SEGMENTS.items())
    print(f"Disk: {parts.size / rows:.1f} bytes per row, {parts.size / rows:.0f} MB per million calls.")
    print(f"{CALLS_TO_STORE:,} calls of one process took {taken / 1e6:.1f} MB, {len(segments)} segments and the rest.")


def starts(code: str, environments, count: int):
    """Milliseconds of whole Python processes under each environment, in turn."""
    found = [[] for _ in environments]
    for _ in range(count):
        for times, environment in zip(found, environments, strict=True):
            began = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], env=environment, check=True)
            times.append((time.perf_counter() - began) * 1e3)
    return found


def start_table(folder: pathlib.Path) -> None:
    settings = config.Config(str(folder / "run"))
    site.make(str(folder / "site"), settings)
    left_out = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
    plain = {name: value for name, value in os.environ.items() if name not in left_out}
    recorded = {**plain, **settings.variables(), "PYTHONPATH": str(folder / "site")}
    header("a Python process that", "runs", "min without, ms", "with", "median without, ms", "with")
    for what, code, count in (("does nothing", "pass", STARTS), ("imports torch", "import torch", TORCH_STARTS)):
        times = starts(code, (plain, recorded), count)
        row(what, count, *(f"{of(side):.1f}" for of in (min, statistics.median) for side in times))
    install = f"from roundk.hooks import install; install({settings.run!r})"
    timed = f"import torch, time; t = time.perf_counter(); {install}; print((time.perf_counter() - t) * 1e3)"
    took = [float(subprocess.check_output([sys.executable, "-c", timed], env=plain)) for _ in range(TORCH_STARTS)]
    middle = statistics.median(took)
    print(f"\nOf this, `install()` in a process that has torch: {min(took):.1f} ms (median {middle:.1f}).")


def machine() -> str:
    names = [line for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    model = names[0].partition(":")[2].strip() if names else platform.machine()
    return f"{model}, {os.cpu_count()} cores, Linux {platform.release()}"


def load() -> str:
    return " ".join(f"{value:.1f}" for value in os.getloadavg())


def main(count: int = ROUNDS) -> None:
    """Measure and print."""
    from importlib import metadata

    before = load()
    with tempfile.TemporaryDirectory(prefix="step-cost-") as name:
        folder = pathlib.Path(name)
        found = rounds(folder, count)
        print(f"{machine()}; torch {metadata.version('torch')}, Python {platform.python_version()}; {count} rounds.\n")
        steps_table(found)
        print()
        thread_line(found)
        memory_line(found["long"][-1])
        disk_lines(folder / "disk")
        print()
        start_table(folder)
    print(f"\nLoad average: {before} before, {load()} after.")


if __name__ == "__main__":
    roles = {"rank": rank, "store": store}
    if sys.argv[1:2] and sys.argv[1] in roles:
        roles[sys.argv[1]](sys.argv[2])
    else:
        main(*map(int, sys.argv[1:]))
