"""Whose line it is: from what prefixes, files, communicators and torchrun's summary say to global ranks.

In this order: the rank a line names (`[rank3]:`); the launcher's number, unless the log shows that it is none; the
rank in the default group; the process, where NCCL or torchrun say which rank it is; the log file of one rank; the
local rank, where the log shows that it is the rank; at last, in logs of a torch that never names the global rank, the
rank in a group that the line does not name either.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from roundk.analyze.sources.inputs import Hints, Input
from roundk.analyze.sources.joblog.book import Book, Fact, Origin
from roundk.analyze.sources.joblog.comms import Comm
from roundk.analyze.sources.joblog.elastic import short_host
from roundk.analyze.sources.joblog.events import MOST_RANK, Event

_RANK_FILE: Final = re.compile(r"(?:^|[^A-Za-z])rank[-_]?(\d{1,8})(?![\d])", re.IGNORECASE)
_ELASTIC_FILE: Final = re.compile(r"(?:^|[/!])(?:attempt_)?\d{1,6}[/!](\d{1,8})[/!]std(?:out|err)\.log$")
_OF_ATTEMPT: Final = re.compile(r"/attempt_\d{1,6}/(\d{1,8})/std(?:out|err)\.log$")
"""The same in a whole path, for who names the folder of an attempt, or of a rank, itself."""


class Ranks:
    """Tells ranks and hosts.

    Attributes:
        world_size: Ranks in the job, where a communicator has all; else None.
        notes: What was not certain, for the reader.
    """

    def __init__(self, book: Book, inputs: Sequence[Input], hints: Hints) -> None:
        """Put together what all lines say.

        Args:
            book: What was found.
            inputs: The logs.
            hints: What the user says of their names.
        """
        self.notes: list[str] = []
        self.of_process: dict[tuple[str, int], int] = {}
        self._of_local: dict[tuple[str, int], int] = {}
        self._files = _of_files(inputs, hints)
        self._is_launcher_rank = self._trusts_launcher(book)
        self._is_launcher_shown = self._is_launcher_rank and bool(book.launched)
        self._is_local_rank = bool(book.located) and all(local == rank for local, rank in book.located)
        self._are_ranks_named = any(
            fact.origin.rank is not None or fact.origin.local is not None for fact in book.facts()
        )
        self.world_size = self._from_communicators(book)
        for fact in book.facts():
            self._learn(fact)
        self._of_pid: dict[int, set[int]] = defaultdict(set)
        for (_, pid), rank in self.of_process.items():
            self._of_pid[pid].add(rank)
        self._hosts = {host for host, _ in self.of_process}

    def of(self, fact: Fact) -> int | None:
        """Global rank of whom a fact is about; None where that cannot be told."""
        event, origin = fact.event, fact.origin
        if event.rank is not None:
            return event.rank
        if event.kind == "mpirun_exit":
            return self.of_task(event.fields.get("rank"))
        if event.is_about_other:
            return self._process(event.host or origin.host, event.pid) if event.pid is not None else None
        return self.printed(origin, event)

    def printed(self, origin: Origin, event: Event | None = None) -> int | None:
        """Global rank of the process that printed a line."""
        if origin.rank is not None:
            return origin.rank
        if origin.launcher is not None and self._is_launcher_rank:
            return origin.launcher
        if event is not None and event.group is not None and event.group.is_default and event.group_rank is not None:
            return event.group_rank
        found = self._process(origin.host, origin.pid) if origin.pid is not None else None
        if found is None and origin.host is not None and origin.local is not None:
            found = self._of_local.get((origin.host, origin.local))
        if found is None:
            found = self._files.get(origin.file)
        if found is None and origin.local is not None and self._is_local_rank:
            found = origin.local
        if found is None and event is not None and event.group is None and not self._are_ranks_named:
            found = event.group_rank
        return found

    def of_comm(self, comm: Comm) -> int | None:
        """Global rank of a communicator's process."""
        return self.of_process.get((short_host(comm.host) or "", comm.pid))

    def of_task(self, number: object) -> int | None:
        """Global rank of a launcher's task; None where a task is not known to be a rank."""
        return number if self._is_launcher_rank and isinstance(number, int) else None

    def of_tasks(self, numbers: object) -> list[int]:
        """The same of Slurm's tasks, which are hosts under torchrun: only where lines show that they are ranks."""
        tasks = numbers if isinstance(numbers, list) and self._is_launcher_shown else []
        return [task for task in tasks if isinstance(task, int)]

    def _process(self, host: str | None, pid: int | None) -> int | None:
        if pid is None:
            return None
        if host is not None:
            return self.of_process.get((host, pid))
        ranks = self._of_pid.get(pid, set())
        return next(iter(ranks)) if len(ranks) == 1 else None

    def _trusts_launcher(self, book: Book) -> bool:
        if any(number != rank for number, rank in book.launched):
            return False
        if book.launched or not book.agents:
            return True
        self.notes.append("the launcher's task numbers are those of torchrun's agents, not of ranks")
        return False

    def _from_communicators(self, book: Book) -> int | None:
        """Ranks of processes by the largest communicator, if it can be all of the job's."""
        largest = max((comm.nranks for comm in book.comms.comms), default=0)
        named = {
            (fact.origin.host, fact.origin.pid): fact.origin.rank
            for fact in book.facts()
            if fact.origin.rank is not None
        }
        of_rank: dict[int, tuple[str, int]] = {}
        of_process: dict[tuple[str, int], int] = {}
        for comm in book.comms.comms:
            process = (short_host(comm.host) or "", comm.pid)
            if comm.nranks != largest or not 0 <= comm.rank < largest:
                continue
            if (
                of_rank.setdefault(comm.rank, process) != process
                or of_process.setdefault(process, comm.rank) != comm.rank
            ):
                self.notes.append(
                    "NCCL's largest communicators are several, or one process has several ranks: "
                    "their ranks are not taken for the job's"
                )
                return None
        is_other = any(named.get(process, rank) != rank for process, rank in of_process.items())
        if largest < 2 or max(book.alive, default=0) >= largest or not of_rank or is_other:
            return None
        self.of_process.update(of_process)
        return largest

    def _learn(self, fact: Fact) -> None:
        event, origin = fact.event, fact.origin
        if event.kind == "elastic_failure" and event.rank is not None and event.host is not None:
            if event.pid is not None:
                self.of_process.setdefault((event.host, event.pid), event.rank)
            local = event.fields.get("local_rank")
            if isinstance(local, int):
                self._of_local.setdefault((event.host, local), event.rank)
        elif origin.rank is not None and origin.host is not None and origin.pid is not None:
            self.of_process.setdefault((origin.host, origin.pid), origin.rank)


def _of_files(inputs: Sequence[Input], hints: Hints) -> dict[int, int]:
    """Ranks of logs that are one rank's by their names; a number that two of them have is no rank."""
    named = {file: rank for file, item in enumerate(inputs) if (rank := _of_file(item, hints)) is not None}
    elastic = {
        file: int(found[1])
        for file, item in enumerate(inputs)
        if (found := _ELASTIC_FILE.search(item.name) or _OF_ATTEMPT.search(item.path.absolute().as_posix()))
    }
    if len({rank for file, rank in elastic.items() if "stderr" in inputs[file].name}) == sum(
        "stderr" in inputs[file].name for file in elastic
    ):  # torchrun's folders are of local ranks: those of several hosts have the same
        named = {**elastic, **named}
    return named


def _of_file(item: Input, hints: Hints) -> int | None:
    if item.rank is not None:
        return item.rank
    if hints.rank_pattern is not None:
        return hints.rank(item)
    found = _RANK_FILE.search(item.basename)
    return int(found[1]) if found and int(found[1]) < MOST_RANK else None
