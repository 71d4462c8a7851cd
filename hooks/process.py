"""The recorder's life in one process: opened with the first process group, gone in a forked child, closed at exit."""

from __future__ import annotations

import atexit
import os
import threading
from typing import TYPE_CHECKING

from roundk.hooks import early, exceptions, failsafe, goodbye, kernels, methods, pseudo, steps, works
from roundk.hooks.recorder import Recorder

if TYPE_CHECKING:
    from roundk.hooks.config import Config
    from roundk.hooks.stacks import Stacks


class Process:
    """Holds this process's recorder; there is one of these."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.recorder: Recorder | None = None
        self.pending = works.Pending()
        self._lock = threading.Lock()
        self._why_off = ""
        self._over = False
        self._of_parent: Recorder | None = None
        self._forking: Stacks | None = None

    def open(self) -> Recorder | None:
        """The recorder, opened now if torch has a default group; None where it has none, or after an error of ours."""
        import torch.distributed as dist

        return self.open_as(dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else None

    def open_as(self, rank: int, world_size: int) -> Recorder | None:
        """The recorder of a rank; None after an error of ours and after the end.

        A process that became another rank starts anew.
        """
        if failsafe.errors or self._over:
            return None
        with self._lock:
            if self.recorder is not None and self.recorder.rank != rank:
                self.close()
            if self.recorder is None:
                recorder = self.recorder = Recorder(self.config, rank, world_size, self.pending)
                goodbye.arm(recorder.exit_file)
                if failsafe.errors:  # its own thread failed before it was known here
                    self.switch_off(self._why_off)
            return self.recorder

    def current(self) -> Recorder | None:
        """The recorder, opened where it can be and is not."""
        return self.recorder or self.open()

    def stepped(self) -> None:
        """Note the end of a training step."""
        if self.recorder is not None:
            self.recorder.stepped()

    def switch_off(self, reason: str) -> None:
        """Stop recording after an error of ours."""
        self._why_off = reason
        recorder, self.recorder = self.recorder, None
        if recorder is not None:
            recorder.switch_off(reason)
        early.note(self.config.run, "off", why=reason)

    def forked(self) -> None:
        """In a forked child: the parent's files are the parent's, and its thread did not come along.

        The parent's recorder is kept as it is: to destroy its events would call a device that did not come along.
        """
        recorder, self.recorder = self.recorder, None
        self._of_parent = recorder
        self._over = False
        self.pending.in_child()
        methods.in_child()
        self._lock = threading.Lock()
        if recorder is not None and recorder.stacks is not None:
            recorder.stacks.in_child()

    def before_fork(self) -> None:
        """In the parent: leave nothing that a child must not have."""
        stacks = self.recorder.stacks if self.recorder is not None else None
        if stacks is not None:
            stacks.before_fork()
            self._forking = stacks

    def after_fork(self) -> None:
        """In the parent: go on."""
        stacks, self._forking = self._forking, None
        if stacks is not None:
            stacks.after_fork()

    def close(self) -> None:
        """Stop recording in order."""
        recorder, self.recorder = self.recorder, None
        if recorder is not None:
            recorder.close()

    def end(self) -> None:
        """Stop recording for good: a thread that still makes calls while the interpreter shuts down is not recorded."""
        self._over = True
        self.close()


def install(config: Config) -> None:
    """Hook torch.distributed, the optimizers, uncaught exceptions, fork and exit of this process."""
    process = Process(config)
    failsafe.on_error(process.switch_off)
    kernels.install(process)
    methods.install(process.pending)
    works.patch_wait(process.pending)
    pseudo.install(process)
    steps.install(process.stepped)
    exceptions.install(process)
    goodbye.install()
    os.register_at_fork(
        before=failsafe.guard(process.before_fork),
        after_in_parent=failsafe.guard(process.after_fork),
        after_in_child=failsafe.guard(process.forked),
    )
    atexit.register(failsafe.guard(process.end))
