"""The sampler of this host's links beside the command: a process of its own, forked from the launcher.

A thread of the launcher would be stopped with it (Ctrl-Z stops the whole group, and then a driver's hanging file would
keep the launcher from leaving), and the launcher must have one thread when it forks the command. A new interpreter
costs 35 ms and more of CPU to start; the fork takes 1 to 5 ms, and shares the launcher's memory.

It is not niced: it needs a few thousandths of a core, and to wait for one would blur its times when the host is busy,
which is when they matter. It has a session of its own, none of the launcher's descriptors, and leaves when the
launcher does, whatever way that goes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

from roundk.hooks import failsafe, tee

_LEAVE_S = 0.5
"""To write its last line; a sampler that is held up by a driver is left to end by itself."""
_POLL_S = 0.005


class LinkSampler:
    """The launcher's hold on the sampler."""

    def __init__(self, folder: str, sysfs_root: str) -> None:
        """Start it.

        Args:
            folder: The host's folder in the run directory.
            sysfs_root: Where /sys is.

        Raises:
            OSError: it cannot be started.
        """
        stop, self._hold = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            try:
                failsafe.guard(_be_sampler)(folder, sysfs_root, stop)
            finally:
                os._exit(0)
        os.close(stop)

    def is_gone(self) -> bool:
        """Whether it has ended by itself; told once."""
        if not self._pid:
            return False
        with contextlib.suppress(ChildProcessError):
            if not os.waitpid(self._pid, os.WNOHANG)[0]:
                return False
        self._pid = 0
        return True

    def finish(self) -> None:
        """End it, and wait a little for its last line."""
        os.close(self._hold)
        until = time.monotonic() + _LEAVE_S
        while self._pid and not self.is_gone():
            if time.monotonic() > until:
                os.kill(self._pid, signal.SIGKILL)
                return
            time.sleep(_POLL_S)


def _be_sampler(folder: str, sysfs_root: str, stop: int) -> None:
    os.setsid()
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    tee.close_others({0, 1, 2, stop})
    from roundk.tracer import links

    sampler = links.Sampler(folder, sysfs_root=sysfs_root)
    why: str | None = "an error of roundk"
    try:
        sampler.run(stop)
        why = None
    except OSError as error:
        why = str(error)
    finally:
        sampler.close(why)
