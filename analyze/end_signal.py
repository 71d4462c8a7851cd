"""Was the whole job told to end, as by a Ctrl-C or a scheduler, and who ended because of that?

Whoever ends after that ends because of it, in whatever way: by the signal, by an exception or an exit that a handler
made of it, by the SIGKILL for those that do not heed it. Why the job was ended is another question.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

import polars as pl

from roundk.analyze.endings import FROM_OUTSIDE, Ending, How
from roundk.analyze.phrases import NS_PER_MS, NS_PER_S
from roundk.analyze.told import Told, told
from roundk.analyze.trace import Trace

_TOGETHER_NS: Final = 5 * NS_PER_S
"""Within this time of each other all launchers are told to end where somebody ends a whole job."""

_NOTED_NS: Final = NS_PER_S
"""A launcher notes a signal after it has passed it on, on a busy host late; what is plainly a signal's work counts as
such where it comes this much before."""

_GAVE_UP_NS: Final = 300 * NS_PER_MS
"""The same for calls that fail: those may fail for a reason of their own, and a launcher be told because of that."""

_SURVIVED_NS: Final = 120 * NS_PER_S
"""A job that completes calls this long after a signal was not ended by it: four times what torchrun, Slurm and
Kubernetes wait until they kill."""

_CODES: Final = frozenset(128 + number for number in FROM_OUTSIDE)
"""Exit codes by which handlers tell of a signal, as shells do."""


def told_to_end(
    trace: Trace, endings: Mapping[int, Ending], calls: pl.DataFrame, gave_up_ns: int | None
) -> Told | None:
    """The first signal by which all launchers were told to end, before anybody gave up; None: there was none.

    Where but some launchers are told, as when one host is taken away, the end of their ranks is where it begins.

    Args:
        trace: The trace.
        endings: How every rank ended.
        calls: As `calls.ready` makes them.
        gave_up_ns: When the first call failed for good.
    """
    names = tuple(number.name for number in FROM_OUTSIDE)
    signals = [fact for fact in told(trace, ("signal", "elastic_told")) if fact.text.startswith(names)]
    if not signals:
        return None
    completed = calls.filter(pl.col("outcome") == "completed")["end_ns"].max()
    since = completed - _SURVIVED_NS if isinstance(completed, int) else 0
    by_launchers = any(fact.kind == "signal" for fact in signals)  # who note it themselves; else their logs tell
    first: dict[str, Told] = {}
    for fact in signals:
        if fact.time_ns is not None and fact.time_ns >= since and (fact.kind == "signal" or not by_launchers):
            first.setdefault(_file(fact.source), fact)
    times = [fact.time_ns or 0 for fact in first.values()]
    if not times or max(times) - min(times) > _TOGETHER_NS:
        return None
    folders = {_folder(file) for file in first}
    spared = any(_folder(ending.source) not in folders for ending in endings.values() if ending.source)
    gave_up_before = gave_up_ns is not None and gave_up_ns < min(times) - _GAVE_UP_NS
    if spared or gave_up_before or not _launchers(trace) <= set(first):
        return None
    return min(first.values(), key=lambda fact: fact.time_ns or 0)


def because_of(endings: Mapping[int, Ending], end: Told) -> dict[int, Ending]:
    """The endings, those after a signal that ended the job marked as such."""
    at_ns = end.time_ns or 0
    return {rank: replace(one, was_told=True) if _is_after(one, at_ns) else one for rank, one in endings.items()}


def _is_after(ending: Ending, told_ns: int) -> bool:
    plainly = ending.from_outside or ending.how is How.CLEAN or ending.exit_code in _CODES
    if ending.how is How.UNKNOWN:
        return False
    if ending.at_ns is None:
        return plainly
    return ending.at_ns >= told_ns - (_NOTED_NS if plainly else 0)


def _launchers(trace: Trace) -> set[str]:
    """The files of launchers that saw their command through: each must have been told."""
    ends: Iterable[str] = trace.facts.filter(pl.col("kind").is_in(["exit", "end", "signal"]))["source"].unique()
    return {file for file in map(_file, ends) if file.rpartition("/")[2].startswith("launcher-")}


def _file(source: str) -> str:
    """A source without its line."""
    file, _, line = source.rpartition(":")
    return file if line.isdecimal() else source


def _folder(file: str) -> str:
    return file.rpartition("/")[0]
