r"""What launchers, collectors and loggers put in front of a line, in any stacking.

Understood: `[rank3]:` (torch, the global rank), `[1,3]<stderr>:` (mpirun), `3: ` (srun --label), `[default3]:`
(torchrun, the local rank), `[host|3]:` (host and local rank), `(RayTrainWorker pid=12, ip=192.0.2.1)`, `host [stderr]
`, `container | ` (Compose), `[pod/name/container] ` (kubectl), `host: ` (pdsh, in front of another prefix), times
(ISO 8601, Python's logging, syslog with host and tag, `dmesg` and `dmesg -T`, Kubernetes' `stderr F`), glog heads
`[E626 10:42:17.101223001 file.cpp:632]` (month unpadded, no year) and `[E file.cpp:475]`, `W1129 17:48:28.504 24309
x.py:1]`, levels, NCCL's `host:pid:thread`, Docker's `{"log":"..."}`, colours. A progress bar or half a line glued in
front of `[rank3]:`, of a glog head or of an NCCL line is cut off there; lines glued together are cut apart there.

`[rankN]` is the global rank (torch 2.3 on); `[Rank N]` in a message is the rank in the group and no prefix.
"""

from __future__ import annotations

import functools
import json
import re
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from roundk.analyze.sources.joblog import clock
from roundk.analyze.sources.joblog.events import MOST_RANK

_COLOURS: Final = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])|\x00")
_GLOG: Final = (
    r"(?P<level>[IWEF])(?:(?P<gyear>20\d\d)?(?P<gmonth>0?[1-9]|1[0-2])(?P<gday>[0-3]\d) "
    r"(?P<ghour>\d\d):(?P<gminute>\d\d):(?P<gsecond>\d\d)\.(?P<gfraction>\d{1,9}))?(?: +\d+)? *"
    r"(?P<file>[\w./+-]+\.\w+):\d+\] ?"
)
_SYSLOG: Final = (
    r"(?P<sname>[A-Z][a-z]{2}) {1,2}(?P<sday>\d{1,2}) (?P<shour>\d\d):(?P<sminute>\d\d):(?P<ssecond>\d\d)"
    r"(?:\.(?P<sfraction>\d{1,9}))? "
)
_TAG: Final = r"(?P<loghost>[\w.-]+) (?:kernel|[\w./-]+\[\d+\]|[\w./-]*slurm[\w./-]*): ?"
_LONG: Final = (
    r"\[?[A-Z][a-z]{2} (?P<lname>[A-Z][a-z]{2}) {1,2}(?P<lday>\d{1,2}) (?P<lhour>\d\d):(?P<lminute>\d\d):"
    r"(?P<lsecond>\d\d) (?P<lyear>\d{4})\]? ?"
)
_ACTOR: Final = (
    r"\((?P<actor>[\w.:()/-]+)(?: rank=(?P<actor_rank>\d{1,8}))?,? pid=(?P<actor_pid>\d{1,10})"
    r"(?:, ip=(?P<ip>[^)\s]+))?\) ?"
)
_ANOTHER: Final = r"(?=\[? *\d|\[rank|\[[IWEF]|<\d|[A-Z][a-z]{2} |[\w.-]+:\d+:\d+ \[|\(\w|NVRM|slurmstepd: |mlx5_)"
_PREFIX: Final = re.compile(
    "|".join(
        (
            r"\[rank(?P<rank>\d{1,8})\]:? ?",
            r"\[(?:[\w.@-]*@)?\d+,(?P<mpi>\d{1,8})\]<std(?:out|err|diag)>: ?",
            rf"\[?{clock.FULL}\]?(?:[ ,:-]+| *$)",
            _LONG,
            _SYSLOG,
            r"\[?(?P<epoch>1\d{9})\.(?P<epoch_fraction>\d{3,9})\]? ",
            r"\[ *(?P<uptime>\d{1,10}\.\d{6})\](?:\[ *[TC]\d+\])? ?",
            r"std(?:out|err) [FP] ",
            _TAG,
            r"(?P<nccl_host>[\w.-]+):(?P<nccl_pid>\d{1,10}):\d{1,10} (?=\[|NCCL )",
            rf"\[?{_GLOG}",
            _ACTOR,
            r"\[(?P<local_host>[\w.-]+)\|(?P<host_local>\d{1,8})\]: ?",
            r"\[[A-Za-z_]\w*?(?P<local>\d{1,8})\]: ?",
            r"(?P<stream>[\w.-]+) \[std(?:out|err)\] ",
            r"(?P<service>[\w.-]+) +\| ",
            r"\[(?P<pod>pod/[\w./-]+)\] ?",
            r"<\d{1,3}>",
            r"\[\d{1,10}\] ",
            r"\d\d:\d\d:\d\d(?:[.,]\d{1,9})? ",
            r"\[?(?:ERROR|WARNING|WARN|INFO|DEBUG|CRITICAL|FATAL)\]?(?::| -|(?= ))\s?",
            r" {0,7}(?P<task>\d{1,8}): ?",
            rf"(?P<shell_host>[a-zA-Z](?=[\w.-]{{0,99}}[\d-])[\w.-]{{1,99}}): {_ANOTHER}",
        )
    ),
    re.ASCII,
)
_HARD: Final = re.compile(
    r"\[rank\d{1,8}\]:|\[[IWEF](?:20\d\d)?\d{3,4} \d\d:\d\d:\d\d\.\d+ |\[[IWEF] [\w./+-]+\.\w+:\d+\]"
    r"|(?<![\w.-])[\w.-]+:\d{1,10}:\d{1,10} (?:\[\d+\] )?(?=[^\[\n]{0,80}NCCL (?:INFO|WARN))",
    re.ASCII,
)
"""Heads that begin a line of their own wherever they stand."""
_MAY_TELL: Final = re.compile(r"\d\d:\d\d|\d{10}\.", re.ASCII)
"""What every time has in it: to read the prefixes of a line takes a hundred times as long."""
_DOCKER: Final = '{"log":"'
_MOST_PREFIXES: Final = 16


