"""Stacks of the ranks to blame beside those of the ranks that wait, equal ones folded together."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import polars as pl

from roundk.analyze.case import Case, Site
from roundk.analyze.chart import group_of
from roundk.analyze.output.words import offset
from roundk.analyze.picture import Picture
from roundk.analyze.stacks import Dump, Frame
from roundk.analyze.verdict import Verdict

MAX_FOLDED: Final = 4
"""Different stacks that are shown of each side; the others are counted."""

MAX_PARTS: Final = 4
"""Folders of a path that are shown, from its end."""

_INSTALLED: Final = re.compile(r"^.*[/\\](?:site|dist)-packages[/\\]")
_WORDS: Final = {
    "stall": "stack written after a stall",
    "timer": "stack written while the interpreter was not let go",
    "term": "stack written on SIGTERM",
    "fatal": "stack left by a fatal signal",
}


@dataclass(frozen=True)
class Line:
    """One frame: what and where, in short and in full, and whether it is the user's own code."""

    text: str
    whole: str
    is_users: bool


@dataclass(frozen=True)
class Folded:
    """Ranks with one stack.

    Attributes:
        ranks: Whose it is.
        what: What was taken, and when.
        lines: Its frames, innermost first.
        source: File of the first of them.
    """

    ranks: tuple[int, ...]
    what: str
    lines: tuple[Line, ...]
    source: str


@dataclass(frozen=True)
class Side:
    """The stacks of one side, those of most ranks first."""

    stacks: tuple[Folded, ...]
    more: int
    without: tuple[int, ...]


def beside(case: Case, verdict: Verdict, picture: Picture) -> tuple[Side, Side]:
    """The stacks of who is to blame and of who waits."""
    blamed = verdict.culprit_ranks
    waiting = [rank for rank in (verdict.waiting_ranks or picture.direct) if rank not in blamed]
    return _side(case, verdict, blamed, missing=True), _side(case, verdict, waiting, missing=False)


def _side(case: Case, verdict: Verdict, ranks: Iterable[int], *, missing: bool) -> Side:
    calls = _sites(case, verdict, ranks, missing=missing)
    alike: dict[tuple[Line, ...], list[tuple[int, str, str]]] = {}
    without = []
    for rank in ranks:
        dump = _dump(case, verdict, rank)
        site = case.site(calls[rank][0]) if rank in calls else None
        if dump is not None and dump.frames:
            when = offset(dump.time_ns, verdict.onset_ns)
            what = _WORDS.get(dump.trigger, "stack") + (f", {when} from the onset" if when else "")
            alike.setdefault(tuple(_line(frame) for frame in dump.frames), []).append((rank, what, dump.source))
        elif site is not None:
            alike.setdefault(_called(site), []).append((rank, calls[rank][1], case.source(rank)))
        else:
            without.append(rank)
    folded = sorted(alike.items(), key=lambda one: (-len(one[1]), one[1][0]))
    stacks = tuple(
        Folded(tuple(who[0] for who in whose), *whose[0][1:2], lines, whose[0][2]) for lines, whose in folded
    )
    return Side(stacks[:MAX_FOLDED], max(0, len(stacks) - MAX_FOLDED), tuple(without))


def _dump(case: Case, verdict: Verdict, rank: int) -> Dump | None:
    """The rank's first stack from the time of waiting, else its last one."""
    dumps = case.dumps.get(rank, ())
    onset = verdict.onset_ns
    during = (one for one in dumps if onset is not None and (one.time_ns or one.not_before_ns) >= onset)
    return next(during, dumps[-1] if dumps else None)


def _sites(case: Case, verdict: Verdict, ranks: Iterable[int], *, missing: bool) -> dict[int, tuple[int | None, str]]:
    """Of each rank the call site to show where it left no stack, and what that is: its open or its last call."""
    group = group_of(case, verdict)
    calls = case.calls if missing else case.blocked
    if calls.filter(pl.col("rank").is_in(list(ranks))).is_empty():
        calls = case.calls
    if missing and group is not None and verdict.seq is not None:
        made = case.round_calls(group.key, verdict.seq).filter(pl.col("rank").is_in(list(ranks)))
        calls = made if made.height else calls
    last = (
        calls.filter(pl.col("rank").is_in(list(ranks)), pl.col("site").is_not_null())
        .group_by("rank", maintain_order=True)
        .agg(
            pl.col("site").last() if missing else pl.col("site").first(),
            pl.col("op").cast(pl.String).last() if missing else pl.col("op").cast(pl.String).first(),
            pl.col("seq").last() if missing else pl.col("seq").first(),
            (pl.col("outcome").cast(pl.String).last() if missing else pl.col("outcome").cast(pl.String).first()),
        )
    )
    return {
        rank: (
            site,
            f"where it called {op} #{seq}" + ("" if outcome == "open" else ", its last call" if missing else ""),
        )
        for rank, site, op, seq, outcome in last.iter_rows()
    }


def _called(site: Site) -> tuple[Line, ...]:
    lines = []
    for text in site.stack or (f"{site.file}:{site.line} {site.function}",):
        where, _, function = text.partition(" ")
        file, _, line = where.rpartition(":")
        lines.append(_line(Frame(file, int(line) if line.isdecimal() else 0, function)))
    return tuple(lines)


def _line(frame: Frame) -> Line:
    where = f"{frame.file}:{frame.line}"
    # What is installed is known by its package; where that lies is of no interest.
    short = _INSTALLED.sub("", where)
    parts = short.split("/")
    if len(parts) > MAX_PARTS:
        short = "/".join(["\u2026", *parts[-MAX_PARTS:]])
    return Line(f"{frame.function}  {short}", where, frame.is_users)
