"""Runs whose analysis waits in the middle, until a test lets it go on: their `run.json` is a pipe."""

from __future__ import annotations

import contextlib
import os
import pathlib
import select
import shutil
import time

SAMPLES = pathlib.Path(__file__).parents[3] / "sample_traces"
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
    """A copy of a recorded run, whose reader waits."""

    def __init__(self, root, name, of="stop"):
        self.folder = sample(root, name, of)
        self.path = self.folder / "run.json"
        self.text = self.path.read_bytes()
        self.path.unlink()
        os.mkfifo(self.path)
        self.pipe = None

    def reached(self):
        """Whether an analysis of it has begun to read; it waits for as long as `pipe` is open."""
        if self.pipe is None:
            with contextlib.suppress(OSError):  # ENXIO: nobody reads
                self.pipe = os.open(self.path, os.O_WRONLY | os.O_NONBLOCK)
        return self.pipe is not None

    def left(self):
        """Whether its reader is gone."""
        poll = select.poll()
        poll.register(self.pipe, 0)
        is_left = any(event & select.POLLERR for _, event in poll.poll(0))
        if is_left:
            os.close(self.pipe)
            self.pipe = None
        return is_left

    def release(self):
        """Let the reader go on, and those to come never wait."""
        whole = self.path.with_name("whole")
        whole.write_bytes(self.text)
        whole.replace(self.path)
        if self.pipe is not None:
            os.write(self.pipe, self.text)
            os.close(self.pipe)
            self.pipe = None


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