class Head(NamedTuple):
    """What a line's prefixes say of it.

    Attributes:
        rank: Global rank.
        launcher: Number that mpirun or srun gave the process; the rank where one task is one rank.
        local: Local rank on its host.
        host: Host name or address.
        pid: Process id.
        label: Another name of the stream that the line belongs to: a container, a pod, an actor.
        time: Time without a zone, the innermost one.
        zoned: Time with a zone.
        uptime: Seconds since the host was started, as the kernel prints them.
        file: Source file that glog names.
    """

    rank: int | None = None
    launcher: int | None = None
    local: int | None = None
    host: str | None = None
    pid: int | None = None
    label: str | None = None
    time: clock.Stamp | None = None
    zoned: clock.Stamp | None = None
    uptime: str | None = None
    file: str | None = None

    @property
    def at(self) -> clock.Stamp | None:
        """The time to believe: one with a zone is never off by hours."""
        return self.zoned or self.time

    @property
    def stream(self) -> tuple[object, ...]:
        """What lines of one process have in common."""
        return self[:6]

    @property
    def outer(self) -> tuple[object, ...]:
        """The same of the further lines of one message: torch puts its rank before the first only."""
        return self[1:6]


NOTHING: Final = Head()


def split(text: str, lead: str = "") -> list[tuple[Head, str]]:
    """Cut a line into what each process printed of it, prefixes apart.

    Args:
        text: The line.
        lead: What stands before it in the same line of the file (a progress bar that was drawn over), for its prefixes.
    """
    text = plain(text)
    outer = strip(plain(lead), NOTHING)[0] if lead else NOTHING
    head, begin = strip(text, outer)
    parts: list[tuple[Head, str]] = []
    for match in _HARD.finditer(text, begin):
        if match.start() < begin:
            continue
        if match.start() > begin:
            parts.append((head, text[begin : match.start()]))
        head, begin = strip(text, outer._replace(host=outer.host or head.host), match.start())
    parts.append((head, text[begin:]))
    return parts


def plain(text: str) -> str:
    """A line without colours and NULs, out of Docker's wrapping."""
    if "\x1b" in text or "\x00" in text:
        text = _COLOURS.sub("", text)
    if text.startswith(_DOCKER):
        text = _unwrap(text)
    return text.rstrip()


def last_time(text: str) -> clock.Stamp | None:
    """The time of the last line that has one in front: a date anywhere in a line may be any date."""
    return next((at for line in reversed(text.split("\n")) if (at := _time_in_front(line)) is not None), None)


@functools.lru_cache(maxsize=1024)
def _time_in_front(line: str) -> clock.Stamp | None:
    """The time of one line. What stands before a line stands before the next ones too: it is asked for again soon."""
    return None if _MAY_TELL.search(line) is None else strip(plain(line), NOTHING)[0].at


def strip(text: str, head: Head, begin: int = 0) -> tuple[Head, int]:
    """Read the prefixes that stand at a place of a line: what they say, and where they end."""
    for _ in range(_MOST_PREFIXES):
        match = _PREFIX.match(text, begin)
        if match is None or match.end() == begin:
            break
        head, begin = _with(head, match), match.end()
    return head, begin


def _with(head: Head, match: re.Match[str]) -> Head:
    found = {name: value for name, value in match.groupdict().items() if value is not None}
    named: dict[str, Any] = {name: value for name, value in _named(found).items() if value is not None}
    return head._replace(**named) if named else head


def _named(found: dict[str, str]) -> dict[str, object]:
    get = found.get
    time = _time(found)
    is_zoned = time is not None and time.offset_s is not None
    return {
        "rank": _number(get("rank") or get("actor_rank")),
        "launcher": _number(get("mpi") or get("task")),
        "local": _number(get("local") or get("host_local")),
        "host": get("nccl_host") or get("loghost") or get("ip") or get("local_host") or get("shell_host"),
        "pid": _number(get("nccl_pid") or get("actor_pid"), 1 << 31),
        "label": get("pod") or get("service") or get("stream") or get("actor"),
        "time": None if is_zoned else time,
        "zoned": time if is_zoned else None,
        "uptime": get("uptime"),
        "file": get("file"),
    }


def _time(found: dict[str, str]) -> clock.Stamp | None:
    if "year" in found:
        return clock.stamp(dict(found))
    if "epoch" in found:
        return _of_epoch(int(found["epoch"]), found["epoch_fraction"])
    for letter in "gsl":  # glog, syslog, long
        if f"{letter}hour" in found:
            return clock.stamp({name[1:]: value for name, value in found.items() if name[0] == letter})
    return None


def _of_epoch(seconds: int, fraction: str) -> clock.Stamp:
    day = datetime.fromtimestamp(seconds, tz=UTC)
    return clock.Stamp(day.year, day.month, day.day, day.hour, day.minute, day.second, int(fraction.ljust(9, "0")), 0)


def _number(digits: str | None, most: int = MOST_RANK) -> int | None:
    return int(digits) if digits is not None and int(digits) < most else None


@functools.lru_cache(maxsize=4)
def _unwrap(text: str) -> str:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return text[len(_DOCKER) :]  # cut short: what is left of it is still a line
    log, time = line.get("log"), line.get("time")
    return f"{time} {log}" if isinstance(log, str) and isinstance(time, str) else str(log)
