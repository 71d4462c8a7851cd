"""Reads a stacks file: what `faulthandler` wrote, between the recorder's own marks.

A mark is a JSON line. `stall` stands before a dump of the recorder's; `term` before whatever a signal or faulthandler's
timer may write later, at a time that nobody could note.

Source: CPython 3.11 to 3.14, Modules/faulthandler.c and Python/traceback.c (`_Py_DumpTracebackThreads`).
"""

from __future__ import annotations

import re
from typing import Any

from roundk.tracer import side_lines

_THREAD = re.compile(r"(Current thread|Thread) 0x([0-9a-f]+)(?: \[[^\]]*\])? \(most recent call first\):")
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')

_OURS = re.compile(r"hooks/recorder\.py:\d+ _tend$")
"""The recorder's own thread, in every dump, tells nothing."""


def read(text: str, main_thread: int | None) -> list[dict[str, Any]]:
    """Rows of `schema.STACKS` without rank and source, in the order of the file; the recorder's own thread left out."""
    rows: list[dict[str, Any]] = []
    mark: dict[str, Any] = {}
    trigger, what = "term", ""
    threads: set[int] = set()
    for line in text.splitlines():
        if line.startswith("{"):
            mark = _mark(line)
            trigger, what = mark.get("kind") or "term", mark.get("why") or ""
            threads.clear()
        elif line.startswith("Timeout ("):
            trigger, what = "timer", "the interpreter was not let go"
            threads.clear()
        elif line.startswith("Fatal Python error: "):
            trigger, what = "fatal", line.removeprefix("Fatal Python error: ")
            threads.clear()
        elif match := _THREAD.fullmatch(line):
            thread = int(match[2], 16)
            if thread in threads:  # the next dump, and a signal's: that has no headline
                trigger, what = "term", ""
                threads.clear()
            threads.add(thread)
            rows.append(_row(mark, trigger, what, thread, main_thread))
        elif rows and (match := _FRAME.fullmatch(line)):
            rows[-1]["frames"].append(f"{match[1]}:{match[2]} {match[3]}")
    return [row for row in rows if not any(_OURS.search(frame) for frame in row["frames"])]


def _mark(line: str) -> dict[str, Any]:
    """What a headline tells; nothing where the process was killed while it was written."""
    good, _ = side_lines.sorted_out([(1, side_lines.object_of(line))], side_lines.MARK)
    return good[0] if good else {}


def _row(mark: dict[str, Any], trigger: str, what: str, thread: int, main_thread: int | None) -> dict[str, Any]:
    return {
        "time_ns": mark.get("time_ns") if trigger == "stall" else None,
        "not_before_ns": mark.get("time_ns"),
        "trigger": trigger,
        "what": what,
        "call": mark.get("call"),
        "thread": thread,
        "is_main": None if main_thread is None else thread == main_thread,
        "frames": [],
    }
