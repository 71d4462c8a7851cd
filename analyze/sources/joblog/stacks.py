"""`Stack trace of the failed collective: ` and the frames below it, torch 2.5 on: `#0 all_reduce from /a/b.py:2696`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from roundk.analyze.sources.joblog.events import Event
from roundk.analyze.sources.joblog.tracebacks import innermost

HEADER: Final = "Stack trace of the failed collective:"
LITERALS: Final = (HEADER,)
_FRAME: Final = re.compile(r"#\d{1,4} (?P<function>.{1,200}?) from (?P<file>[^\s:]{1,500}):(?P<line>\d{1,9})")
_MOST: Final = 64
"""Frames kept."""


class Frames:
    """Reads the frames of one stack."""

    is_bare = True

    def __init__(self, header: str) -> None:
        self._frames: list[tuple[str, int, str]] = []
        self._take(header)

    def feed(self, text: str) -> Iterator[Event] | None:
        """Take the next line; None where it is no frame."""
        return iter(()) if self._take(text) or HEADER in text else None

    def finish(self) -> list[Event]:
        """The stack."""
        if not self._frames:
            return []
        file, line, function = innermost(list(reversed(self._frames)))
        listed = [f"{file}:{line} {function}" for file, line, function in self._frames]
        fields: dict[str, object] = {"site": f"{file}:{line}", "function": function, "frames": listed}
        return [Event("collective_stack", f"the call that timed out was made at {file}:{line}", fields)]

    def _take(self, text: str) -> bool:
        found = _FRAME.findall(text)
        for function, file, line in found:
            if len(self._frames) < _MOST:
                self._frames.append((file, int(line), function))
        return bool(found)
