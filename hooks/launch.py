"""`roundk run`: starts the user's command with the recorder in its environment, and watches from outside.

The command runs as if roundk were not there: same directory, same streams, same signals, and its exit code is ours.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

from roundk.hooks import config, failsafe, site, watch
from roundk.tracer import rundir, words

if TYPE_CHECKING:
    from collections.abc import Sequence

LOOK_S = 0.25
"""Between two looks at the processes: a stop is dated this late at most, and a zombie may be missed in between."""
_GONE_S = 2.0
"""How long to wait for ranks to be gone after the command is."""
_FORWARDED = frozenset(
    {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM}
)
_FROM_KERNEL = 0x80
"""`si_code` SI_KERNEL: from a terminal, to the whole foreground group, so the command has it too. sigaction(2)."""


def run(command: Sequence[str], directory: str | None, max_mb: int, stall_s: float) -> int:
    """Run a command recorded, and give its exit code (128 + number after a signal; 127, 126: it did not start)."""
    found = config.Config(os.path.abspath(directory or default_directory()), max_mb, stall_s)
    try:
        launcher: _Launcher | None = _Launcher(found, command)
    except OSError as error:
        failsafe.warn(f"{found.run} cannot be written, the command runs unrecorded: {error}")
        launcher = None
    environment = launcher.environment() if launcher else dict(os.environ)
    return _started(command, environment, launcher)


def default_directory() -> str:
    """Where a run is recorded when the user names no place: a new folder under the working directory."""
    return os.path.join("roundk-runs", f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")


def _started(command: Sequence[str], environment: dict[str, str], launcher: _Launcher | None) -> int:
    waited = _FORWARDED | {signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    try:
        child = subprocess.Popen(command, env=environment, preexec_fn=unblock)  # noqa: PLW1509 - one thread here
    except OSError as error:
        failsafe.warn(f"{command[0]}: {error.strerror}")
        code = 127 if isinstance(error, FileNotFoundError) else 126
    else:
        code = _wait(child, waited, launcher)
    if launcher:
        failsafe.guard(launcher.finish)(code)
    return code if code >= 0 else 128 - code


def _wait(child: subprocess.Popen[bytes], waited: frozenset[signal.Signals], launcher: _Launcher | None) -> int:
    look = failsafe.guard(launcher.look if launcher else _nothing)
    while (code := child.poll()) is None:
        received = signal.sigtimedwait(waited, LOOK_S)
        if received is not None and received.si_signo != signal.SIGCHLD and received.si_code != _FROM_KERNEL:
            child.send_signal(received.si_signo)
            if launcher:
                failsafe.guard(launcher.forwarded)(received.si_signo)
        look()
    return code


def _nothing() -> None:
    """There is nothing to look at where nothing is recorded."""


class _Launcher:
    """The launcher's side of a run: its file, the folder on PYTHONPATH, the watch over the ranks."""

    def __init__(self, found: config.Config, command: Sequence[str]) -> None:
        self._config = found
        folder = rundir.prepare(found.run)
        self._site = os.path.join(folder, f"site-{os.getpid()}")
        site.make(self._site, found)
        self._file = rundir.LineFile(os.path.join(folder, f"launcher-{os.getpid()}.jsonl"))
        self._file.append(
            {
                "kind": "start",
                "schema": words.SCHEMA_VERSION,
                "time_ns": time.time_ns(),
                "monotonic_ns": time.monotonic_ns(),
                "host": rundir.host_name(),
                "host_full": rundir.full_host_name(),
                "pid": os.getpid(),
                "command": list(command),
            }
        )
        self._watch = watch.Watch(folder, self._file)

    def environment(self) -> dict[str, str]:
        """The command's environment."""
        environment = dict(os.environ)
        environment |= self._config.variables()
        behind = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join([self._site, *([behind] if behind else [])])
        return environment

    def look(self) -> None:
        self._file.renew(time.time_ns())
        self._watch.look()

    def forwarded(self, number: int) -> None:
        self._append("signal", number=number, name=signal.Signals(number).name)

    def finish(self, code: int) -> None:
        """Note the end of the command, when its ranks are gone or have had time to go."""
        until = time.monotonic() + _GONE_S
        while self._watch.look() and time.monotonic() < until:
            time.sleep(LOOK_S / 5)
        self._append("end", code=code)
        self._file.renew(time.time_ns())
        shutil.rmtree(self._site, ignore_errors=True)
        self._tell(code)

    def _append(self, kind: str, **fields: Any) -> None:
        self._file.append({"kind": kind, "time_ns": time.time_ns(), **fields})

    def _tell(self, code: int) -> None:
        where = os.path.relpath(self._config.run)
        if where.startswith(".."):
            where = self._config.run
        if not self._watch.seen:
            failsafe.warn(
                f"no rank was recorded in {where}: no process of this command made a torch.distributed group, or "
                "Python was started with -I or -E, or without our PYTHONPATH"
            )
        elif code:
            failsafe.warn(f"the command ended with {_how(code)}; `roundk analyze {where}` says why")
        else:
            failsafe.warn(f"recorded {self._watch.seen} rank(s) in {where}")


def _how(code: int) -> str:
    return f"exit code {code}" if code > 0 else f"signal {-code} ({signal.Signals(-code).name})"
