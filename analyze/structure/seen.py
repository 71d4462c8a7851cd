"""Where was a rank, by its stacks, while its peers waited for it?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from roundk.analyze.case import Case
from roundk.analyze.cause import stack_evidence
from roundk.analyze.endings import How
from roundk.analyze.finding import Evidence, Reason
from roundk.analyze.names import Cause, Confidence
from roundk.analyze.phrases import duration, ranks_text, verb
from roundk.analyze.stacks import STALL, TERM, TIMER, Dump
from roundk.analyze.structure import blame
from roundk.analyze.waitfor import StuckRound, stuck_calls

HELD: Final = "the interpreter was not let go, so a C call there holds the GIL"

SHOWN_STACKS: Final = 3
"""Stacks of one rank in the evidence."""


@dataclass(frozen=True)
class Absence:
    """The time in which a rank made no call.

    Attributes:
        since_ns: When it had entered its last call before.
        onset_ns: When its peers began to wait; None: not recorded.
        until_ns: When it entered the round after all; None: it never did.
        silent: Its signs of life end long before its peers stopped waiting.
    """

    since_ns: int
    onset_ns: int | None
    until_ns: int | None
    silent: bool


def at_work(case: Case, rank: int, stuck: StuckRound) -> Reason | None:
    """HOST_STALL, where a stack shows what a rank did instead of entering a round; None: no stack tells.

    Args:
        case: The case.
        rank: A live rank that did not enter.
        stuck: The round.
    """
    absence = _absence(case, rank, stuck)
    dumps = case.dumps.get(rank, ())
    seen = [d for at, d in enumerate(dumps) if _is_of(case, d, absence, newest=at == len(dumps) - 1)]
    if not seen:
        return _interrupted(case, rank)
    inside = [d for d in seen if _is_inside(d, absence)]
    shown = (inside or seen)[-1]
    places = [d.place for d in seen]
    lasting = places.count(shown.place) > 1 or absence.until_ns is None
    held = any(d.trigger == TIMER for d in seen)
    return Reason(
        cause=Cause.HOST_STALL,
        confidence=Confidence.HIGH if inside and lasting else Confidence.MEDIUM,
        because=f"it was in {shown.place}" + (f", and {HELD}" if held else ""),
        evidence=tuple(stack_evidence(d, _when(d, stuck.onset_ns)) for d in _distinct(seen)[:SHOWN_STACKS]),
    )


def _interrupted(case: Case, rank: int) -> Reason | None:
    """The exception into which a rank turned the signal that ended the job says where it was."""
    ending, told = case.endings.get(rank), case.told_to_end
    if told is None or ending is None or not (ending.was_told and ending.where):
        return None
    because = f"it was at {ending.where} when the job was told to end"
    return Reason(Cause.HOST_STALL, Confidence.MEDIUM, because, (told.evidence,))


def waiting(case: Case, stuck: StuckRound) -> tuple[tuple[Evidence, ...], tuple[str, ...]]:
    """What the stacks of the waiting ranks say about the call that they wait in: what bears it out, what does not."""
    confirmed: list[Dump] = []
    against: list[str] = []
    for call in _blocked_calls(case, stuck).iter_rows(named=True):
        site = case.site(call["site"])
        dump = next(
            (d for d in case.dumps.get(call["rank"], ()) if _is_during(d, call["enter_ns"], call["end_ns"])), None
        )
        if site is None or dump is None:
            continue
        if dump.shows(site.file, site.line):
            confirmed.append(dump)
        elif call["blocks_main"]:
            against.append(f"the stack of rank {call['rank']} shows {dump.place}, not its {stuck.op} at {site.text}")
    if not confirmed:
        return (), tuple(against)
    ranks = [d.rank for d in confirmed]
    shows = verb(ranks, "stack of {} shows it", "stacks of {} show them").format(ranks_text(ranks))
    what = f"the {shows} in that call"
    return (Evidence(what, confirmed[0].source, ranks[0], confirmed[0].time_ns),), tuple(against)


def _absence(case: Case, rank: int, stuck: StuckRound) -> Absence:
    late = None if stuck.pair is not None else case.call(stuck.group, stuck.seq, rank)
    until = None if late is None else late["enter_ns"]
    mine = case.calls.filter(pl.col("rank") == rank)
    before = mine if until is None else mine.filter(pl.col("enter_ns") < until)
    last = before["enter_ns"].max()
    return Absence(
        since_ns=last if isinstance(last, int) else 0,
        onset_ns=stuck.onset_ns,
        until_ns=until,
        silent=blame.fell_silent(case, rank, stuck.inside),
    )


def _is_of(case: Case, dump: Dump, absence: Absence, *, newest: bool) -> bool:
    """The dump was written in the absence."""
    if dump.trigger == STALL and dump.time_ns is not None:
        return dump.time_ns >= absence.since_ns and (absence.until_ns is None or dump.time_ns <= absence.until_ns)
    if dump.trigger not in (TIMER, TERM) or absence.until_ns is not None:
        return False
    if dump.not_before_ns >= absence.since_ns:
        return True
    if dump.trigger == TIMER:
        return absence.silent
    # A process that was ended by a signal wrote its last stack when that came.
    return newest and dump.rank in case.endings and case.endings[dump.rank].how is How.SIGNAL


def _is_inside(dump: Dump, absence: Absence) -> bool:
    """The dump was written while peers were waiting."""
    if dump.trigger == TIMER and absence.silent:
        return True
    return dump.trigger != TERM and absence.onset_ns is not None and dump.not_before_ns >= absence.onset_ns


def _is_during(dump: Dump, enter_ns: int | None, end_ns: int | None) -> bool:
    if dump.time_ns is None or enter_ns is None:
        return False
    return enter_ns <= dump.time_ns and (end_ns is None or dump.time_ns <= end_ns)


def _blocked_calls(case: Case, stuck: StuckRound) -> pl.DataFrame:
    """The calls of those inside, and whether each keeps its process's main thread until it ends."""
    # On Linux the main thread's native id is the process's. A call on a device lets its thread go on.
    on_host = case.groups[stuck.group].backend == "gloo"
    blocks = on_host & (pl.col("thread") == pl.col("pid")) & ~pl.col("is_async")
    return (
        stuck_calls(case, stuck)
        .filter(pl.col("rank").is_in(list(stuck.inside)))
        .join(case.trace.ranks.select("rank", "pid"), on="rank", how="left")
        .with_columns(blocks_main=blocks.fill_null(value=False))
    )


def _distinct(dumps: list[Dump]) -> list[Dump]:
    """The first dump of each stack."""
    return list({d.frames: d for d in reversed(dumps)}.values())[::-1]


def _when(dump: Dump, onset_ns: int | None) -> str:
    if dump.trigger == TIMER:
        return "when the interpreter had not been let go for long:"
    if dump.time_ns is None:
        return "when SIGTERM came:"
    if onset_ns is None:
        return f"{dump.what}:" if dump.what else "at a time of its own:"
    after = dump.time_ns - onset_ns
    when = f"{duration(abs(after))} {'after' if after >= 0 else 'before'} the first member began to wait"
    return f"{when} ({dump.what}):" if dump.what else f"{when}:"
