"""RAS as text, of all versions: the job summary, the table of communicators, and what is odd underneath.

    #0-0 (fa93daea854b060b) MISMATCH
      Communicator ranks have different AllGather operation counts
      30 ranks have launched up to operation 640
      2 ranks have launched up to operation 641
      Rank 12 -- GPU 4 managed by process 323032 on node 10.137.190.124

`#<group>-<number>` points into the table, which has the communicator's size. 2.24 and 2.25 count all types of
operations as one and say so without a type; they print `The missing ranks: 3,5` and `The unknown ranks: ...` where
later ones print a line per rank. Of the ranks that agree with most others no line is printed: where all others are
listed, they are the rest. Details are dropped where more than ten ranks, or a quarter, differ (half, when verbose).

Source: NCCL `src/ras/client_support.cc` of 2.24 to 2.30 and the user guide's page on RAS.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from roundk.analyze.sources.ras import snapshot as ras
from roundk.analyze.sources.ras.snapshot import Comm, Event, Member, Place, Snapshot
from roundk.analyze.sources.rows import decimal, told_time

SUMMARY: Final = re.compile(r"^[ \t]*Job summary[ \t\r]*\n[ \t]*={5,}", re.MULTILINE)
EVENT: Final = re.compile(r"^\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\] (PEER_[A-Z_]+|[A-Z]+_[A-Z_]+): ?(.*)$")

_MOST_COMPLETED: Final = 1 << 22
"""Ranks that are written out for communicators of which the odd ones are listed: garbage must not fill the memory."""

_VERSION: Final = re.compile(r"NCCL version (\S{1,32}) compiled with CUDA")
_GROUP: Final = re.compile(
    r"^\s*(\d{1,9})\s+(\d{1,9})\s+(\d{1,9})\s+(\d{1,9}(?:-\d{1,9})?)\s+(\d{1,12})\s+(\d{1,12})"
    r"\s+([A-Z]+)\s+([A-Z,]+)\s*$"
)
_HEAD: Final = re.compile(r"^#(\d{1,9})-(\d{1,9}) \(([0-9a-f]{1,16})\) (INCOMPLETE|ERROR|MISMATCH)\s*$")
_WORD: Final = re.compile(r"^(INCOMPLETE|DEAD|TIMEOUT)\s*$")
_PROCESS: Final = re.compile(
    r"process (\d{1,10}) on node (\S{1,256})(?: managing GPUs? (\S+)(?: \(NVML (\S+)\))?)?", re.IGNORECASE
)
_RANK: Final = re.compile(
    r"^\s*Rank (\d{1,12})(?: has launched up to operation (?P<count>\d{1,20})"
    r"| (?P<none>has not launched any operations)"
    r"| has status (?P<status>[A-Z]+)| reported (?P<error>.{1,64}?))?(?: -- (?P<where>.*))?$"
)
_GPU: Final = re.compile(r"GPU (\d{1,6})(?: \(NVML (\d{1,6})\))?")
_DIFFERENT: Final = re.compile(r"Communicator ranks have different (?:(\w{1,32}) operation counts|(status))")
_MANY: Final = re.compile(
    r"^\s*(\d{1,12}) ranks (?:have launched up to operation (?P<count>\d{1,20})"
    r"|(?P<none>have not launched any operations)|have status (?P<status>[A-Z]+)|reported (?P<error>.{1,64}))\s*$"
)
_LISTED: Final = re.compile(r"^\s*The (missing|unknown) ranks?: ([\d,]{1,100000})\s*$")
_NUMBER: Final = re.compile(r"(\d{1,9}) (?:job process|communication timeout)")
_TOTALS: Final = re.compile(r"^\s*(?:\d+\s+){0,4}(\d{1,9})\s*$")


@dataclass
class _Comm:
    """A communicator while its lines are read."""

    hash: str
    size: int | None
    group: str
    places: dict[int, Place] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)
    status: dict[int, str] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    counts: dict[str, dict[int, int]] = field(default_factory=dict)
    tallies: dict[str, dict[int, int]] = field(default_factory=dict)
    num_garbage: int = 0


@dataclass
class _Reader:
    source: str
    sizes: dict[str, int] = field(default_factory=dict)
    comms: dict[tuple[str, str], _Comm] = field(default_factory=dict)
    processes: dict[Place, str] = field(default_factory=dict)
    num_gpus: int | None = None
    totals_next: bool = False
    numbers: dict[str, int] = field(default_factory=dict)
    # What the lines that follow belong to.
    comm: _Comm | None = None
    word: str = ""
    subject: tuple[str, str] = ("", "")
    many: re.Match[str] | None = None

    def line(self, text: str) -> None:
        if not text.strip():
            return
        if self._heading(text):
            return
        if self.comm is None:
            self._loose(text)
        else:
            self._of_comm(self.comm, text)

    def _heading(self, text: str) -> bool:
        head = _HEAD.match(text)
        if head is not None:
            key = (head[3], f"{head[1]}-{head[2]}")
            number = f"{int(head[3], 16):x}"
            self.comm = self.comms.setdefault(key, _Comm(number, self.sizes.get(head[1]), key[1]))
            self.word, self.subject, self.many = head[4], ("", ""), None
            return True
        word = _WORD.match(text)
        if word is not None:
            self.comm, self.word = None, word[1]
            return True
        return False

    def _loose(self, text: str) -> None:
        """A line outside of any communicator: the summary, the table, or processes that are gone."""
        group = _GROUP.match(text)
        if group is not None:
            size = int(group[5])
            if 0 < size <= ras.MOST_RANKS:
                self.sizes[group[1]] = size
            return
        if "(total)" in text:
            self.totals_next = True
            return
        totals = _TOTALS.match(text) if self.totals_next else None
        if totals is not None:
            self.totals_next = False
            number = int(totals[1])
            self.num_gpus = number if 0 < number <= ras.MOST_RANKS else None
            return
        process = _PROCESS.search(text) if self.word else None
        if process is not None:
            place = Place(process[2], decimal(process[1]), _one(process[4] or process[3]))
            self.processes[place] = ras.DEAD if self.word == "DEAD" else ras.UNRESPONSIVE
            return
        number_of = _NUMBER.search(text)
        if number_of is not None and self.word:
            self.numbers[self.word] = int(number_of[1])

    def _of_comm(self, comm: _Comm, text: str) -> None:
        different = _DIFFERENT.search(text)
        if different is not None:
            kind = "status" if different[2] else "count"
            self.subject, self.many = (kind, different[1] or ""), None
            return
        if "nitialization error" in text or "synchronous error" in text:
            self.subject, self.many = ("error", "initialization" if "nitialization" in text else "asynchronous"), None
            return
        listed = _LISTED.match(text)
        if listed is not None:
            state = ras.UNRESPONSIVE if listed[1] == "missing" else ras.NOT_MEMBER
            for rank in listed[2].split(","):
                if rank and self._is_rank(comm, int(rank[:12])):
                    comm.states.setdefault(int(rank[:12]), state)
            return
        many = _MANY.match(text)
        if many is not None:
            self.many = many
            if self.subject[0] == "count":
                tally = comm.tallies.setdefault(self.subject[1], {})
                tally[_launched(many)] = int(many[1])
            return
        rank = _RANK.match(text)
        if rank is not None and self._is_rank(comm, int(rank[1])):
            self._of_rank(comm, int(rank[1]), rank)

    def _is_rank(self, comm: _Comm, rank: int) -> bool:
        fits = rank < (comm.size or ras.MOST_RANKS)
        comm.num_garbage += not fits
        return fits

    def _of_rank(self, comm: _Comm, rank: int, found: re.Match[str]) -> None:
        place = _place(found["where"] or "")
        if place is not None:
            comm.places[rank] = place
        said = found if any(found[name] for name in ("count", "none", "status", "error")) else self.many
        kind, about = self.subject
        if self.word == "INCOMPLETE":
            comm.states[rank] = ras.UNRESPONSIVE
        elif said is None:
            return
        elif kind == "count" and (said["count"] or said["none"]):
            value = _launched(said)
            comm.counts.setdefault(about, {})[rank] = value
            if said is found:
                comm.tallies.setdefault(about, {}).setdefault(value, 1)
        elif kind == "status" and said["status"]:
            if said["status"] in {"NOCOMM", "UNKNOWN"}:
                comm.states[rank] = ras.NOT_MEMBER
            else:
                comm.status[rank] = said["status"]
        elif kind == "error" and said["error"]:
            comm.errors[rank] = f"{about}: {said['error'].strip()}"


def read(text: str, source: str) -> tuple[list[Snapshot], list[Event], list[str]]:
    """What a file holds: one answer or several, monitor events, and what there is to say of it."""
    starts = [found.start() for found in SUMMARY.finditer(text)]
    notes: list[str] = []
    snapshots: list[Snapshot] = []
    line = 1
    before = 0
    for number, start in enumerate(starts):
        line += text.count("\n", before, start)
        before = start
        end = starts[number + 1] if number + 1 < len(starts) else len(text)
        where = source if number == 0 else f"{source}:{line}"
        versions = _VERSION.findall(text, max(0, start - 4096), start)
        snapshot, is_whole = _answer(text[start:end], where, versions[-1] if versions else None)
        snapshots.append(snapshot)
        if not is_whole:
            notes.append(f"{where}: the answer is cut; what stands before that is used")
    return snapshots, _events(text, source), notes


def _events(text: str, source: str) -> list[Event]:
    events: list[Event] = []
    for number, line in enumerate(text.splitlines(), 1):
        found = EVENT.match(line) if line.startswith("[") else None
        if found is not None:
            process = _PROCESS.search(found[3])
            gpu = None if process is None else _one(process[4] or process[3])
            place = Place(None, None) if process is None else Place(process[2], decimal(process[1]), gpu)
            events.append(Event(told_time(found[1]), found[2][:64], place, found[3][:500], f"{source}:{number}"))
    return events


def _answer(text: str, source: str, version: str | None) -> tuple[Snapshot, bool]:
    reader = _Reader(source)
    for line in text.splitlines():
        reader.line(line.rstrip())
    budget = [_MOST_COMPLETED]
    comms = tuple(_comm(comm, reader.processes, budget) for comm in reader.comms.values())
    states = list(reader.processes.values())
    snapshot = Snapshot(
        source=source,
        form="text",
        version=version,
        num_gpus=reader.num_gpus,
        comms=comms,
        processes=tuple(reader.processes.items()),
        num_missing=max(reader.numbers.get("INCOMPLETE", 0), states.count(ras.UNRESPONSIVE)),
        num_dead=max(reader.numbers.get("DEAD", 0), states.count(ras.DEAD)),
        num_timeouts=reader.numbers.get("TIMEOUT", 0),
        num_garbage=sum(comm.num_garbage for comm in reader.comms.values()),
    )
    # The two headings are printed in any case, `Warnings` last.
    return snapshot, re.search(r"^Warnings\s*\n=", text, re.MULTILINE) is not None


def _launched(found: re.Match[str]) -> int:
    value = decimal(found["count"]) if found["count"] else 0
    return 0 if value is None else value


def _one(devices: str | None) -> int | None:
    """The device where it is one; a process may manage several."""
    return decimal(devices) if devices and devices.isdigit() else None


def _place(where: str) -> Place | None:
    gpu = _GPU.search(where)
    process = _PROCESS.search(where)
    if process is None:
        return None
    return Place(process[2], decimal(process[1]), None if gpu is None else int(gpu[2] or gpu[1]))


def _comm(comm: _Comm, processes: Mapping[Place, str], budget: list[int]) -> Comm:
    dead = {(place.host, place.pid) for place, state in processes.items() if state == ras.DEAD}
    counts = {op: _completed(comm, op, budget) for op in comm.tallies}
    known = {*comm.places, *comm.states, *comm.status, *comm.errors, *(rank for own in counts.values() for rank in own)}
    members: dict[int, Member] = {}
    for rank in sorted(known):
        place = comm.places.get(rank, Place(None, None))
        state = comm.states.get(rank, ras.HERE)
        if state == ras.UNRESPONSIVE and (place.host, place.pid) in dead:
            state = ras.DEAD
        own = {op or ras.ANY_OP: ranks[rank] for op, ranks in counts.items() if rank in ranks}
        members[rank] = Member(rank, place, state, comm.status.get(rank), comm.errors.get(rank), own)
    tallies = {op or ras.ANY_OP: dict(tally) for op, tally in comm.tallies.items()}
    return Comm(comm.hash, "", comm.size, members, tallies, comm.num_garbage)


def _completed(comm: _Comm, op: str, budget: list[int]) -> dict[int, int]:
    """The counts by rank, those of the one set of ranks that is not listed included where the numbers come out."""
    counts = dict(comm.counts.get(op, {}))
    tally = comm.tallies[op]
    listed = set(counts.values())
    rest = [value for value in tally if value not in listed]
    if comm.size is None or len(rest) != 1 or comm.size > budget[0]:
        return counts
    budget[0] -= comm.size
    left = [rank for rank in range(comm.size) if rank not in counts and rank not in comm.states]
    if len(left) == tally[rest[0]]:
        counts.update(dict.fromkeys(left, rest[0]))
    return counts
