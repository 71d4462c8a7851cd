"""Of which host and when: what a path, a header line or a prompt in the text tells.

Times: a `date` line, an ISO time or seconds since 1970 on a line of its own, nvidia-smi's `Timestamp`; else a time in
the path; else the file's own. Hosts: a prompt (`root@node7:~#`), `uname -a`, a `hostname:` line; else a directory or a
file name that looks like a host; else a directory that is no common word.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import Final

from roundk.analyze.phrases import NS_PER_S
from roundk.analyze.sources.rows import decimal, named_time, told_time

_COMMON: Final = re.compile(
    r"(?:before|after|pre|post|begin|start|end|stop|first|last|early|late|initial|final|baseline|hang|job|run|attempt"
    r"|snap(?:shot)?s?|samples?|counters?|evidence|logs?|dumps?|diag|debug|t|step|round|nccl|rank|collect(?:ed)?)[-_.]?\d*"
    r"|sys|proc|class|devices|virtual|net|infiniband|hosts?|nodes?|data|tmp|var|out|output|results?|nvidia_smi"
    r"|hang_detector|network|links?",
    re.IGNORECASE,
)
_TOOL: Final = re.compile(
    r"(?:^|(?<=[-_.]))(?:ethtool|ip|link|links|ibstat|ibstatus|perfquery|nvidia-smi|nvidia_smi|nvidia|smi|nvlink|nvsmi"
    r"|dcgm|dcgmi|dmon|xid|ecc|snmp|netstat|proc|net|sysfs|sys|stats?|status|counters?|before|after|pre|post|start|end"
    r"|begin|snapshot|snap|txt|log|out|json|gz|zst|prom|eth\d+|en[opsx][a-z0-9]*\d[a-z0-9]*|ib\d+|ibs\d+[a-z0-9]*|bond\d+|roce\d*"
    r"|mlx\d_\d+|[STQes]|all|\d+)(?=[-_.]|$)",
    re.IGNORECASE,
)
_HOST: Final = re.compile(r"(?:[A-Za-z][A-Za-z0-9.-]{0,60}\d[A-Za-z0-9.-]{0,40}|\d{1,3}(?:[.-]\d{1,3}){3})")
_NODE_ADDRESS: Final = re.compile(r"^node_(\d{1,3}(?:\.\d{1,3}){3})(?:\.|$)")
_DEVICE: Final = re.compile(
    r"(?:^|[-_.])(eth\d+|en[opsx][a-z0-9]*\d[a-z0-9]*|ib\d+|ibs\d+[a-z0-9]*|bond\d+|mlx\d_\d+|mlx\d_bond_\d+)(?=[-_.]|$)",
    re.IGNORECASE,
)
_DATE: Final = re.compile(
    r"^(?:Timestamp\s*: )?[A-Z][a-z]{2} (?:([A-Z][a-z]{2}) +(\d{1,2})|(\d{1,2}) ([A-Z][a-z]{2}) (\d{4})) "
    r"(\d\d):(\d\d):(\d\d)(?: ([AP]M))?(?: ([A-Z]{2,5}|[+-]\d\d(?::?\d\d)?))?(?: (\d{4}))?$"
)
_ISO: Final = re.compile(
    r"^(?:#+ |=+ |-+ |time(?:stamp)?[:=] ?)?(20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)"
    r" ?(Z|UTC|[+-]\d\d:?\d\d)?(?: [#=-]+)?$",
    re.IGNORECASE,
)
_EPOCH: Final = re.compile(r"^(?:#+ |time(?:stamp)?[:=] ?)?(1[5-9]\d{8})(?:[.,](\d{1,9}))?$", re.IGNORECASE)
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_PROMPT: Final = re.compile(r"^\[?[\w.-]{1,32}@([A-Za-z0-9][\w.-]{0,60})[: ][^#$]{0,120}[#$] ?(.{0,200})$")
_UNAME: Final = re.compile(r"^Linux (\S{1,64}) \d+\.\d+\S* #\d")
_HOSTNAME: Final = re.compile(
    r"^(?:#+ |=+ )?(?:host(?:name)?|node)(?:[:=] ?| )([A-Za-z0-9][\w.-]{0,63})(?: [#=]+)?$", re.IGNORECASE
)
_COMMAND: Final = re.compile(r"^(?:\$|\#|\+|>) (.{1,200})$")
_ETHTOOL: Final = re.compile(r"ethtool (?:-S|--statistics) (\S{1,64})|perfquery .{0,60}?-C (\S{1,64})")


def of_path(name: str) -> tuple[str | None, int | None, bool]:
    """Host and time of an input by its name, and whether the time says UTC."""
    name = re.sub(r"\.(tar|tgz|zip)(\.\w{1,4})?!", "!", name)
    when, is_utc = named_time(name)
    parts = [part for part in re.split(r"[/!]", name) if part]
    if not parts:
        return None, when, is_utc
    address = _NODE_ADDRESS.match(parts[-1])
    if address is not None:
        return address[1], when, is_utc
    folders = [part for part in parts[:-1] if not _COMMON.fullmatch(part) and not _is_time(part)]
    for part in reversed(folders):
        host = _HOST.fullmatch(part)
        if host is not None and not _DEVICE.fullmatch(part):
            return host[0], when, is_utc
    rest = _without_words(parts[-1])
    host = _HOST.fullmatch(rest)
    if host is not None:
        return host[0], when, is_utc
    return (folders[-1] if folders else None), when, is_utc


def _is_time(part: str) -> bool:
    return named_time(part)[0] is not None or part.isdigit()


def _without_words(part: str) -> str:
    part = re.sub(r"20\d\d-?\d\d-?\d\d(?:[T_ -]?\d\d[-:]?\d\d[-:]?\d\d(?:[.,]\d+)?Z?)?|1[5-9]\d{8,17}", "", part)
    return re.sub(r"[-_.]{2,}", "_", _TOOL.sub("", part)).strip("-_.")


def device_of_name(name: str) -> str | None:
    """The network device in a file's name, for outputs that do not print theirs."""
    found = _DEVICE.search(re.split(r"[/!]", name)[-1])
    return None if found is None else found[1]


