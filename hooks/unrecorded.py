"""Why no rank was recorded, as far as a look at the command's processes tells.

Looked at only as long as no rank has left a file: the command's descendants, their options and first environment, and
whether they have loaded torch.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, NamedTuple

from roundk.hooks import config

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST_LOOK_S = 0.2
_SLOWER = 1.5
"""Each look is later than the one before by this factor: short commands are seen, long ones not disturbed."""
_MOST_COMMAND = 60
_TORCH = "libtorch"
_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
"""torch/__init__.py, torch 2.5 and newer: 0 keeps torch from loading `torch.backends` entry points."""


class _Seen(NamedTuple):
    """A Python process: its command line, whether it has torch, and what kept us out (None: nothing that shows)."""

    command: str
    torch: bool
    why: str | None


class Descendants:
    """Looks at the processes under one, rarely."""

    def __init__(self, pid: int, site: str) -> None:
        self._pid = pid
        self._site = site
        self._seen: dict[int, _Seen] = {}
        self._wait_s = FIRST_LOOK_S
        self._look_at = time.monotonic() + self._wait_s

    def look(self) -> None:
        """Look, if it is time to."""
        if time.monotonic() < self._look_at:
            return
        for pid in _tree(self._pid):
            known = self._seen.get(pid)
            if known is None or not known.torch:
                self._look_at_process(pid)
        self._wait_s *= _SLOWER
        self._look_at = time.monotonic() + self._wait_s

    def _look_at_process(self, pid: int) -> None:
        try:
            torch = _TORCH in _read(pid, "maps")
            argv = _read(pid, "cmdline").rstrip("\0").split("\0")
            if torch or os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("python"):
                pairs = (entry.partition("=") for entry in _read(pid, "environ").split("\0"))
                why = self._why(argv, {name: value for name, _, value in pairs})
                self._seen[pid] = _Seen(" ".join(argv)[:_MOST_COMMAND], torch, why)
        except OSError:
            return  # gone meanwhile, or another user's

    def _why(self, argv: list[str], environment: dict[str, str]) -> str | None:
        if config.DIR_VARIABLE not in environment:
            return f"was started without {config.DIR_VARIABLE}: hand on ROUNDK_* and PYTHONPATH to it"
        option = _ignores_environment(argv)
        if option:
            return f"was started with {option}, which ignores PYTHONPATH: leave it out, or install roundk in its Python"
        path = environment.get("PYTHONPATH", "").split(os.pathsep)
        if self._site not in path:
            return "was started with another PYTHONPATH: put $PYTHONPATH behind it, or install roundk in its Python"
        before = path[: path.index(self._site)]
        first = next((entry for entry in before if os.path.exists(os.path.join(entry, "sitecustomize.py"))), None)
        if first is not None and environment.get(_AUTOLOAD) == "0":
            return f"has {_AUTOLOAD}=0 and {first}/sitecustomize.py, which comes before ours: one of them has to go"
        return None

    @property
    def torch_loaded(self) -> bool:
        """Whether a process with torch was seen."""
        return any(seen.torch for seen in self._seen.values())

    def explain(self) -> list[str]:
        """Sentences on why no rank may have been recorded, by the processes with torch or else by other Pythons."""
        seen = [process for process in self._seen.values() if process.torch] or list(self._seen.values())
        if not seen:
            return ["no Python process was seen in it"]
        reasons = {process.why: process.command for process in reversed(seen) if process.why}
        if reasons:
            return [f"`{command}` {why}" for why, command in reasons.items()]
        if self.torch_loaded:
            return ["torch was loaded, but no process made a torch.distributed group that could be recorded"]
        return ["no process was seen to load torch"]


def _tree(root: int) -> Iterator[int]:
    """A process and its descendants, as far as their parents live."""
    pids = [root]
    while pids:
        pid = pids.pop()
        yield pid
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                pids += map(int, _read(pid, f"task/{thread}/children").split())
        except OSError:
            continue


def _read(pid: int, what: str) -> str:
    with open(f"/proc/{pid}/{what}", encoding="utf-8", errors="replace") as file:
        return file.read()


def _ignores_environment(argv: list[str]) -> str | None:
    """The option of a Python command line that makes it ignore PYTHONPATH: -I, -E, or one that has them in it."""
    options = iter(argv[1:])
    for option in options:
        if not option.startswith("-") or option.startswith("--"):
            return None
        for at, letter in enumerate(option[1:], start=1):
            if letter in "IE":
                return option
            if letter in "cm":
                return None
            if letter in "WX":
                if at == len(option) - 1:
                    next(options, None)
                break
    return None
