"""What one answer of NCCL's RAS says, whichever form it came in: communicators, their members, processes that are gone.

RAS counts, per communicator and type of operation, how many collectives a rank has *launched*: five types only, no
send/recv, no AlltoAll, nothing replayed from a CUDA graph, and no completions. Who lags is always computed from these
counts: the text form lists the smaller set of ranks, which may be the ones ahead.

Source: NCCL `src/ras/client_support.cc` of 2.24 to 2.30; issues 1730, 1762 and 1911 of the NCCL repository.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

ANY_OP: Final = "collective"
"""What 2.24 and 2.25 count: all types together, which they call just that."""

MOST_RANKS: Final = 1 << 20
"""A larger communicator or rank number is garbage (NCCL issue 1762: rank 1057455228)."""

RESULTS: Final = (
    "success",
    "Unhandled CUDA error",
    "System error",
    "Internal error",
    "Invalid argument",
    "Invalid usage",
    "Remote process error",
    "operation in progress",
    "timeout",
)
"""Texts of ncclResult_t by number; 0 and 7 are no errors."""

HERE: Final = "here"
UNRESPONSIVE: Final = "unresponsive"
DEAD: Final = "dead"
NOT_MEMBER: Final = "not_member"
"""The process answers and says that it does not have this communicator (any more)."""


def error_text(code: int) -> str | None:
    """What a result code means; None: it is no error."""
    if code in (0, 7):
        return None
    return RESULTS[code] if 0 < code < len(RESULTS) else f"error {code}"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank runs, by which it is known in every communicator: its node's address, process and NVML device."""

    host: str | None
    pid: int | None
    gpu: int | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it tells one GPU process from all others."""
        return self.host is not None and self.pid is not None and self.gpu is not None

    def __str__(self) -> str:
        gpu = "" if self.gpu is None else f", GPU {self.gpu}"
        return f"process {'?' if self.pid is None else self.pid} on {self.host or 'an unknown node'}{gpu}"


@dataclass(frozen=True, slots=True)
class Member:
    """One rank of a communicator.

    Attributes:
        rank: Its number in the communicator.
        place: Where it runs.
        state: `HERE`, or why there is nothing of it.
        status: INIT, RUNNING, FINALIZE or ABORT; None where it is not told.
        error: The error it reports, with `initialization` or `asynchronous` before it.
        counts: Collectives launched, by NCCL's name of the operation; empty where they are not told.
    """

    rank: int
    place: Place
    state: str = HERE
    status: str | None = None
    error: str | None = None
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Comm:
    """One communicator.

    Attributes:
        hash: Its hash in hexadecimal digits, as in `commId 0x...` of NCCL's log lines.
        key: Tells it from another one of the same hash.
        size: Number of its ranks; None where the text does not tell.
        members: By rank. The text form names but the odd ones.
        tallies: How many ranks have each count, by operation: where the text tells no more than that.
        num_garbage: Entries of it left out since their numbers cannot be.
    """

    hash: str
    key: str
    size: int | None
    members: Mapping[int, Member]
    tallies: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    num_garbage: int = 0

    def spread(self, op: str) -> Counter[int]:
        """How many ranks have launched so many collectives of one type."""
        if op in self.tallies:
            return Counter(self.tallies[op])
        return Counter(member.counts[op] for member in self.members.values() if op in member.counts)

    @property
    def ops(self) -> tuple[str, ...]:
        """The operations that are counted here."""
        return tuple(dict.fromkeys([*self.tallies, *(op for m in self.members.values() for op in m.counts)]))

    def lags(self) -> list[Lag]:
        """The operations in which ranks are not level."""
        found: list[Lag] = []
        for op in self.ops:
            spread = self.spread(op)
            if len(spread) < 2:
                continue
            top = max(spread)
            behind = tuple(m.rank for m in self.members.values() if op in m.counts and m.counts[op] < top)
            number = sum(ranks for value, ranks in spread.items() if value < top)
            found.append(Lag(op, min(spread), top, behind, number, sum(spread.values())))
        return found


@dataclass(frozen=True, slots=True)
class Lag:
    """Ranks of one communicator that have launched fewer collectives of a type than others.

    Attributes:
        op: NCCL's name of the operation.
        low: The lowest count.
        high: The highest count.
        behind: Those below the highest count that are known by number.
        num_behind: How many are below it.
        num_ranks: How many are counted.
    """

    op: str
    low: int
    high: int
    behind: tuple[int, ...]
    num_behind: int
    num_ranks: int


@dataclass(frozen=True, slots=True)
class Event:
    """A line of the monitor mode."""

    time_ns: int | None
    name: str
    place: Place
    details: str
    source: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One answer.

    Attributes:
        source: The input it is from, with a line number behind a colon where the input holds several.
        form: `JSON` or `text`.
        time_ns: When it was made.
        version: NCCL's version.
        num_gpus: GPUs that the job summary counts.
        comms: The communicators told of.
        processes: Processes that are dead or do not answer, with which of both.
        num_missing: Processes that do not answer by count: they are not always named.
        num_dead: The same of dead ones.
        num_timeouts: Timeouts while RAS gathered the data.
        num_garbage: Entries left out since their numbers cannot be.
        num_repaired: Commas put back that NCCL 2.28 leaves out.
    """

    source: str
    form: str
    time_ns: int | None = None
    version: str | None = None
    num_gpus: int | None = None
    comms: tuple[Comm, ...] = ()
    processes: tuple[tuple[Place, str], ...] = ()
    num_missing: int = 0
    num_dead: int = 0
    num_timeouts: int = 0
    num_garbage: int = 0
    num_repaired: int = 0

    def counts_told(self) -> bool:
        """Whether anything here counts collectives; the text form does so for ranks that differ only."""
        return any(comm.ops for comm in self.comms)


def world(snapshots: Iterable[Snapshot]) -> tuple[dict[Place, int], dict[tuple[str, str], int], str | None]:
    """The global rank of each place, by the communicator that has every GPU process in it.

    Returns:
        The ranks by place; the sizes of the communicators that span the job, by hash and key; a note where none does,
        or where they do not agree.
    """
    ranks: dict[Place, int] = {}
    whole: dict[tuple[str, str], int] = {}
    note = None
    for snapshot in snapshots:
        size = _world_size(snapshot)
        if size is None:
            note = "no communicator spans all processes that RAS knows: its ranks cannot be told as global ranks"
            continue
        for comm in snapshot.comms:
            if comm.size != size:
                continue
            own = _places(comm)
            if any(ranks.get(place, rank) != rank for place, rank in own.items()):
                return {}, {}, "communicators that span the job number its processes differently: no global ranks"
            ranks.update(own)
            whole[comm.hash, comm.key] = size
    return (ranks, whole, None) if whole else ({}, {}, note)


def _places(comm: Comm) -> dict[Place, int]:
    seen = Counter(member.place for member in comm.members.values())
    return {m.place: m.rank for m in comm.members.values() if m.place.is_whole and seen[m.place] == 1}


def _world_size(snapshot: Snapshot) -> int | None:
    largest = max((comm.size for comm in snapshot.comms if comm.size is not None), default=None)
    if largest is None:
        return None
    places = {m.place for comm in snapshot.comms for m in comm.members.values() if m.place.is_whole}
    return largest if largest >= max(len(places), snapshot.num_gpus or 0) else None
