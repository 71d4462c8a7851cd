"""Runs whose analysis waits, until a test lets it go on: its process is stopped."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
import threading
import time

SAMPLES = pathlib.Path(__file__).parents[3] / "sample_traces"
YOUNG_S = 3
"""Which processes are looked at: those that began since then."""
LIMIT_S = 60
"""Importing the analysis takes a second on an idle machine."""


def sample(root, name, of="stop"):
    """A copy of a recorded run below a root."""
    return pathlib.Path(shutil.copytree(SAMPLES / of, root / name))


def until(condition, what, limit_s=LIMIT_S):
    """Wait for a condition; what it gave."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError(f"not within {limit_s} s: {what}")


class Held:
    """A copy of a recorded run, whose analysis is stopped as it begins: while it imports for a second."""

    def __init__(self, root, name, of="stop"):
        self.folder = sample(root, name, of)
        self._name = f'"name": "{name}"'
        self._home = str(pathlib.Path(root).parent)
        self._pid = None
        self._released = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self):
        first: dict[str, float] = {}
        while not self._released.is_set() and self.folder.exists():
            now = time.monotonic()
            there = [path.name for path in pathlib.Path("/proc").iterdir() if path.name.isdecimal()]
            first = {pid: first.get(pid, now) for pid in there}
            for pid in (pid for pid in there if now - first[pid] < YOUNG_S and int(pid) != self._pid):
                if self._is_mine(pathlib.Path("/proc", pid)):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGSTOP)
                        self._pid = int(pid)
            time.sleep(0.01)

    def _is_mine(self, folder):
        spec = _spec(folder)
        if self._name not in spec:
            return False
        try:
            # Other tests on this machine may have a run of the same name.
            is_here = self._home in spec or str((folder / "cwd").readlink()) == self._home
            # Once it imports what it analyses with, it has told the kernel to end it with its parent.
            return is_here and "polars" in (folder / "maps").read_text()
        except OSError:
            return False

    def reached(self):
        """Whether an analysis of it has begun, and is held."""
        return self._pid is not None

    def left(self):
        """Whether the analysis that was held is gone."""
        try:
            state = pathlib.Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            state = "Z"
        if state in "ZX":
            self._pid = None
        return self._pid is None

    def release(self):
        """Let it go on, and those to come never wait."""
        self._released.set()
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGCONT)
            self._pid = None


def children(name):
    """Process ids of the analyses under way on this machine in whose paths and names a text stands."""
    return [int(folder.name) for folder in pathlib.Path("/proc").iterdir() if name in _spec(folder)]


def _spec(folder):
    """What an analysis is told; empty for other processes."""
    try:
        words = (folder / "cmdline").read_text(errors="replace").split("\0")
        return pathlib.Path(words[4]).read_text() if "roundk.analyze.batch.child" in words else ""
    except OSError:
        return ""


def parent(pid):
    """Process id of a process's parent."""
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
