"""Did a rank's end come first, or is it an echo of what happened elsewhere?

When a rank is gone its peers fail too: they raise, exit with codes and are killed by their launcher. Only an end that
came before anybody gave up can be the beginning.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from typing import Final

import polars as pl

from roundk.analyze import echoes
from roundk.analyze.case import Case
from roundk.analyze.endings import Ending, How
from roundk.analyze.names import Detail
from roundk.analyze.phrases import NS_PER_MS, NS_PER_S
from roundk.analyze.stacks import TIMER, last
from roundk.analyze.told import told

TEARDOWN_NS: Final = 300 * NS_PER_MS
"""Peers may see a connection close this long before the exception behind it reaches the top of the program, or before
the interpreter says goodbye: `finally` blocks and destroy_process_group come in between."""

BEAT_NS: Final = 50 * NS_PER_MS
"""A sign of life is stored every 20 ms, so a rank that was killed shows none later than its peers' failure, but for a
beat that a busy machine wrote late."""

UNASKED_NS: Final = NS_PER_S
"""The same for signals that no launcher sends to a job that fails, or only half a minute later: there is room for
clocks that differ from host to host."""

OUTLIVED_NS: Final = 500 * NS_PER_MS
"""How much longer its peers must have lived for a killed rank to have gone first, where none of them failed."""

OUTLIVED_OUTSIDE_NS: Final = NS_PER_S
"""The same for signals that a launcher sends to all its ranks, one after the other."""

PATIENCE_NS: Final = 5 * NS_PER_S
"""No timeout of a group is set shorter than this, and nobody who aborts by itself has waited so long in a call."""

FROZEN_NS: Final = 2 * NS_PER_S
"""Peers on a connection notice a death at once. A rank whose signs of life stopped this long before they gave up, and
whose end was seen after that, had not died but hung with the GIL held."""

_ECHOES: Final = frozenset({How.EXCEPTION, How.EXIT_CODE})
"""What a failed call ends in."""

ALIVE_NS: Final = NS_PER_S
"""A rank whose last sign of life lies less than this before its peers' was alive as long as they were."""


def detail_of(case: Case, rank: int, waiting: Iterable[int]) -> Detail:
    """What an absent rank was doing while its peers waited.

    Args:
        case: The case.
        rank: The rank that did not enter.
        waiting: The ranks that waited for it.
    """
    ending = case.endings.get(rank)
    if ending is None:
        return Detail.SILENT
    others = [case.endings[r] for r in waiting if r in case.endings]
    if stopped_first(case, ending):
        return Detail.STOPPED
    if ended_first(case, ending, others):
        return Detail.EXITED_EARLY if ending.how is How.CLEAN else Detail.DEAD
    if rank in case.counted:
        return Detail.IDLE  # it wrote how far it was when a dump was asked for
    if ending.last_alive_ns is None:
        return Detail.SILENT
    end = _reference_ns(case, others)
    watched = ending.state is not None or (ending.seen_ns is not None and ending.seen_ns > end)
    return Detail.IDLE if watched or ending.last_alive_ns >= end - ALIVE_NS else Detail.SILENT


def fell_silent(case: Case, rank: int, waiting: Iterable[int]) -> bool:
    """The rank's signs of life end long before those who wait for it stopped waiting."""
    ending = case.endings.get(rank)
    if ending is None or ending.last_alive_ns is None:
        return False
    end = _reference_ns(case, [case.endings[r] for r in waiting if r in case.endings])
    return end - ending.last_alive_ns > FROZEN_NS


def stopped_first(case: Case, ending: Ending) -> bool:
    """The process is stopped, and was so before anybody gave up."""
    if ending.stopped_ns is None:
        return False
    return (
        case.gave_up_ns is None or min(ending.stopped_ns, ending.last_alive_ns or ending.stopped_ns) <= case.gave_up_ns
    )


def ended_first(case: Case, ending: Ending, others: Iterable[Ending]) -> bool:
    """The rank ended before any of its peers gave up.

    Args:
        case: The case.
        ending: How the rank ended.
        others: How the ranks ended that wait for it.
    """
    peers = [other for other in others if other.rank != ending.rank]
    echo = (ending.how in _ECHOES and ending.rank in case.failed_ranks) or may_be_echo(case, ending)
    follows = echo or ending.was_told or _by_its_watchdog(case, ending)
    if ending.how is How.UNKNOWN or follows or _held_the_gil(case, ending):
        return False
    if ending.how is How.CLEAN and ending.exit_code == 0:
        return True  # Nobody else can make a process leave with code 0.
    if ending.at_ns is None:
        return True  # It has an end and not one sign of life: it ended before it recorded anything.
    gave_up = case.gave_up_ns
    if gave_up is None:
        return _before_peers_ended(ending, peers) or _first_told(case, ending, peers)
    if ending.how in (How.SIGNAL, How.VANISHED):
        slack = BEAT_NS if ending.from_outside or ending.how is How.VANISHED else UNASKED_NS
        return ending.at_ns <= gave_up + slack and not _frozen(ending, gave_up)
    return ending.at_ns <= gave_up + TEARDOWN_NS


