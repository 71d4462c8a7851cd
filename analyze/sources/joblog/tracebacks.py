"""Python tracebacks, put together again per process where the lines of several are mixed.

`Traceback (most recent call last):`, frames, `type: message`. torch 2.3 on prints those that end a rank with
`[rank2]: ` in front of each line. What ran before `During handling of the above exception, another exception
occurred:` belongs to the same end: the last one reached the top, the first one is where it began. Only the final
line's message is kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from roundk.analyze.sources.joblog.events import Event, number, present, short

HEADER: Final = "Traceback (most recent call last)"
_DURING: Final = "During handling of the above exception"
_CAUSED: Final = "the direct cause of the following exception"
LITERALS: Final = (HEADER, "he above exception")

_FRAME: Final = re.compile(r'^\s*File "(?P<file>[^"]{1,500})", line (?P<line>\d{1,9})(?:, in (?P<function>.{1,200}))?')
_FINAL: Final = re.compile(r"^(?P<type>[A-Za-z_][\w.]{0,200})(?:: ?(?P<message>.*))?$")
_GROUPED: Final = re.compile(r"^(?:\s*[|+] ?)+")
_FOREIGN: Final = re.compile(
    r"[/\\]site-packages[/\\]torch[/\\]|[/\\]dist-packages[/\\]torch[/\\]|^<frozen |[/\\]torch[/\\]"
    r"(?:distributed|nn|utils|autograd|_dynamo|_ops)\b"
)
_AGENT: Final = ("torch.distributed.elastic.multiprocessing.errors", "torch.distributed.elastic.agent")
_EXCEPTION: Final = re.compile(
    r"\.|(?:Error|Exception|Exit|Interrupt|Iteration|Warning|Failure|Timeout|Group|Abort|Stop)$"
)
_MOST_NOISE: Final = 50


def links(text: str) -> bool:
    """Whether the line ties the traceback above it to the one below."""
    return _DURING in text or _CAUSED in text


@dataclass(slots=True)
class Raised:
    """One traceback, or the chain of those that led to it.

    Attributes:
        type: Type of the exception as printed.
        message: Its message, first line.
        site: `file:line` of the innermost frame outside torch.
        function: Function of that frame.
        frames: Number of frames.
        before: The exceptions that it followed, first one first.
        is_mixed: Another traceback began within it: processes without prefixes, its frames may not be its own.
    """

    type: str
    message: str
    site: str | None
    function: str | None
    frames: int
    before: list[Raised] = field(default_factory=list)
    is_mixed: bool = False

    @property
    def is_agents(self) -> bool:
        """Whether torchrun's agent printed it, in whatever rank's name its launcher put in front."""
        return self.type.startswith(_AGENT) or self.type == "ChildFailedError"

    def event(self, rank: int | None, *, is_uncaught: bool) -> Event:
        """The fact."""
        fields = present(
            type=self.type,
            message=self.message,
            site=self.site,
            function=self.function,
            frames=self.frames,
            is_uncaught=is_uncaught or None,
            is_mixed=self.is_mixed or None,
            before=[present(type=one.type, message=one.message, site=one.site) for one in self.before] or None,
        )
        where = f" at {self.site}" if self.site else ""
        message = f"{self.message.rstrip('.')}," if where and self.message.endswith(".") else self.message
        kind = "agent_exception" if self.is_agents else "exception"
        return Event(kind, f"{self.type}: {message}{where}", fields, rank=rank, is_about_other=self.is_agents)


class Traceback:
    """Reads on behind a header, one process's lines."""

    is_bare = False

    def __init__(self, header: str, rank: int | None = None, *, is_shared: bool = False) -> None:
        """Begin.

        Args:
            header: The line with the header in it: its indentation is that of the final line.
            rank: Whose it is, where the lines around it say so.
            is_shared: Other processes' lines carry the same prefixes, or none.
        """
        self.rank = rank
        self._is_shared = is_shared
        self.raised: Raised | None = None
        self._indent = _indent(_GROUPED.sub("", header))
        self._innermost: tuple[str, int, str] | None = None
        self._has_own = False
        self._count = 0
        self._is_mixed = False
        self._noise = 0

    def feed(self, text: str) -> Iterator[Event] | None:
        """Take the next line; None where the traceback has ended, with `raised` set if it is whole."""
        line = _GROUPED.sub("", text) if text.lstrip()[:1] in {"|", "+"} else text
        if HEADER in line:
            self._is_mixed = True
            return iter(())
        if (frame := _FRAME.match(line)) is not None:
            self._count += 1
            is_own = not _FOREIGN.search(frame["file"])
            if is_own or not self._has_own:  # of many thousand tracebacks no more than this can be kept
                self._innermost = frame["file"], number(frame["line"]) or 0, (frame["function"] or "").strip()
                self._has_own = is_own
            return iter(())
        if not line.strip() or _indent(line) > self._indent:
            return iter(())
        final = _FINAL.match(line.strip())
        if final is not None and self._innermost is not None and self._is_type(final["type"]):
            self._end(final, *self._innermost)
            return None
        self._noise += 1  # another process's line, where lines carry no prefix
        return iter(()) if self._noise <= _MOST_NOISE else None

    def _is_type(self, name: str) -> bool:
        return _EXCEPTION.search(name) is not None or (not self._is_shared and name[0].isupper())

    def _end(self, final: re.Match[str], file: str, line: int, function: str) -> None:
        self.raised = Raised(
            final["type"],
            short(final["message"] or ""),
            f"{file}:{line}",
            function or None,
            self._count,
            is_mixed=self._is_mixed,
        )


def innermost(frames: Sequence[tuple[str, int, str]]) -> tuple[str, int, str]:
    """The innermost frame outside torch, of frames with the innermost last; the last one where all are torch's."""
    return next((frame for frame in reversed(frames) if not _FOREIGN.search(frame[0])), frames[-1])


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())
