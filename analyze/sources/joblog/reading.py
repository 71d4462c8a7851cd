"""One log, line by line: prefixes off, wrapped messages joined, each process's multi-line messages followed."""

from __future__ import annotations

import itertools
import re
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import polars as pl

from roundk.analyze.sources import rows
from roundk.analyze.sources.inputs import Input
from roundk.analyze.sources.joblog import (
    clock,
    coll_lines,
    comms,
    cuda_lines,
    desync,
    elastic,
    gloo_lines,
    kernel,
    nccl_lines,
    prefixes,
    scan,
    slurm,
    stacks,
    store_lines,
    torch_lines,
    tracebacks,
)
from roundk.analyze.sources.joblog.book import Book, Origin
from roundk.analyze.sources.joblog.events import Event, Parser

_MODULES: Final = (
    torch_lines, desync, gloo_lines, elastic, nccl_lines, tracebacks, kernel, slurm, cuda_lines, comms, stacks,
    store_lines,
)  # fmt: skip
LITERALS: Final = tuple(dict.fromkeys(literal for module in _MODULES for literal in module.LITERALS))

PATIENCE: Final = 400
"""Lines of the file after which a message that goes on is given up: its process may have died in the middle of it."""
_TURNS: Final = 4
"""Lines more for each message that is open beside it: processes that write at once take turns."""
MOST_OPEN: Final = 20_000
"""Messages followed at once, of all processes: one of every rank of 16,384."""
MOST_JOINED: Final = 4
"""Lines that a wrapped message is joined from."""
MOST_ENDED: Final = 4_096
_TAIL: Final = 1 << 14
"""Bytes at the end of a log in which torchrun's summary begins; it has a block of ten lines for each rank of a host."""


class Follower(Protocol):
    """Reads a message of several lines."""

    is_bare: bool
    """Its further lines carry no rank of their own: one message of torch's C++ logging, newlines and all."""

    def feed(self, text: str) -> Iterator[Event] | None:
        """What the next line of the process says; None: the message has ended before it."""


@dataclass(slots=True, eq=False)
class _Open:
    key: int
    follower: Follower
    head: prefixes.Head
    line: int
    at: tuple[int | None, int | None]
    last: int
    is_uncaught: bool = False


@dataclass(slots=True)
class _Ended:
    """An exception whose traceback has been read; what follows may say that another one came of it."""

    raised: tracebacks.Raised
    opened: _Open
    is_linked: bool = False


