"""What a job's links did, for a person at a terminal: when ports went down, what moved, where nothing did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from roundk.analyze.links import names
from roundk.analyze.links.events import Event, by_port
from roundk.analyze.links.view import Links
from roundk.analyze.links.windows import Window
from roundk.analyze.names import Status
from roundk.analyze.output import linkrates, linktables, words
from roundk.analyze.output.columns import columns, paragraph, some
from roundk.analyze.output.text import MAX_WIDTH, MIN_WIDTH, Paint, plain
from roundk.analyze.phrases import NS_PER_S, duration, number_of
from roundk.analyze.verdict import Report

MOST_EVENTS: Final = 24
"""Lines of events; of more, each port has one."""

_MOST_WINDOWS: Final = 4
_COLOURS: Final = {"down": "red", "reset": "yellow", "change": "yellow", "up": "green"}
_USES: Final = {"used": "in use", "unused": "not in use", "other": "", "unknown": ""}
_PRECISE_NS: Final = 10 * NS_PER_S
"""Below this a port's time down is told to the millisecond: that is what it is known to."""


def render(links: Links, report: Report, *, width: int = 80, paint: Paint = plain) -> str:
    """The links as text.

    Args:
        links: What is known of them.
        report: The report on the job.
        width: Columns of the terminal.
        paint: How to colour a word.
    """
    width = min(max(width, MIN_WIDTH), MAX_WIDTH)
    lines = _head(links, report, width)
    made = _events(links, width, paint)
    lines += ["", *made] if made else []
    for section in (linkrates.throughput, linktables.counters, linktables.connections, linktables.once):
        made = section(links, width)
        lines += ["", *made] if made else []
    silence = linktables.silence(links, width)
    lines += ["", *silence] if silence else []
    return "\n".join(lines)


def _head(links: Links, report: Report, width: int) -> list[str]:
    verdict = report.verdicts[0]
    lines = []
    if report.coverage.ranks_seen:
        state = words.head(verdict, report.status)
        told = f"{report.status.value.upper()}  {state}".rstrip()
        lines += [told, *paragraph(verdict.summary, width), ""]
    lines += paragraph(_read(links), width)
    ports = linkrates.used(links.ports)
    lines += paragraph(f"The job uses {ports}." if ports else "Which ports the job uses is not told.", width)
    if links.windows:
        lines += paragraph(_windows(links.windows), width)
    elif report.coverage.ranks_seen:
        lines += paragraph(_no_windows(report), width)
    else:
        lines.append("No calls were read: there are no slow or stuck rounds to compare with.")
    return lines


def _no_windows(report: Report) -> str:
    if report.status in (Status.HEALTHY, Status.IN_PROGRESS):
        return "No round was slow or stuck."
    return "When the rounds were slow or stuck is not told: all numbers are of the whole run."


def _read(links: Links) -> str:
    ports = len(links.ports)
    what = f"{number_of(len(links.hosts), 'host')}, {number_of(ports, 'port')}"
    if links.begin_ns is None or links.end_ns is None:
        return f"{what}; when the counters were read is not told."
    span = f"{words.clock(links.begin_ns)} to {linkrates.clock(links.end_ns)}"
    return f"{what}, read from {span} ({duration(links.end_ns - links.begin_ns)})."


def _windows(found: Sequence[Window]) -> str:
    shown = [f"{linkrates.clock(one.begin_ns)} ({duration(one.end_ns - one.begin_ns)})" for one in found]
    total = sum(one.end_ns - one.begin_ns for one in found)
    kind = linkrates.bad_rounds(found)
    if len(found) == 1:
        return f"Rounds were {kind} from {linkrates.clock(found[0].begin_ns)} on, for {duration(total)}."
    return f"Rounds were {kind} {len(found)} times, {duration(total)} in all: {some(shown, _MOST_WINDOWS)}."


def _events(links: Links, width: int, paint: Paint) -> list[str]:
    found = links.events
    if not found:
        if links.counters.filter(pl.col("samples") > 1).is_empty():
            return []
        return paragraph("No port went down or came up, and no speed or MTU changed, as far as was read.", width)
    folded = len(found) > MOST_EVENTS
    shown = [_folded(group) for group in by_port(found).values()] if folded else [(one, _told(one)) for one in found]
    onset = links.windows[0].begin_ns if links.windows else None
    # The ports that the job uses are what it is about.
    shown = shown if not folded else sorted(shown, key=lambda pair: pair[0].use != "used")
    left = shown[MOST_EVENTS:]
    rows = [
        (
            "" if one.time_ns is None else linkrates.clock(one.time_ns),
            words.offset(one.time_ns, onset),
            one.host,
            names.label("tcp" if not one.device else "", one.device, one.port),
            _USES[one.use],
            text,
        )
        for one, text in shown[:MOST_EVENTS]
    ]
    head = ("time", "after onset" if onset else "", "host", "port", "", "")
    lines = columns([head, *rows], width, right=(1,))
    painted = [
        line.replace(" went down", f" {paint('went down', _COLOURS['down'])}", 1)
        if any(one.is_down and one.use != "unused" for one, _ in shown)
        else line
        for line in lines
    ]
    more = [f"  and {number_of(len(left), 'more port')} (--format json has all)"] if left else []
    return ["Link events", *painted, *more]


def _told(one: Event) -> str:
    """An event in words."""
    if one.kind == "up":
        return f"came up ({one.what})"
    if one.kind != "down":
        return one.what + _between(one)
    if one.before_ns is not None:
        return f"went down{_times(one.count)}: {one.what}{_between(one)}"
    if one.is_found:
        return f"was down when it was read ({one.what})"
    text = "went down"
    if one.until_ns is not None and one.time_ns is not None:
        text += f" for {_span(one.until_ns - one.time_ns)}, back {linkrates.clock(one.until_ns)}"
    elif one.time_ns is None:
        text = "down, since when is not told"
    else:
        text += ", not seen to come back"
    return text + (f" ({one.what})" if one.what else "")


def _times(count: int) -> str:
    return "" if count == 1 else f" {count} times"


def _between(one: Event) -> str:
    if one.before_ns is None or one.time_ns is None:
        return ""
    return f", within the {duration(one.time_ns - one.before_ns)} before"


def _span(ns: int) -> str:
    return f"{ns / NS_PER_S:.3f} s" if ns < _PRECISE_NS else duration(ns)


def _folded(group: Sequence[Event]) -> tuple[Event, str]:
    """The events of a port in one."""
    first = group[0]
    if len(group) == 1:
        return first, _told(first)
    downs = [one for one in group if one.is_down]
    last = max((one.time_ns or 0 for one in group), default=0)
    until = f" until {linkrates.clock(last)}" if last else ""
    others = number_of(len(group) - len(downs), "other event")
    if not downs:
        return first, f"{others}{until}: {some(dict.fromkeys(one.what for one in group), 2)}"
    lengths = [one.until_ns - one.time_ns for one in downs if one.until_ns is not None and one.time_ns is not None]
    spans = _lengths([duration(one) for one in sorted(lengths)])
    extra = "" if len(downs) == len(group) else f", {others}"
    return first, f"went down{_times(sum(one.count for one in downs))}{until}{spans}{extra}"


def _lengths(told: Sequence[str]) -> str:
    """How long a port was down each time, the shortest first: the same is said once."""
    if not told:
        return ""
    span = told[0] if told[0] == told[-1] else f"{told[0]} to {told[-1]}"
    return f", {span}" + (" each" if len(told) > 1 else "")
