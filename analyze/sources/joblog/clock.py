"""Times as logs print them: with and without year, zone and fraction.

A line's time is what it says, not when it was read: `[E626 10:42:17.101223001 ...]` names no year and no zone. The
year comes from other dates of the same log, of the job's other logs and inputs or, where there are none, from the
file's own time; a time without a zone
is read as UTC, and the reader is told.
"""

from __future__ import annotations

import calendar
import re
from datetime import UTC, datetime
from typing import Final, NamedTuple

from roundk.analyze.phrases import NS_PER_S

_DAY_NS: Final = 86_400 * NS_PER_S
_MONTHS: Final = {
    name: number
    for number, name in enumerate(
        ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), start=1
    )
}

FULL: Final = (
    r"(?P<year>\d{4})[-/](?P<month>\d\d)[-/](?P<day>\d\d)[T_ ](?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
    r"(?:[.,](?P<fraction>\d{1,9}))?(?:\s?(?P<zone>Z|UTC|[+-]\d\d:?\d\d)(?![\w:]))?"
)
"""ISO 8601 and what resembles it: Kubernetes, Python's logging, Slurm, NCCL, torchrun's summary."""
_FULL: Final = re.compile(FULL, re.ASCII)
_LONG: Final = re.compile(
    r"[A-Z][a-z]{2} (?P<name>[A-Z][a-z]{2}) +(?P<day>\d{1,2}) (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d) "
    r"(?P<year>\d{4})",
    re.ASCII,
)


class Stamp(NamedTuple):
    """A time as it stands in a line."""

    year: int | None
    month: int
    day: int
    hour: int
    minute: int
    second: int
    ns: int = 0
    offset_s: int | None = None
    """Zone, seconds east of UTC; None: the line does not tell."""


def stamp(parts: dict[str, str | None]) -> Stamp | None:
    """A stamp from a match's named groups; None where they are no time.

    Args:
        parts: `month` (a number) or `name` (its name), `day`, `hour`, `minute`, `second`, and where told `year`,
            `fraction` and `zone`.
    """
    year, month = parts.get("year"), parts.get("month")
    number = int(month) if month else _MONTHS.get(parts.get("name") or "")
    if number is None:
        return None
    day, hour, minute, second = (int(parts[name] or 0) for name in ("day", "hour", "minute", "second"))
    fraction = (parts.get("fraction") or "").ljust(9, "0")[:9]
    found = Stamp(
        int(year) if year else None, number, day, hour, minute, second, int(fraction), _zone(parts.get("zone"))
    )
    return found if _date(found, found.year or 2000) is not None else None  # 2000 has a 29 February


def read(text: str) -> Stamp | None:
    """The last full date in a text; None where there is none."""
    for pattern in (_FULL, _LONG):
        found = list(pattern.finditer(text))
        if found and (last := stamp(found[-1].groupdict())) is not None:
            return last
    return None


class Clock:
    """Turns the stamps of one log into Unix times.

    Attributes:
        dated_ns: A time of the log whose year is told; None: none was met.
        is_year_guessed: A time without a year was turned.
        is_zone_missing: A time without a zone was turned.
    """

    def __init__(self, written_ns: int | None) -> None:
        """Start a log.

        Args:
            written_ns: When the file was last written; None: not known.
        """
        self._written = written_ns
        self.dated_ns: int | None = None
        self.is_year_guessed = False
        self.is_zone_missing = False

    def see(self, full: Stamp | None) -> None:
        """Take note of a full date somewhere in the log: it tells the year of those that have none."""
        if full is not None and full.year is not None:
            self.dated_ns = _unix(full, full.year)

    def near(self, time_ns: int) -> None:
        """Take note of a time at which the job ran, where the log itself tells no year."""
        self.dated_ns = time_ns

    def ns(self, at: Stamp | None) -> int | None:
        """Unix time of a stamp; None where there is none, or no year can be told."""
        if at is None:
            return None
        found = _unix(at, at.year) if at.year is not None else self._with_year(at)
        if found is not None:
            self.is_zone_missing |= at.offset_s is None
            if at.year is not None:
                self.dated_ns = found
        return found

    def _with_year(self, at: Stamp) -> int | None:
        near = self.dated_ns if self.dated_ns is not None else self._written
        if near is None:
            return None
        self.is_year_guessed = True
        this = datetime.fromtimestamp(near // NS_PER_S, tz=UTC).year
        # A 29 February may be up to eight years off (1900, 2100).
        times = [found for year in range(this - 8, this + 2) if (found := _unix(at, year)) is not None]
        if self.dated_ns is None:  # a file is not written before its lines; a day for zones and clocks
            times = [found for found in times if found <= near + _DAY_NS]
        return min(times, key=lambda found: abs(found - near), default=None)


def _zone(zone: str | None) -> int | None:
    if zone is None:
        return None
    if zone in {"Z", "UTC"}:
        return 0
    digits = zone[1:].replace(":", "")
    return (1 if zone[0] == "+" else -1) * (int(digits[:2]) * 3600 + int(digits[2:]) * 60)


def _date(at: Stamp, year: int) -> datetime | None:
    try:
        return datetime(year, at.month, at.day, at.hour, at.minute, min(at.second, 59), tzinfo=UTC)
    except ValueError:
        return None


def _unix(at: Stamp, year: int) -> int | None:
    if _date(at, year) is None or not 1970 < year < 2200:  # 64 bits of nanoseconds end in 2262
        return None
    seconds = calendar.timegm((year, at.month, at.day, at.hour, at.minute, at.second))
    return (seconds - (at.offset_s or 0)) * NS_PER_S + at.ns
