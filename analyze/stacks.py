"""Python stacks that ranks left behind: where each rank's main thread was, in the user's own code."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from roundk.analyze.phrases import place

STALL: Final = "stall"
TIMER: Final = "timer"
TERM: Final = "term"
FATAL: Final = "fatal"
"""What made a dump: a stall, the same with the interpreter not let go, SIGTERM, a fatal signal."""

SHOWN_FRAMES: Final = 8
"""Frames of a stack in one line of evidence."""

_FRAME: Final = re.compile(r"(.*):(\d+) (.*)")
_TORCH: Final = re.compile(r"[/\\](site|dist)-packages[/\\]torch[/\\]|[/\\]pytorch[/\\]torch[/\\]")
_FOREIGN: Final = re.compile(
    r"[/\\]roundk[/\\](hooks|tracer)[/\\]|roundk_shim\.py$"
    r"|[/\\]lib\d*[/\\]python3\.\d+[/\\](?!(site|dist)-packages[/\\])|[/\\]python3\d+\.zip[/\\]"
    # What torch's compiler makes, and the module through which torch marks functions as deprecated.
    r"|torchinductor_|<eval_with_key>|^<frozen |[/\\]typing_extensions\.py$"
)
"""Files of the recorder, of the standard library and of generated code, wherever they are installed."""


@dataclass(frozen=True)
class Frame:
    """One frame of a stack."""

    file: str
    line: int
    function: str

    @property
    def text(self) -> str:
        """`data.py:57 load_batch`."""
        return f"{place(self.file, self.line)} {self.function}"

    @property
    def is_torch(self) -> bool:
        """It is torch's."""
        return _TORCH.search(self.file) is not None

    @property
    def is_users(self) -> bool:
        """It lies outside torch, the recorder and the standard library."""
        return not self.is_torch and _FOREIGN.search(self.file) is None


@dataclass(frozen=True)
class Dump:
    """The main thread's stack in one dump.

    Attributes:
        trigger: `STALL`, `TIMER`, `TERM` or `FATAL`.
        time_ns: When it was written; None: nobody could note the time.
        not_before_ns: The recorder's last mark before it.
        what: Why, in a few words.
        frames: Innermost first.
    """

    rank: int
    trigger: str
    time_ns: int | None
    not_before_ns: int
    what: str
    frames: tuple[Frame, ...]
    source: str

    @property
    def place(self) -> str:
        """The innermost frame of the user's code, and the call of torch's that it was in."""
        users = next((frame for frame in self.frames if frame.is_users), None)
        torch = next((frame for frame in self.frames if frame.is_torch or frame.is_users), None)
        if users is None:
            return self.frames[0].text if self.frames else "no Python code"
        return users.text if torch is None or torch.is_users else f"{users.text}, inside {torch.text}"

    @property
    def line(self) -> str:
        """The stack in one line, innermost first."""
        shown = [frame.text for frame in self.frames if frame.is_users or frame.is_torch] or [
            frame.text for frame in self.frames
        ]
        return " < ".join(shown[:SHOWN_FRAMES]) + (" < ..." if len(shown) > SHOWN_FRAMES else "")

    def shows(self, file: str, line: int) -> bool:
        """Whether a line of code is on the stack."""
        return any(frame.file == file and frame.line == line for frame in self.frames)


def main_threads(stacks: pl.DataFrame) -> dict[int, tuple[Dump, ...]]:
    """The dumps of each rank's main thread, in the order in which they were written.

    Args:
        stacks: `schema.STACKS`.
    """
    found: dict[int, list[Dump]] = {}
    for row in stacks.filter(pl.col("is_main").fill_null(value=True)).iter_rows(named=True):
        frames = tuple(_frames(row["frames"]))
        # Which thread is the main one may not be known; it alone runs the program's first module.
        program = row["is_main"] is None and bool(frames) and frames[-1].function == "<module>"
        if row["is_main"] or program:
            found.setdefault(row["rank"], []).append(_dump(row, frames))
    return {rank: tuple(dumps) for rank, dumps in found.items()}


def last(dumps: Iterable[Dump], trigger: str) -> Dump | None:
    """The last dump, if this is what made it."""
    *_, newest = (None, *dumps)
    return newest if newest is not None and newest.trigger == trigger else None


def _dump(row: dict[str, Any], frames: tuple[Frame, ...]) -> Dump:
    return Dump(
        rank=row["rank"],
        trigger=row["trigger"],
        time_ns=row["time_ns"],
        not_before_ns=row["not_before_ns"] or 0,
        what=row["what"] or "",
        frames=frames,
        source=row["source"] or "",
    )


def _frames(texts: Iterable[str]) -> Iterable[Frame]:
    for text in texts:
        match = _FRAME.fullmatch(text)
        if match is not None:
            yield Frame(match[1], int(match[2]), match[3])