class Reading:
    """Reads one log into the book.

    Attributes:
        clock: Reads its times.
        lines: How many lines it has, as far as it was read.
        crowded: Messages of several lines given up before their end, as too many were open.
    """

    def __init__(self, item: Input, file: int, book: Book) -> None:
        """Prepare.

        Args:
            item: The log.
            file: Its number among the inputs.
            book: Takes what is found.
        """
        self.clock = clock.Clock(_written_ns(item))
        self.lines = 0
        self.crowded = 0
        self._item, self._file, self._book = item, file, book
        self._keys = itertools.count()
        self._open: OrderedDict[int, _Open] = OrderedDict()  # the one that was fed longest ago comes first
        self._by_stream: dict[tuple[object, ...], list[_Open]] = {}
        self._bare: dict[
            tuple[object, ...], _Open
        ] = {}  # by `outer`: of bare lines only the last message's can be told
        self._patience = PATIENCE
        self._ended: OrderedDict[tuple[object, ...], _Ended] = OrderedDict()
        self._latest: int | None = None
        host = _RUN_FILE.search(item.name)
        self._host = host["host"] or host["nccl_host"] if host else None
        self._pid = int(host["pid"]) if host and host["pid"] else None

    def date(self) -> bool:
        """Look for a year for the lines without one; False where the log does not tell it."""
        try:
            told = _dated(self._item.head.decode("utf-8", "replace")) or _dated(_tail(self._item))
        except rows.READ_ERRORS:
            told = None
        self.clock.see(told)
        return told is not None

    def run(self) -> None:
        """Read all of it.

        Raises:
            OSError, EOFError, ValueError, zlib.error: it cannot be read any further; what was read until then is in the
                book.
        """
        with self._item.open() as stream:
            scanner = scan.Scanner(stream, LITERALS, self._bulk)
            try:
                for raw in scanner:
                    self._line(raw, scanner)
                    scanner.attentive = bool(self._open)
            finally:
                self.lines = scanner.lines
                self._close()

    def _bulk(self, block: bytes, text: pl.Series, first_line: int) -> None:
        if coll_lines.LITERAL in block:
            self._book.found[self._file] += self._book.calls.take(text, self._file, first_line)

    def _line(self, raw: scan.Raw, scanner: scan.Scanner) -> None:
        source = (self._file, raw.number)
        if raw.is_hit and "NCCL INFO " in raw.text and self._book.comms.take(raw.text, source):
            self._book.found[self._file] += 1
            if " Init " in raw.text:
                self._book.meet(prefixes.strip(prefixes.plain(raw.text), prefixes.NOTHING)[0])
            return
        parts = prefixes.split(raw.text, raw.lead)
        for head, text in parts:
            self._book.meet(head)
            self._follow(head, text, raw.number)
            if raw.is_hit:
                whole = (
                    self._joined(head, text, scanner) if head is parts[-1][0] and torch_lines.needs_more(text) else text
                )
                self._parse(head, whole, raw.number, scanner)
        while self._open and raw.number - self._oldest().last > self._patience:
            self._give_up(self._oldest())

    def _parse(self, head: prefixes.Head, text: str, line: int, scanner: scan.Scanner) -> None:
        at: tuple[int | None, int | None] | None = None
        whole = f"{head.file} {text}"  # a literal may be the name of the source file, which went with the prefix
        for literals, parser in _PARSERS:
            if not any(literal in whole for literal in literals):
                continue
            for event in parser(text):
                at = at or self._times(head, scanner)
                self._add(event, head, line, at)
        self._begin(head, text, line, scanner)

    def _begin(self, head: prefixes.Head, text: str, line: int, scanner: scan.Scanner) -> None:
        """Follow a message of several lines that begins here."""
        follower: Follower | None = None
        if tracebacks.HEADER in text:
            if not any(isinstance(one.follower, tracebacks.Traceback) for one in self._of(head)):
                rank = next(
                    (one.follower.rank for one in self._of(head) if isinstance(one.follower, elastic.Summary)), None
                )
                is_shared = not any(part is not None for part in head.stream)
                follower = tracebacks.Traceback(text, rank, is_shared=is_shared)
        elif elastic.begins(text):
            if not any(isinstance(one.follower, elastic.Summary) for one in self._of(head)):
                follower = elastic.Summary(text)
        elif desync.SNAPSHOT in text:
            follower = desync.Snapshot()
        elif stacks.HEADER in text:
            follower = stacks.Frames(text)
        elif tracebacks.links(text) and (ended := self._ended.get(head.stream)) is not None:
            ended.is_linked = True
        if follower is not None:
            self._make_room(follower, head)
            is_uncaught = head.rank is not None and head.file is None  # torch's hook, not its logging
            self._enter(_Open(next(self._keys), follower, head, line, self._times(head, scanner), line, is_uncaught))

    def _enter(self, one: _Open) -> None:
        self._open[one.key] = one
        self._by_stream.setdefault(one.head.stream, []).append(one)
        if one.follower.is_bare:
            self._bare[one.head.outer] = one
        self._patience = max(self._patience, PATIENCE + _TURNS * len(self._open))

    def _make_room(self, follower: Follower, head: prefixes.Head) -> None:
        """Give up what can't go on beside another message."""
        if follower.is_bare and (one := self._bare.get(head.outer)) is not None:
            self._give_up(one)
        if len(self._open) >= MOST_OPEN:
            self.crowded += 1
            self._give_up(self._oldest())

    def _oldest(self) -> _Open:
        return next(iter(self._open.values()))

    def _of(self, head: prefixes.Head) -> list[_Open]:
        own = list(self._by_stream.get(head.stream, ()))
        bare = self._bare.get(head.outer) if head.rank is None else None
        return own if bare is None or bare in own else [*own, bare]

    def _follow(self, head: prefixes.Head, text: str, line: int) -> None:
        for one in self._of(head) if self._open else ():
            events = one.follower.feed(text)
            if events is None:
                self._give_up(one)
                continue
            one.last = line
            self._open.move_to_end(one.key)
            for event in events:
                self._add(event, one.head, line, one.at)

    def _give_up(self, one: _Open) -> None:
        """A followed message has ended, or will not."""
        follower = one.follower
        del self._open[one.key]
        of_stream = self._by_stream[one.head.stream]
        of_stream.remove(one)
        if not of_stream:
            del self._by_stream[one.head.stream]
        if follower.is_bare:
            del self._bare[one.head.outer]
        if not self._open:
            self._patience = PATIENCE
        if isinstance(follower, elastic.Summary | stacks.Frames):
            for event in follower.finish():
                self._add(event, one.head, one.line, one.at)
        elif isinstance(follower, tracebacks.Traceback) and follower.raised is not None:
            self._raised(follower.raised, one)

    def _raised(self, raised: tracebacks.Raised, one: _Open) -> None:
        key = one.head.stream
        before = self._ended.pop(key, None)
        if before is not None and before.is_linked:
            raised.before = [*before.raised.before, before.raised][-16:]
        elif before is not None:
            self._emit(before)
        if len(self._ended) >= MOST_ENDED:
            self._emit(self._ended.popitem(last=False)[1])
        self._ended[key] = _Ended(raised, one)

    def _emit(self, ended: _Ended) -> None:
        one = ended.opened
        assert isinstance(one.follower, tracebacks.Traceback)
        event = ended.raised.event(one.follower.rank, is_uncaught=one.is_uncaught)
        self._add(event, one.head, one.line, one.at)

    def _close(self) -> None:
        for one in sorted(self._open.values(), key=lambda one: one.key):
            self._give_up(one)
        for ended in self._ended.values():
            self._emit(ended)
        self._ended.clear()

    def _add(self, event: Event, head: prefixes.Head, line: int, at: tuple[int | None, int | None]) -> None:
        time_ns, after_ns = (self.clock.ns(event.at), None) if event.at is not None else at
        if head.uptime is not None and head.at is None:
            event.fields["uptime_s"] = float(head.uptime)
        origin = Origin(
            self._file,
            head.rank,
            head.launcher,
            head.local,
            elastic.short_host(head.host or self._host),
            head.pid or self._pid,
        )
        self._book.add(event, origin, time_ns, after_ns, line)

    def _times(self, head: prefixes.Head, scanner: scan.Scanner) -> tuple[int | None, int | None]:
        """Time of a line; where it has none, the latest that stands before it."""
        own = self.clock.ns(head.at)
        if own is not None:
            self._latest = max(own, self._latest or own)
            return own, None
        near = self.clock.ns(prefixes.last_time(scanner.before()))
        if near is not None:
            self._latest = max(near, self._latest or near)
        return None, self._latest

    @staticmethod
    def _joined(head: prefixes.Head, text: str, scanner: scan.Scanner) -> str:
        """A message that was wrapped, with the lines that it goes on in; as it is where they do not complete it."""
        tight = loose = text
        for _, following in zip(range(MOST_JOINED), scanner.following(), strict=False):
            (behind, more), *others = prefixes.split(following)
            if others or behind.file is not None or behind.rank not in {None, head.rank} or behind.outer != head.outer:
                break
            tight, loose = tight + more, f"{loose} {more}"
            whole = next((one for one in (tight, loose) if not torch_lines.needs_more(one)), None)
            if whole is not None:
                return whole
        return text


