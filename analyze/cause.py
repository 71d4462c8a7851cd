"""WHY: what the end or the state of a culprit's process says."""

from __future__ import annotations

from typing import Final

import polars as pl

from roundk.analyze.case import Case
from roundk.analyze.endings import Ending, How
from roundk.analyze.finding import Evidence, Reason
from roundk.analyze.names import Cause, Confidence, Detail
from roundk.analyze.stacks import Dump

_ENDINGS: Final = {
    How.EXCEPTION: (Cause.EXCEPTION, Confidence.HIGH),
    How.SIGNAL: (Cause.PROCESS_KILLED, Confidence.HIGH),
    How.EXIT_CODE: (Cause.PROCESS_EXITED, Confidence.HIGH),
    How.CLEAN: (Cause.PROCESS_EXITED, Confidence.MEDIUM),
    # Neither an exception nor an orderly end was seen: os._exit or a signal, and nobody told which.
    How.VANISHED: (Cause.UNDETERMINED, Confidence.NONE),
    How.UNKNOWN: (Cause.UNDETERMINED, Confidence.NONE),
}

_FACT_KINDS: Final = {
    How.EXCEPTION: ("exception", "exit"),
    How.SIGNAL: ("exit",),
    How.EXIT_CODE: ("exit",),
    How.CLEAN: ("goodbye", "exit"),
    How.VANISHED: ("vanished",),
    How.UNKNOWN: (),
}

UNDETERMINED: Final = Reason(Cause.UNDETERMINED, Confidence.NONE)


def reason(case: Case, rank: int, detail: Detail) -> Reason:
    """Why this rank is where the structure found it.

    Args:
        case: The case.
        rank: A culprit.
        detail: What the structure says of it.
    """
    ending = case.endings.get(rank)
    if ending is None:
        return UNDETERMINED
    if detail is Detail.STOPPED:
        return Reason(Cause.PROCESS_STOPPED, Confidence.HIGH, "its process is stopped", _stopped(case, ending))
    if detail in (Detail.DEAD, Detail.EXITED_EARLY):
        return ended(case, ending)
    return UNDETERMINED


def ended(case: Case, ending: Ending) -> Reason:
    """The end of a process as a cause."""
    cause, confidence = _ENDINGS[ending.how]
    return Reason(cause, confidence, f"it {ending.text}", end_evidence(case, ending))


def end_evidence(case: Case, ending: Ending) -> tuple[Evidence, ...]:
    """What the files say about the end of a rank."""
    if ending.how is How.UNKNOWN:
        return ()
    said = _facts(case, ending.rank, _FACT_KINDS[ending.how])
    main = Evidence(f"rank {ending.rank} {ending.text}", _first_source(said, ending), ending.rank, ending.at_ns)
    stack = () if ending.fatal is None else (stack_evidence(ending.fatal, f"{ending.fatal.what.lower()} in"),)
    return (main, *stack, *(fact for fact in said if fact.source != main.source))


def stack_evidence(dump: Dump, when: str) -> Evidence:
    """A stack in one line."""
    return Evidence(f"stack of rank {dump.rank}, {when} {dump.line}", dump.source, dump.rank, dump.time_ns)


def _stopped(case: Case, ending: Ending) -> tuple[Evidence, ...]:
    what = f"rank {ending.rank} was last seen in process state {ending.state} (stopped)"
    said = _facts(case, ending.rank, ("process_state",))
    return (Evidence(what, _first_source(said[::-1], ending), ending.rank, ending.stopped_ns),)


def _first_source(said: tuple[Evidence, ...], ending: Ending) -> str:
    return said[0].source if said else ending.source


def _facts(case: Case, rank: int, kinds: tuple[str, ...]) -> tuple[Evidence, ...]:
    rows = case.trace.facts.filter(pl.col("rank") == rank, pl.col("kind").is_in(list(kinds)))
    return tuple(
        Evidence(f"rank {rank}: {row['text']}", row["source"], rank, row["time_ns"])
        for row in rows.iter_rows(named=True)
    )
