"""How each rank's process ended, as far as anybody told."""

from __future__ import annotations

import enum
import signal
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from roundk.analyze import echoes, stacks
from roundk.analyze.phrases import place, signal_name

STOPPED_STATES: Final = frozenset({"T", "t"})
"""`/proc/PID/stat`: stopped by a signal, stopped by a debugger."""

FROM_OUTSIDE: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
"""Signals by which launchers, schedulers and users end a whole job; the ranks they hit are rarely where it began."""

MESSAGE_LENGTH: Final = 120
"""Characters of an exception's message that a sentence can carry."""

INTERRUPTS: Final = ("KeyboardInterrupt", "SignalException")
"""Exceptions that such a signal is turned into."""

FATAL_ERRORS: Final = {
    "Segmentation fault": signal.SIGSEGV,
    "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS,
    "Illegal instruction": signal.SIGILL,
    "Floating-point exception": signal.SIGFPE,
}
"""What `faulthandler` calls the signals after which a process does not live on.

Source: CPython 3.11 to 3.14, Modules/faulthandler.c (`faulthandler_handlers`).
"""


class How(enum.StrEnum):
    """The ways of ending."""

    EXCEPTION = "exception"
    SIGNAL = "signal"
    EXIT_CODE = "exit code"
    CLEAN = "in order"
    VANISHED = "vanished"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Ending:
    """What is known about the end of one rank's process.

    Attributes:
        how: The way it ended; UNKNOWN: nobody saw it end.
        at_ns: When it ended or, after a signal, its last sign of life.
        seen_ns: When a parent noticed.
        stopped_ns: Since when it was stopped, where its last known state is stopped.
        state: Its last known process state.
        data: What there is of its recording: present, empty, truncated or missing.
        fatal: The stack that a fatal signal of its own doing left.
        is_timed: When it ended is told; else `at_ns` is but its last sign of life.
        was_told: The whole job had been told to end before this rank did.
    """

    rank: int
    host: str | None
    data: str
    how: How
    at_ns: int | None
    seen_ns: int | None
    signal: int | None
    exit_code: int | None
    exit_source: str | None
    exception_type: str | None
    exception_message: str | None
    exception_site: str | None
    last_alive_ns: int | None
    stopped_ns: int | None
    state: str | None
    source: str
    fatal: stacks.Dump | None = None
    is_timed: bool = True
    was_told: bool = False

    @property
    def told_ns(self) -> int | None:
        """When it ended, for a report: None where only an earlier sign of life is known."""
        return self.at_ns if self.is_timed else None

    @property
    def where(self) -> str:
        """Where an exception ended it, `train.py:42`; empty where that is not told."""
        return _short(self.exception_site) if self.exception_site else ""

    @property
    def from_outside(self) -> bool:
        """It was ended by a signal that is sent to whole jobs, or after one was."""
        if self.was_told:
            return True
        return self.is_interrupt or (self.how is How.SIGNAL and self.signal in FROM_OUTSIDE)

    @property
    def is_interrupt(self) -> bool:
        """It ended in the exception that such a signal is turned into."""
        return self.how is How.EXCEPTION and (self.exception_type or "").rpartition(".")[2] in INTERRUPTS

    @property
    def text(self) -> str:
        """How it ended, as the end of a sentence about the rank."""
        if self.how is How.EXCEPTION:
            where = f" at {self.where}" if self.where else ""
            words = " ".join(echoes.short_message(self.exception_message or "").split())
            message = f": {textwrap.shorten(words, MESSAGE_LENGTH, placeholder=' ...')}" if words else ""
            if where and message.endswith(".") and not message.endswith("..."):
                message = f"{message.rstrip('.')},"
            return f"raised {echoes.short_type(self.exception_type or 'an exception')}{message}{where}"
        if self.how is How.SIGNAL and self.signal is not None:
            where = f" in {self.fatal.place}" if self.fatal is not None else ""
            return f"was killed by {signal_name(self.signal)}{where}"
        if self.how is How.EXIT_CODE:
            return f"exited with code {self.exit_code}"
        if self.how is How.CLEAN:
            return "left in order" + (" with exit code 0" if self.exit_code == 0 else "")
        if self.how is How.VANISHED:
            return "vanished without a word"
        return "did not say how it ended"


def endings(ranks: pl.DataFrame, dumps: Mapping[int, Sequence[stacks.Dump]]) -> dict[int, Ending]:
    """How every rank ended.

    Args:
        ranks: `schema.RANKS`.
        dumps: The stacks of each rank's main thread, in the order in which they were written.
    """
    return {
        row["rank"]: _ending(row, stacks.last(dumps.get(row["rank"], ()), stacks.FATAL))
        for row in ranks.iter_rows(named=True)
    }


def _ending(row: dict[str, Any], fatal: stacks.Dump | None) -> Ending:
    if fatal is not None and row["exit_signal"] is None and row["exit_code"] is None:
        row = {**row, "exit_signal": FATAL_ERRORS.get(fatal.what)}
    how = _how(row)
    alive = row["last_alive_ns"]
    if how is How.EXCEPTION:
        at = row["exception_ns"] or alive
    elif row["goodbye_ns"] is not None:
        at = row["goodbye_ns"]
    elif how is How.UNKNOWN:
        at = None
    else:
        at = alive if alive is not None else row["exit_ns"]
    stopped = row["process_state"] in STOPPED_STATES
    return Ending(
        rank=row["rank"],
        host=row["host"],
        data=row["data"],
        how=how,
        at_ns=at,
        seen_ns=row["exit_ns"],
        signal=row["exit_signal"],
        exit_code=row["exit_code"],
        exit_source=row["exit_source"],
        exception_type=row["exception_type"],
        exception_message=row["exception_message"],
        exception_site=row["exception_site"],
        last_alive_ns=alive,
        stopped_ns=(row["process_state_ns"] or alive) if stopped else None,
        state=row["process_state"],
        source=row["source"] or "",
        fatal=fatal if how is How.SIGNAL else None,
        is_timed=_is_timed(row, how, fatal),
    )


def _is_timed(row: dict[str, Any], how: How, fatal: stacks.Dump | None) -> bool:
    if how is How.EXCEPTION:
        return row["exception_ns"] is not None
    return row["goodbye_ns"] is not None or row["exit_ns"] is not None or fatal is not None


def _short(site: str) -> str:
    file, _, line = site.rpartition(":")
    return place(file, int(line)) if line.isdecimal() else site


def _how(row: dict[str, Any]) -> How:
    if row["exception_type"] is not None:
        return How.EXCEPTION
    if row["goodbye_ns"] is not None:
        # The interpreter had shut down in order: a signal after that changes nothing for the peers.
        return How.EXIT_CODE if row["exit_code"] else How.CLEAN
    if row["exit_signal"] is not None:
        return How.SIGNAL
    if row["exit_code"] is not None:
        return How.EXIT_CODE if row["exit_code"] else How.CLEAN
    return How.VANISHED if row["exit_source"] == "vanished" else How.UNKNOWN