_PARSERS: Final[tuple[tuple[tuple[str, ...], Parser], ...]] = tuple(
    (module.LITERALS, module.parse)
    for module in (torch_lines, desync, gloo_lines, elastic, nccl_lines, cuda_lines, kernel, slurm, store_lines)
)
_RUN_FILE: Final = re.compile(
    r"(?:^|[/!])(?:(?P<host>[^/!]+)[/!](?:stdout|stderr|output)-\d+(?:\.\d+)?\.log"
    r"|nccl-(?P<nccl_host>[^/!]+)-(?P<pid>\d{1,10})\.log)$"
)
"""Logs that `roundk run` keeps, `roundk.tracer.rundir`; NCCL's own is of one process."""


def _dated(text: str) -> clock.Stamp | None:
    """The first time with a year that a line begins with, or that torchrun's summary tells."""
    stamps = (_stamp(line) for line in text.split("\n"))
    return next((at for at in stamps if at is not None and at.year is not None), None)


def _stamp(line: str) -> clock.Stamp | None:
    head, begin = prefixes.strip(plain := prefixes.plain(line), prefixes.NOTHING)
    return head.at if head.at is not None and head.at.year is not None else elastic.time_of(plain[begin:])


def _tail(item: Input) -> str:
    """The end of a log: torchrun's summary stands there. Of a compressed one it would cost as much as to read it."""
    if item.decompress is not None:
        return ""
    with item.open() as stream:
        stream.seek(max(0, item.size - _TAIL))
        return stream.read(_TAIL).decode("utf-8", "replace")


def _written_ns(item: Input) -> int | None:
    try:
        return item.path.stat().st_mtime_ns
    except OSError:
        return None
