"""`roundk run`: starts the user's command with the recorder in its environment, and watches from outside.

The command runs as if roundk were not there: same directory, same streams, same signals, and its exit code is ours.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

from roundk.hooks import config, failsafe, sampling, site, tee, unrecorded, watch
from roundk.tracer import rundir, words
from roundk.tracer.environment import host_versions

if TYPE_CHECKING:
    from collections.abc import Sequence

LOOK_S = 0.25
"""Between two looks at the processes: a stop is dated this late at most, and a zombie may be missed in between."""
_GONE_S = 2.0
"""How long to wait for ranks to be gone after the command is."""
_SILENCE_S = 60.0
"""So long after the start a job with torch and without one recorded rank is told about: longer than most jobs take."""
_FORWARDED = frozenset(
    {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM}
)
_NOTICED = frozenset({signal.SIGCHLD, signal.SIGWINCH})
"""What ends the wait for the next look early: the command may have ended, the terminal has another size."""
_FROM_KERNEL = 0x80
"""`si_code` SI_KERNEL: from a terminal, to the whole foreground group, so the command has it too. sigaction(2)."""


def run(
    command: Sequence[str],
    directory: str | None,
    max_mb: int,
    stall_s: float,
    *,
    logs: bool = True,
    sysfs_root: str | None = "/sys",
    nccl_debug: str | None = None,
) -> int:
    """Run a command recorded, and give its exit code (128 + number after a signal; 127, 126: it did not start).

    Args:
        command: The command line.
        directory: Run directory; None: a new one, see `default_directory`.
        max_mb: MiB of disk for one rank's rows.
        stall_s: Seconds after which a stall makes a rank write its stacks.
        logs: Keep stdout and stderr beside the trace.
        sysfs_root: Sample the counters of links that are found under this directory; None: none.
        nccl_debug: Have NCCL write its log of this level (WARN, INFO) beside the trace.
    """
    failsafe.guard(tee.hold_closed_streams)()
    launcher = failsafe.guard(_made)(directory, max_mb, stall_s, command)
    environment = failsafe.guard(launcher.environment)(nccl_debug) if launcher else None
    return _started(command, environment or dict(os.environ), launcher, logs=logs, sysfs_root=sysfs_root)


def _made(directory: str | None, max_mb: int, stall_s: float, command: Sequence[str]) -> _Launcher | None:
    found = config.Config(os.path.abspath(directory or default_directory()), max_mb, stall_s, rundir.told_host_name())
    try:
        return _Launcher(found, command)
    except OSError as error:
        failsafe.warn(f"{found.run} cannot be written, the command runs unrecorded: {error}")
        return None


def default_directory() -> str:
    """Where a run is recorded when the user names no place: a new folder under the working directory."""
    return os.path.join("roundk-runs", f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")


def _started(
    command: Sequence[str],
    environment: dict[str, str],
    launcher: _Launcher | None,
    *,
    logs: bool,
    sysfs_root: str | None,
) -> int:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED | _NOTICED)

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    if launcher and logs:
        failsafe.guard(launcher.keep_logs)()
    if launcher and sysfs_root:
        failsafe.guard(launcher.sample_links)(sysfs_root)
    streams = failsafe.guard(launcher.streams)() if launcher else None
    stdout, stderr = streams or (None, None)
    try:
        child = subprocess.Popen(
            command,
            env=environment,
            stdout=stdout,
            stderr=stderr,
            close_fds=False,  # what we were given, as `--config <(...)` of bash, is for the command
            preexec_fn=unblock,  # noqa: PLW1509 - one thread here
        )
    except OSError as error:
        failsafe.warn(f"{command[0]}: {error.strerror}")
        code = 127 if isinstance(error, FileNotFoundError) else 126
    else:
        code = _wait(child, launcher)
    if launcher:
        failsafe.guard(launcher.finish)(code)
        failsafe.guard(launcher.stop_sampling)()
    return code if code >= 0 else 128 - code


def _wait(child: subprocess.Popen[bytes], launcher: _Launcher | None) -> int:
    if launcher:
        failsafe.guard(launcher.started)(child.pid)
    look = failsafe.guard(launcher.look if launcher else _nothing)
    while (code := child.poll()) is None:
        received = signal.sigtimedwait(_FORWARDED | _NOTICED, LOOK_S)
        if received is not None and received.si_signo in _FORWARDED and received.si_code != _FROM_KERNEL:
            _forward(child, received.si_signo)
            if launcher:
                failsafe.guard(launcher.forwarded)(received.si_signo)
        look()
    return code


def _forward(child: subprocess.Popen[bytes], number: int) -> None:
    try:
        child.send_signal(number)
    except PermissionError as error:  # `sudo` as the command
        failsafe.warn(f"{signal.Signals(number).name} cannot be passed on to the command: {error.strerror}")


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
                "versions": host_versions(),
            }
        )
        self._folder = folder
        self._watch = watch.Watch(folder, self._file)
        self._tee: tee.Tee | None = None
        self._sampler: sampling.LinkSampler | None = None
        self._pid: int | None = None
        self._descendants: unrecorded.Descendants | None = None
        self._silent_until = time.monotonic() + _SILENCE_S

    def keep_logs(self) -> None:
        """Have the job's stdout and stderr kept beside the trace."""
        try:
            self._tee = tee.Tee(self._folder, str(os.getpid()))
        except OSError as error:
            failsafe.warn(f"the job's output is not kept: {error}")
            return
        for log in self._tee.describe():
            self._append("log", **log)

    def sample_links(self, sysfs_root: str) -> None:
        """Have the counters of this host's links sampled."""
        try:
            self._sampler = sampling.LinkSampler(self._folder, sysfs_root)
        except OSError as error:
            failsafe.warn(f"the counters of links are not recorded: {error}")

    def stop_sampling(self) -> None:
        """End the sampler."""
        if self._sampler:
            self._sampler.finish()

    def streams(self) -> tuple[int | None, int | None]:
        """The command's stdout and stderr; None: ours."""
        return (self._tee.job_end(1), self._tee.job_end(2)) if self._tee else (None, None)

    def started(self, pid: int) -> None:
        """Let go of what the command now has."""
        self._pid = pid
        self._descendants = unrecorded.Descendants(pid, self._site)
        if self._tee:
            self._tee.started()

    def environment(self, nccl_debug: str | None) -> dict[str, str]:
        """The command's environment."""
        environment = dict(os.environ)
        environment |= self._config.variables()
        behind = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join([self._site, *([behind] if behind else [])])
        if nccl_debug:
            self._set_nccl_debug(environment, nccl_debug)
        return environment

    def _set_nccl_debug(self, environment: dict[str, str], level: str) -> None:
        wanted = {"NCCL_DEBUG": level, "NCCL_DEBUG_FILE": os.path.join(self._folder, "nccl-%h-%p.log")}
        for name, value in wanted.items():
            if name in environment:
                failsafe.warn(f"{name}={environment[name]} is set: it stays, --nccl-debug does not change it")
            else:
                environment[name] = value

    def look(self) -> None:
        self._file.renew(time.time_ns())
        self._watch.look()
        if self._tee:
            self._tee.look()
        if self._sampler and self._sampler.is_gone():
            self._append("links_lost")
            failsafe.warn("the counters of links are no longer recorded; the job goes on")
        if self._descendants and not self._watch.seen:
            self._look_for_reasons(self._descendants)

    def _look_for_reasons(self, descendants: unrecorded.Descendants) -> None:
        descendants.look()
        if time.monotonic() > self._silent_until and descendants.torch_loaded:
            self._silent_until = math.inf
            self._tell_reasons(f"no rank is recorded yet, {_SILENCE_S:.0f} s after the start", descendants)

    def _tell_reasons(self, what: str, descendants: unrecorded.Descendants) -> None:
        first, *others = descendants.explain()
        failsafe.warn(f"{what}: {first}")
        for reason in others:
            failsafe.warn(f"and {reason}")

    def forwarded(self, number: int) -> None:
        self._append("signal", number=number, name=signal.Signals(number).name)

    def finish(self, code: int) -> None:
        """Note the end of the command, when its ranks are gone or have had time to go."""
        if self._pid is not None:
            self._append("exit", pid=self._pid, code=code)
        until = time.monotonic() + _GONE_S
        while self._watch.look() and time.monotonic() < until:
            time.sleep(LOOK_S / 5)
        self._append("end", code=code)
        self._file.renew(time.time_ns())
        shutil.rmtree(self._site, ignore_errors=True)
        if self._tee:
            self._tee.started()  # where the command did not start
            self._tee.finish()
        self._tell(code)

    def _append(self, kind: str, **fields: Any) -> None:
        self._file.append({"kind": kind, "time_ns": time.time_ns(), **fields})

    def _tell(self, code: int) -> None:
        where = os.path.relpath(self._config.run)
        if where.startswith(".."):
            where = self._config.run
        seen, left = self._watch.seen, self._watch.left()
        if not seen:
            if self._descendants:
                self._tell_reasons(f"no rank was recorded in {where}", self._descendants)
            return
        if left < seen:
            failsafe.warn(f"{seen - left} of {seen} rank(s) left nothing in {where}: is its disk full, was it removed?")
        if code:
            failsafe.warn(f"the command ended with {_how(code)}; `roundk analyze {where}` says why")
        elif left:
            failsafe.warn(f"recorded {left} rank(s) in {where}")


def _how(code: int) -> str:
    return f"exit code {code}" if code > 0 else f"signal {-code} ({signal.Signals(-code).name})"
