"""Incidents of a cluster, written as a job leaves them: dumps of its ranks and lines of its log, on hosts of any name.

What an incident looks like is taken from the cases of `tests/corpus/cases` (there with four ranks on `node-0` to
`node-3`), each of which has its reason written down; here hosts, ranks, devices and times are free.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import dumps
import ras_answers
from planted.plan import Truth

S = 1_000_000_000
MS = 1_000_000
TIMEOUT_S = 600
DONE = 6
"""Rounds that a job gets through before it hangs."""
ASKED = 0.3


@dataclass(frozen=True)
class Place:
    """Where and when a job runs."""

    hosts: tuple[str, ...]
    per_host: int
    begin_ns: int
    device: str = "mlx5_0"
    """The network device of which a fault tells."""

    @property
    def world(self):
        return len(self.hosts) * self.per_host

    def host(self, rank):
        return self.hosts[rank // self.per_host]

    def ranks(self, host):
        first = self.hosts.index(host) * self.per_host
        return tuple(range(first, first + self.per_host))

    def address(self, host):
        return f"192.0.2.{self.hosts.index(host) + 1}"

    def at(self, seconds):
        """The wall clock so many seconds after the job begins to hang."""
        return datetime.fromtimestamp((self.begin_ns // MS + DONE * 10) / 1000 + seconds, UTC)


@dataclass
class Left:
    """What a job leaves behind.

    Attributes:
        dumps: Flight Recorder dumps by rank.
        lines: Lines of the log with the host whose log it is.
        ras: Answers of NCCL's RAS, in the order in which they were asked for; most jobs were not asked.
        truth: What was planted.
    """

    dumps: dict = field(default_factory=dict)
    lines: list = field(default_factory=list)
    ras: list = field(default_factory=list)
    truth: Truth | None = None


class Scene:
    """One job in the making: its lines and dumps."""

    def __init__(self, place, rng):
        self.place, self.rng = place, rng
        self.left = Left()

    def say(self, host, text):
        self.left.lines.append((host, text))

    def meet(self):
        """NCCL's lines of a job that gets no further than meeting."""
        for host in self.place.hosts:
            first = self.place.ranks(host)[0]
            at = f"{host}:{700 + first}:{700 + first} [0] NCCL INFO"
            self.say(host, f"{at} Bootstrap : Using eth0:{self.place.address(host)}<0>")

    def where(self):
        """NCCL's lines that put each rank on its host."""
        place = self.place
        for rank in range(place.world):
            host, gpu = place.host(rank), rank % place.per_host
            at = f"{host}:{700 + rank}:{700 + rank} [{gpu}] NCCL INFO"
            bus = f"{16 * (gpu + 1) + 11:x}000"
            made = f"ncclCommInitRank comm 0x55a{rank} rank {rank} nranks {place.world} cudaDev {gpu} nvmlDev {gpu}"
            self.say(host, f"{at} Bootstrap : Using eth0:{place.address(host)}<0>")
            for end in ("START", "COMPLETE"):
                self.say(host, f"{at} {made} busId {bus} commId 0x1ad9 - Init {end}")

    def warn(self, rank, seconds, text, where="transport/net_ib.cc:92"):
        place = self.place
        host = place.host(rank)
        at = f"[{place.at(seconds):%Y-%m-%d %H:%M:%S}] {host}:{700 + rank}:{900 + rank} [{rank % place.per_host}]"
        self.say(host, f"{at} {where} NCCL WARN {text}")

    def event(self, host, seconds, what):
        rank = self.place.ranks(host)[0]
        self.warn(rank, seconds, f"NET/IB : {self.place.device}:1 Got async event : {what}")

    def completion(self, rank, peer, seconds):
        address = self.place.address(self.place.host(peer))
        gids = f"localGid fe80::{rank + 1} remoteGidsfe80::{peer + 1} hca {self.place.device}"
        said = f"Got completion from peer {address}<51240> with status=12 opcode=0 len=0 vendor err 129 (Recv)"
        self.warn(rank, seconds, f"NET/IB : {said} {gids}", "transport/net_ib.cc:1298")

    def kernel(self, host, seconds, what):
        self.say(host, f"{self.place.at(seconds):%Y-%m-%dT%H:%M:%S}+00:00 {host} kernel: {what}")

    def traceback(self, rank, error):
        lines = ["Traceback (most recent call last):", '  File "/app/train.py", line 61, in main']
        for text in [*lines, "    batch = next(batches)", error]:
            self.say(self.place.host(rank), f"[rank{rank}]: {text}")

    def ended(self, rank, code, seconds=1.0):
        """torchrun's last words on a rank; a negative code is a signal."""
        host, names = self.place.host(rank), {9: "SIGKILL", 11: "SIGSEGV", 7: "SIGBUS"}
        why = f"Signal {-code} ({names.get(-code)}) received by PID {700 + rank}"
        name = f"  ({names[-code]})" if code < 0 else ""
        for text in (
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
            "train.py FAILED",
            "Failures:",
            "  <NO_OTHER_FAILURES>",
            "Root Cause (first observed failure):",
            "[0]:",
            f"  time      : {self.place.at(seconds):%Y-%m-%d_%H:%M:%S}",
            f"  host      : {host}",
            f"  rank      : {rank} (local_rank: {rank % self.place.per_host})",
            f"  exitcode  : {code} (pid: {700 + rank}){name}",
            "  error_file: <N/A>",
            f"  traceback : {why if code < 0 else 'To enable traceback see: https://pytorch.org/docs/stable/elastic'}",
        ):
            self.say(host, text)

    def watchdogs(self, ranks):
        """The ranks that wait give up after the timeout."""
        when = self.place.at(TIMEOUT_S + 0.02)
        work = f"WorkNCCL(SeqNum={DONE + 1}, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)={TIMEOUT_S * 1000})"
        for rank in ranks:
            head = f"[rank{rank}]:[E{when.month}{when.day:02d} {when:%H:%M:%S}.020000000 ProcessGroupNCCL.cpp:629]"
            caught = f"{work} ran for {TIMEOUT_S * 1000 + 20} milliseconds before timing out."
            self.say(
                self.place.host(rank),
                f"{head} [Rank {rank}] Watchdog caught collective operation timeout: {caught}",
            )

    def ask_ras(self, counts):
        """At times somebody asks RAS twice before the job ends; `counts` are the all_reduces of each rank."""
        if self.rng.random() >= ASKED:
            return
        for minutes in (3, 5):
            ranks = []
            for rank, count in counts.items():
                where = (self.place.address(self.place.host(rank)), 700 + rank, rank % self.place.per_host)
                ranks.append(ras_answers.rank(rank, where, counts={"AllReduce": count}))
            at = f"{self.place.at(60 * minutes):%Y-%m-%d %H:%M:%S}"
            self.left.ras.append(ras_answers.as_json([ras_answers.comm(ranks)], at=at))

    def dump(self, rank, entries, counters, groups=None):
        made = dumps.dump(entries, world=self.place.world, counters=counters, groups=groups)
        for entry in entries:
            for name in ("time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns"):
                if entry[name] is not None:
                    entry[name] += self.place.begin_ns - dumps.T0
        self.left.dumps[rank] = made

    def all_in(self):
        """Everybody enters the round after the done ones, which starts and which nobody leaves."""
        for rank in range(self.place.world):
            began = dumps.T0 + DONE * 10 * MS + MS
            running = dumps.scheduled(DONE, state="started", time_discovered_started_ns=began)
            entries = [*(dumps.entry(n) for n in range(DONE)), running]
            self.dump(rank, entries, {"0": dumps.status(DONE + 1, DONE + 1, DONE)})
        self.ask_ras(dict.fromkeys(range(self.place.world), DONE + 1))

    def absent(self, culprit, *, leaves_dump):
        """Everybody but one enters the next round."""
        for rank in range(self.place.world):
            entries = [dumps.entry(n) for n in range(DONE)]
            entries += [] if rank == culprit else [dumps.scheduled(DONE)]
            if rank != culprit or leaves_dump:
                self.dump(rank, entries, {"0": dumps.status(len(entries), -1, DONE)})

    def lagging(self, culprit):
        """One rank has entered as many calls as its peers and completed fewer, in the group of all and in its pair."""
        for rank in range(self.place.world):
            pair = str(1 + rank // 2)
            groups = {pair: dumps.group(pair, [rank - rank % 2, rank - rank % 2 + 1], "tp")}
            done, of_pair = (DONE - 2, 1) if rank == culprit else (DONE, 2)
            entries = [dumps.entry(n) if n < done else dumps.scheduled(n) for n in range(DONE + 1)]
            counters = {"0": dumps.status(DONE + 1, DONE + 1, done), pair: dumps.status(2, 2, of_pair)}
            self.dump(rank, entries, counters, groups)

    def others(self, host):
        """Two ranks on two other hosts: neighbours of a host, who see its end of a connection go."""
        place = self.place
        at = place.hosts.index(host)
        return [place.ranks(place.hosts[(at + step) % len(place.hosts)])[0] for step in (1, -1)]


def _of_rank(scene, kind, cause, rank, structures, *more):
    place = scene.place
    innocent = tuple(one for one in range(place.world) if one != rank)
    hosts = tuple(host for host in place.hosts if host != place.host(rank))
    return Truth(kind, (cause, *more), structures, (rank,), innocent, (place.host(rank),), hosts)


def _of_link(scene, kind, cause, host, *more):
    place = scene.place
    structures = ("ALL_ENTERED_NONE_COMPLETED", "PARTIAL_COMPLETION", "ERROR_REPORTED")
    return Truth(
        kind,
        (cause, *more),
        structures,
        (),
        tuple(range(place.world)),
        (host,),
        tuple(one for one in place.hosts if one != host),
        (f"{host}/{place.device}",),
    )


def _of_nobody(scene, kind, cause, structures=("CONFIG_FINDING",), hosts=()):
    place = scene.place
    innocent = tuple(host for host in place.hosts if host not in hosts)
    return Truth(kind, (cause,), structures, (), tuple(range(place.world)), tuple(hosts), innocent)


ABSENT = ("RANK_NOT_ENTERED", "ERROR_REPORTED")
ERRORS = (
    "ValueError: bad batch",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.15 GiB.",
    "FileNotFoundError: [Errno 2] No such file or directory: '/data/shard-0041.bin'",
)


def exception(scene, rank, *, has_dumps=True):
    """A rank raises; torchrun ends the others."""
    scene.where()
    if has_dumps:
        scene.absent(rank, leaves_dump=False)
    scene.traceback(rank, scene.rng.choice(ERRORS))
    scene.ended(rank, 1)
    return _of_rank(scene, "exception", "EXCEPTION", rank, ABSENT)


def exception_alone(scene, rank):
    """The same, of which only the log is left."""
    return replace(exception(scene, rank, has_dumps=False), kind="exception_alone")


def killed(scene, rank):
    scene.where()
    scene.absent(rank, leaves_dump=False)
    scene.ended(rank, -scene.rng.choice((9, 11, 7)))
    return _of_rank(scene, "killed", "PROCESS_KILLED", rank, ABSENT)


def oom_killed(scene, rank):
    scene.where()
    scene.absent(rank, leaves_dump=False)
    host = scene.place.host(rank)
    scene.kernel(host, 1, f"Out of memory: Killed process {700 + rank} (python) anon-rss:510000000kB")
    scene.ended(rank, -9, 1.5)
    return _of_rank(scene, "oom_killed", "OOM_KILLED", rank, ABSENT)


def exited(scene, rank):
    """A rank ends with a code of its own and says nothing; at times it was asked for a dump through its pipe before."""
    scene.where()
    scene.absent(rank, leaves_dump=scene.rng.random() < 0.5)
    scene.ended(rank, scene.rng.choice((3, 17, 42)))
    return _of_rank(scene, "exited", "PROCESS_EXITED", rank, ABSENT)


def idle(scene, rank):
    """A rank makes no more calls; nothing tells why."""
    scene.where()
    scene.absent(rank, leaves_dump=True)
    scene.ask_ras({one: DONE + (one != rank) for one in range(scene.place.world)})
    scene.watchdogs(one for one in range(scene.place.world) if one != rank)
    return _of_rank(scene, "idle", "HOST_STALL", rank, ABSENT[:1])


def link_flap(scene, rank):
    host = scene.place.host(rank)
    scene.where()
    scene.all_in()
    scene.event(host, -1, "port error")
    scene.event(host, 9, "port active")
    scene.completion(scene.others(host)[0], scene.place.ranks(host)[0], 34)
    scene.watchdogs(range(scene.place.world))
    return _of_link(scene, "link_flap", "LINK_FLAP", host)


def link_down(scene, rank):
    host = scene.place.host(rank)
    scene.where()
    scene.all_in()
    scene.event(host, -1, "port error")
    scene.completion(scene.others(host)[0], scene.place.ranks(host)[0], 34)
    scene.watchdogs(range(scene.place.world))
    return _of_link(scene, "link_down", "LINK_DOWN", host)


def transport_error(scene, rank):
    """Both neighbours of a host lose their connections to it; it says nothing itself."""
    host = scene.place.host(rank)
    scene.where()
    scene.all_in()
    for other in scene.others(host):
        scene.completion(other, scene.place.ranks(host)[0], 34)
    scene.watchdogs(range(scene.place.world))
    return _of_link(scene, "transport_error", "TRANSPORT_ERROR", host)


def gpu_fault(scene, rank):
    scene.where()
    scene.lagging(rank)
    host, gpu = scene.place.host(rank), rank % scene.place.per_host
    at = f"NVRM: Xid (PCI:0000:{16 * (gpu + 1) + 11:02x}:00): "
    scene.kernel(host, 0, at + "79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
    scene.watchdogs(range(scene.place.world))
    return _of_rank(scene, "gpu_fault", "GPU_FAULT", rank, ("DEVICE_STUCK",))


def nvlink_fault(scene, rank):
    scene.where()
    scene.lagging(rank)
    host, gpu = scene.place.host(rank), rank % scene.place.per_host
    at = f"NVRM: Xid (PCI:0000:{16 * (gpu + 1) + 11:02x}:00): "
    scene.kernel(host, 0, at + f"74, pid={700 + rank}, name=python, NVLink: fatal error detected on link 3(0x10000)")
    scene.watchdogs(range(scene.place.world))
    return _of_rank(scene, "nvlink_fault", "NVLINK_FAULT", rank, ("DEVICE_STUCK",))


def device_stuck(scene, rank):
    """A rank's device does not get on; nothing tells why."""
    scene.where()
    scene.lagging(rank)
    scene.watchdogs(range(scene.place.world))
    return _of_rank(scene, "device_stuck", "GPU_FAULT", rank, ("DEVICE_STUCK",))


def duplicate_gpu(scene, rank):
    host, (one, other, *_) = scene.place.host(rank), scene.place.ranks(scene.place.host(rank))
    scene.meet()
    for mine, its in ((one, other), (other, one)):
        text = f"NCCL WARN Duplicate GPU detected : rank {mine} and rank {its} both on CUDA device 1b000"
        scene.say(host, f"{host}:{700 + mine}:{900 + mine} [0] init.cc:936 {text}")
    error = "NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:2251, invalid usage"
    scene.say(
        host,
        f"[rank{one}]: torch.distributed.DistBackendError: {error} (run with NCCL_DEBUG=WARN for details), "
        "NCCL version 2.21.5",
    )
    return _of_nobody(scene, "duplicate_gpu", "DUPLICATE_GPU", hosts=(host,))


def network_config(scene, rank):
    """One of the settings of a network that keep a job from starting."""
    place = scene.place
    host = place.host(rank)
    at = f"{host}:{700 + rank}:{700 + rank} [0]"
    how = scene.rng.randrange(4)
    scene.meet()
    if how == 0:
        scene.say(host, f"{at} NCCL INFO NCCL_SOCKET_IFNAME set by environment to ens1f0")
        scene.say(host, f"{at} bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found")
    elif how == 1:
        scene.say(host, f"{at} NCCL INFO NCCL_IB_GID_INDEX set by environment to 3.")
        state = "curr state INIT, next state RTR, local GID index 3, local GID ::, remote GID ::ffff:192.0.2.1"
        failed = f"Call to ibv_modify_qp failed with 110 Connection timed out, on dev {place.device}:1, {state}"
        scene.say(host, f"{at} misc/ibvwrap.cc:301 NCCL WARN {failed}")
    elif how == 2:
        seen = "Mismatched NCCL version detected : rank 1 version 22705 rank 0 version 22703"
        scene.say(host, f"{at} init.cc:881 NCCL WARN {seen}")
    else:
        for one in place.hosts:
            first = place.ranks(one)[0]
            head = f"{one}:{700 + first}:{900 + first} [0] NCCL INFO"
            if one == host:
                scene.say(one, f"{head} NET/IB : No device found.")
            scene.say(one, f"{head} Using network {'Socket' if one == host else 'IB'}")
    return _of_nobody(scene, "network_config", "NETWORK_CONFIG", hosts=(host,))


def size_mismatch(scene, rank):
    """A rank passes a tensor of another size."""
    scene.where()
    for one in range(scene.place.world):
        size = {"input_sizes": [[9, 2]], "output_sizes": [[9, 2]]} if one == rank else {}
        entries = [*(dumps.entry(n) for n in range(DONE)), dumps.scheduled(DONE, **size)]
        scene.dump(one, entries, {"0": dumps.status(DONE + 1, -1, DONE)})
    scene.watchdogs(range(scene.place.world))
    return _of_rank(scene, "size_mismatch", "CODE_DIVERGENCE", rank, ("SIGNATURE_MISMATCH",))


def other_op(scene, rank):
    """A rank calls another operation."""
    scene.where()
    for one in range(scene.place.world):
        op = "nccl:broadcast" if one == rank else "nccl:all_reduce"
        entries = [*(dumps.entry(n) for n in range(DONE)), dumps.scheduled(DONE, op)]
        scene.dump(one, entries, {"0": dumps.status(DONE + 1, -1, DONE)})
    structures = ("SIGNATURE_MISMATCH", "SKIPPED_CALL", "EXTRA_CALL")
    return _of_rank(scene, "other_op", "CODE_DIVERGENCE", rank, structures)


INCIDENTS = {
    one.__name__: one
    for one in (
        exception,
        exception_alone,
        killed,
        oom_killed,
        exited,
        idle,
        link_flap,
        link_down,
        transport_error,
        gpu_fault,
        nvlink_fault,
        device_stuck,
        duplicate_gpu,
        network_config,
        size_mismatch,
        other_op,
    )
}


def incident(kind, place, rank, rng):
    """What is left of a job in which this happened to a rank, or to the link of its host."""
    scene = Scene(place, rng)
    scene.left.truth = INCIDENTS[kind](scene, rank)
    return scene.left