class Headers:
    """Reads the lines that say when and where what follows was taken.

    Attributes:
        time_ns: The last time told.
        host: The last host told.
        device: Device of the last command told.
        is_zone_known: Whether all times told had a zone that is known.
    """

    def __init__(self) -> None:
        self.time_ns: int | None = None
        self.host: str | None = None
        self.device: str | None = None
        self.is_zone_known = True

    def take(self, text: str) -> bool:
        """Take a line; False: it is no such line."""
        if not text or text[0].isspace():
            return False
        prompt = _PROMPT.match(text)
        if prompt is not None:
            self.host = prompt[1]
            self._command(prompt[2])
            return True
        named = _UNAME.match(text) or _HOSTNAME.match(text)
        if named is not None:
            self.host = named[1]
            return True
        if "ethtool" in text or "perfquery" in text:
            command = _COMMAND.match(text)
            self._command(command[1] if command else text)
            return command is not None
        return self._time(text)

    def _command(self, text: str) -> None:
        found = _ETHTOOL.search(text)
        if found is not None:
            self.device = found[1] or found[2]

    def _time(self, text: str) -> bool:
        epoch = _EPOCH.match(text)
        if epoch is not None:
            self.time_ns = int(epoch[1]) * NS_PER_S + int((epoch[2] or "").ljust(9, "0"))
            return True
        iso = _ISO.match(text)
        if iso is not None:
            when = told_time(iso[1])
            if when is not None:
                self.time_ns = when - (self._offset(iso[2]) or 0)
            return when is not None
        date = _DATE.match(text)
        if date is None:
            return False
        when = _of_date(date)
        if when is not None:
            self.time_ns = when - (self._offset(date[10]) or 0)
        return when is not None

    def _offset(self, zone: str | None) -> int | None:
        """Nanoseconds east of Greenwich; a zone that is not told or not known is read as UTC."""
        if zone is not None and zone.upper() in {"Z", "UTC", "GMT"}:
            return 0
        if zone is None or zone[0] not in "+-":
            self.is_zone_known = False
            return None
        digits = zone[1:].replace(":", "").ljust(4, "0")
        seconds = (decimal(digits[:2]) or 0) * 3600 + (decimal(digits[2:4]) or 0) * 60
        return (-seconds if zone[0] == "-" else seconds) * NS_PER_S


def _of_date(found: re.Match[str]) -> int | None:
    """The time of a line of `date`: `Sun Nov 29 23:53:10 UTC 2026` or `Sun 29 Nov 2026 11:53:10 PM UTC`."""
    month, day, year = (found[1], found[2], found[11]) if found[1] else (found[4], found[3], found[5])
    if year is None or month not in _MONTHS:
        return None
    hour = int(found[6])
    if found[9]:
        hour = hour % 12 + (12 if found[9] == "PM" else 0)
    try:
        when = dt.datetime(
            int(year), _MONTHS.index(month) + 1, int(day), hour, int(found[7]), int(found[8]), tzinfo=dt.UTC
        )
    except ValueError:
        return None
    return int(when.timestamp()) * NS_PER_S
