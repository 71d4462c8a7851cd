"""How far a batch is: a line on the terminal that is written over, plain lines in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import IO, Any, Final, Self

from roundk.analyze.batch.judge_run import ERROR
from roundk.analyze.batch.run import Run
from roundk.analyze.output.safe import printable
from roundk.analyze.phrases import NS_PER_S, duration, number_of

_LOG_S: Final = 30.0
"""Time between lines of a log: a batch of minutes leaves a handful."""
_SETTLED: Final = 5
"""Runs after which what is left can be estimated."""

Rows = Sequence[Mapping[str, Any]]


class Progress:
    """Counts runs, and says so on standard error."""

    def __init__(self, total: int, *, columns: int, stream: IO[str] | None = None) -> None:
        """Begin.

        Args:
            total: Runs of the batch.
            columns: Width of the terminal.
            stream: Where to say it; None: standard error.
        """
        self._stream = sys.stderr if stream is None else stream
        self._is_bar = self._stream.isatty()
        self._columns = columns
        self._total = total
        self._kept = self._judged = 0
        self._unjudged = self._unjudged_before = self._partly = 0
        self._now: list[str] = []
        self._began = self._said = time.monotonic()

    def kept(self, rows: Rows) -> None:
        """A run was finished before, with these rows."""
        self._kept += 1
        self._count(rows, before=True)

    def started(self, run: Run) -> None:
        """A run begins."""
        self._now.append(run.name)
        self._tell()

    def judged(self, run: Run, rows: Rows) -> None:
        """A run is done, with these rows."""
        if run.name in self._now:
            self._now.remove(run.name)
        self._judged += 1
        self._count(rows, before=False)
        self._tell()

    def _count(self, rows: Rows, *, before: bool) -> None:
        if any(row["status"] == ERROR for row in rows):
            self._unjudged += 1
            self._unjudged_before += before
        elif any(row["problem"] is not None for row in rows):
            self._partly += 1

    @property
    def text(self) -> str:
        """`147/300 runs, 3 problems, about 2 min left, now: job-12/0`."""
        told = [f"{self._kept + self._judged}/{self._total} runs", number_of(self._unjudged + self._partly, "problem")]
        left = self._total - self._kept - self._judged
        if left and self._judged >= _SETTLED:
            each_s = (time.monotonic() - self._began) / self._judged
            told.append(f"about {duration(round(left * each_s) * NS_PER_S)} left")
        if self._now:
            told.append(f"now: {printable(self._now[0])}".replace("\n", "\\n"))
        return ", ".join(told)

    @property
    def counts(self) -> str:
        """`300 of 300 runs: 287 judged, 10 kept from before, 3 not judged; 2 judged without some of their files`.

        In the words of the report; a run is in one of the first three numbers.
        """
        done = self._kept + self._judged
        if not done:
            return f"none of {number_of(self._total, 'run')} is judged yet"
        kept = self._kept - self._unjudged_before
        told = [f"{self._judged - self._unjudged + self._unjudged_before} judged"]
        told += [f"{kept} kept from before"] if kept else []
        told += [f"{self._unjudged} not judged"] if self._unjudged else []
        partly = f"; {self._partly} judged without some of their files" if self._partly else ""
        return f"{done} of {number_of(self._total, 'run')}: {', '.join(told)}{partly}"

    def __enter__(self) -> Self:
        self._began = self._said = time.monotonic()
        if self._kept < self._total:
            self._write(self.text)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._is_bar:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def _tell(self) -> None:
        now = time.monotonic()
        if self._is_bar or now - self._said >= _LOG_S:
            self._said = now
            self._write(self.text)

    def _write(self, text: str) -> None:
        if self._is_bar:
            # A line as wide as the terminal would wrap, and then is not written over.
            self._stream.write(f"\r{text[: self._columns - 1]}\x1b[K")
        else:
            self._stream.write(f"roundk: {text}\n")
        self._stream.flush()