def may_be_echo(case: Case, ending: Ending) -> bool:
    """The calls of the rank are lost, and its end looks like that of one whose call failed because of a peer."""
    if ending.rank not in case.unrecorded:
        return False
    if ending.how not in _ECHOES:
        # A launcher ends its ranks when one has failed; watchdogs and uncaught errors of a transport abort.
        return ending.from_outside or ending.signal == signal.SIGABRT
    return ending.how is How.EXIT_CODE or speaks_of_peers(ending)


def speaks_of_peers(ending: Ending) -> bool:
    """It ended in an exception whose message is one that a call raises because of a peer."""
    return echoes.is_echo(ending.exception_type, ending.exception_message)


def ended_unseen(case: Case) -> frozenset[int]:
    """Ranks whose calls are lost and whose process all the same ended before anybody gave up, and not as an echo."""
    known = {rank: ending for rank, ending in case.endings.items() if rank in case.unrecorded}
    others = list(case.endings.values())
    return frozenset(
        rank
        for rank, ending in known.items()
        if ending.how is not How.CLEAN
        and (_raised_sometime(ending) or _is_before(ending.at_ns, case.gave_up_ns))
        and ended_first(case, ending, others)
    )


def ended_by_itself(case: Case) -> frozenset[int]:
    """Ranks whose process is gone, not as an echo and not by a hand from outside, before anybody gave up.

    Calls on a device may be open all the same: they were made before, and nobody waited in them.
    """
    others = list(case.endings.values())
    return frozenset(
        rank
        for rank, ending in case.endings.items()
        if ending.how not in (How.UNKNOWN, How.CLEAN)
        and not ending.from_outside
        and rank not in case.failed_ranks
        and not speaks_of_peers(ending)
        and ended_first(case, ending, others)
    )


def _raised_sometime(ending: Ending) -> bool:
    """A log has its traceback without a time: what it raised must tell whether it is an echo."""
    return ending.how is How.EXCEPTION and ending.at_ns is None


def _is_before(at_ns: int | None, gave_up_ns: int | None) -> bool:
    return at_ns is not None and (gave_up_ns is None or at_ns <= gave_up_ns)


def left_nothing(case: Case, rank: int) -> bool:
    """There is no recording of the rank, no sign of life and no word on how it ended."""
    ending = case.endings.get(rank)
    return ending is None or (ending.how is How.UNKNOWN and ending.last_alive_ns is None)


def _before_peers_ended(ending: Ending, peers: list[Ending]) -> bool:
    """Nobody failed: the rank went first if its peers outlived it or were ended in another way."""
    outlived = max((p.last_alive_ns for p in peers if p.last_alive_ns is not None), default=0) - (ending.at_ns or 0)
    if ending.from_outside:
        return outlived >= OUTLIVED_OUTSIDE_NS
    if ending.how in (How.SIGNAL, How.VANISHED):
        told = [(p.how, p.signal) for p in peers if p.how is not How.UNKNOWN]
        differs = bool(told) and ending.how is How.SIGNAL and all(end != (ending.how, ending.signal) for end in told)
        return differs or outlived >= OUTLIVED_NS
    return True


def _first_told(case: Case, ending: Ending, peers: list[Ending]) -> bool:
    """What a job left behind has no signs of life, but an end that none was told to come before."""
    if not case.trace.is_post_mortem or ending.how is not How.SIGNAL or ending.at_ns is None:
        return False
    timeouts = [fact.time_ns for fact in told(case.trace, ("collective_timeout",))]
    ends = [peer.seen_ns for peer in peers if peer.how is not How.UNKNOWN]
    # A launcher kills those that do not heed its SIGTERM, so a signal counts only where nobody gave up before it.
    return (
        not ending.from_outside
        and ending.signal != signal.SIGABRT
        and all(at is not None and ending.at_ns <= at for at in (*timeouts, *ends))
    )


def _by_its_watchdog(case: Case, ending: Ending) -> bool:
    """It aborted after it had itself waited in a call for long: so a watchdog ends a process whose call timed out."""
    if ending.signal != signal.SIGABRT or ending.at_ns is None:
        return False
    mine = case.blocked.filter(pl.col("rank") == ending.rank)
    waits = pl.coalesce("end_ns", pl.lit(ending.at_ns)) - pl.col("enter_ns")
    longest = mine.select(waits.max()).item()
    return isinstance(longest, int) and longest >= PATIENCE_NS


def _held_the_gil(case: Case, ending: Ending) -> bool:
    """Its signs of life stop long before its end, and its timer says that the interpreter was not let go."""
    if ending.how not in (How.SIGNAL, How.VANISHED) or ending.last_alive_ns is None or ending.seen_ns is None:
        return False
    newest = last(case.dumps.get(ending.rank, ()), TIMER)
    return newest is not None and ending.seen_ns - ending.last_alive_ns > FROZEN_NS


def _frozen(ending: Ending, gave_up_ns: int) -> bool:
    seen, alive = ending.seen_ns, ending.last_alive_ns
    if seen is None or alive is None:
        return False
    return seen > gave_up_ns and gave_up_ns - alive > FROZEN_NS


def _reference_ns(case: Case, others: list[Ending]) -> int:
    """Until when the waiting ranks are known to have waited."""
    if case.gave_up_ns is not None:
        return case.gave_up_ns
    return max((o.last_alive_ns for o in others if o.last_alive_ns is not None), default=case.last_alive_ns)
