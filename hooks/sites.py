"""Call sites: which line of the user's code made a call.

The site of a call is the innermost frame outside torch, roundk and the standard library. Seen once, a place costs one
walk over a few frames and one look-up.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import itertools
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import CodeType, FrameType

    from roundk.tracer.side import SideFile

_MOST_SITES = 65_536
"""Distinct places to remember: code made anew in a loop must not eat memory."""
_DECORATORS = f"{os.sep}typing_extensions.py"
"""torch wraps its deprecated collectives in this package's `deprecated`, which would pass for the caller."""
_COMPILED = "TORCHINDUCTOR_CACHE_DIR"
"""Where torch.compile writes the code that it makes; it sets the variable itself when it first does.

Source: torch/_inductor/runtime/cache_dir_utils.py, torch 2.6 to 2.14.
"""
_TRACED = "<eval_with_key>"
"""Beginning of the file name that torch.fx gives to code it makes."""
_MOST_FRAMES = 64
"""Frames kept of a full stack."""


def foreign_folders() -> tuple[str, ...]:
    """Folders of torch, of roundk (as imported, and where links lead), and of the standard library."""
    import torch

    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    real = os.path.dirname(os.path.realpath(__file__))
    return (os.path.dirname(torch.__file__), here, real, os.path.dirname(contextlib.__file__), "<frozen ")


def is_users_file(file: str, foreign: tuple[str, ...]) -> bool:
    """Whether a frame in this file is the user's: not torch's, ours or the standard library's."""
    compiled = os.environ.get(_COMPILED)
    if file.startswith(_TRACED) or (compiled and file.startswith(compiled)):
        return False
    if "site-packages" in file or "dist-packages" in file:  # inside the standard library's folder, but not of it
        return not file.startswith(foreign[:3]) and not file.endswith(_DECORATORS)
    return not file.startswith(foreign)


class Sites:
    """The call sites of one process, numbered from 1 as they are first seen."""

    def __init__(self, side: SideFile) -> None:
        self._side = side
        self._foreign = foreign_folders()
        self._codes: dict[int, CodeType] = {}
        self._ids: dict[int, dict[int, int] | None] = {}
        self._places: dict[tuple[str, int, str], int] = {}
        self._numbers = itertools.count(1)

    def here(self) -> int:
        """Id of the place that the caller's caller was called from; 0: no frame of the user's.

        Looked up by the code's address, and the codes kept: to hash one goes through all of its constants.
        """
        frame = sys._getframe(2).f_back
        known = self._ids
        while frame is not None:
            code = frame.f_code
            try:
                ids = known[id(code)]
            except KeyError:
                ids = self._learn(code)
            if ids is not None:
                return ids.get(frame.f_lasti) or self._new(ids, frame)
            frame = frame.f_back
        return 0

    def _learn(self, code: CodeType) -> dict[int, int] | None:
        """Sites in a code that was not seen before, none so far; None where it is not the user's."""
        ids: dict[int, int] | None = {} if is_users_file(code.co_filename, self._foreign) else None
        if len(self._codes) < _MOST_SITES:
            self._codes[id(code)] = code
            self._ids[id(code)] = ids
        return ids

    def _new(self, ids: dict[int, int], frame: FrameType) -> int:
        if len(self._places) >= _MOST_SITES:
            return 0
        code, line = frame.f_code, frame.f_lineno or 0
        place = (code.co_filename, line, code.co_qualname)
        number = self._places.get(place)
        if number is None:
            number = self._places[place] = next(self._numbers)
            frames = _frames(frame)
            self._side.append(
                {
                    "kind": "site",
                    "id": number,
                    "file": place[0],
                    "line": line,
                    "function": place[2],
                    "loop": loop_line(code, frame.f_lasti),
                    "stack": [f"{f.f_code.co_filename}:{f.f_lineno} {f.f_code.co_qualname}" for f in frames],
                    "loops": [self._loop(f) for f in frames],
                }
            )
        ids[frame.f_lasti] = number
        return number

    def _loop(self, frame: FrameType) -> int | None:
        """Line of the loop around a frame's call; None too for code that is not the user's, which is large and many."""
        code = frame.f_code
        users = is_users_file(code.co_filename, self._foreign)
        return loop_line(code, frame.f_lasti) if users else None


def _frames(frame: FrameType | None) -> list[FrameType]:
    frames: list[FrameType] = []
    while frame is not None and len(frames) < _MOST_FRAMES:
        frames.append(frame)
        frame = frame.f_back
    return frames


def loop_line(code: CodeType, at: int) -> int | None:
    """Line of the innermost loop around an instruction; None where there is none.

    A loop is a backward jump; its line is that of the jump's target (`for`), or of the test at its end (`while`).

    Source: CPython 3.11 to 3.14, Lib/dis.py and Python/compile.c (JUMP_BACKWARD, POP_JUMP_BACKWARD_IF_*).
    """
    start, line = -1, None
    for begin, end, loop in _loops(code):
        if start < begin <= at <= end:
            start, line = begin, loop
    return line


@functools.lru_cache(maxsize=4096)
def _loops(code: CodeType) -> list[tuple[int, int, int | None]]:
    """Offsets of a code's loops, first and last, and their lines: a long function takes long to take apart."""
    found = []
    for instruction in dis.get_instructions(code):
        offset, target = instruction.offset, instruction.argval
        if "JUMP" in instruction.opname and isinstance(target, int) and target <= offset:
            found.append((target, offset, _line(code, offset if instruction.opname.startswith("POP_JUMP") else target)))
    return found


def _line(code: CodeType, offset: int) -> int | None:
    for begin, end, line in code.co_lines():
        if begin <= offset < end:
            return line
    return None
