"""The report for a person who has to decide something at night: the sentence first, one screen, 80 columns."""

from __future__ import annotations

import datetime as dt
import textwrap
from collections.abc import Callable, Iterable
from typing import Final

from roundk.analyze.control import DESTROY
from roundk.analyze.finding import Evidence
from roundk.analyze.names import Status
from roundk.analyze.phrases import NS_PER_S, duration, fold, group_text, ranks_text
from roundk.analyze.verdict import Report, Verdict

MIN_WIDTH: Final = 60
MAX_WIDTH: Final = 120
MAX_EVIDENCE: Final = 8

Paint = Callable[[str, str], str]
"""Colours a text: (text, name of the colour)."""

_COLOURS: Final = {
    Status.HEALTHY: "green",
    Status.IN_PROGRESS: "green",
    Status.SLOW: "yellow",
    Status.STUCK: "red",
    Status.FAILED: "red",
    Status.UNDETERMINED: "yellow",
}


def plain(text: str, colour: str) -> str:
    """No colour."""
    del colour
    return text


def render(report: Report, *, width: int = 80, paint: Paint = plain) -> str:
    """The report as text.

    Args:
        report: What to say.
        width: Columns of the terminal.
        paint: How to colour a word.
    """
    width = min(max(width, MIN_WIDTH), MAX_WIDTH)
    lines: list[str] = []
    for number, verdict in enumerate(report.verdicts):
        if number:
            lines += ["", paint("also".upper(), "yellow")]
        lines += _verdict(verdict, report.status, width, paint, first=not number)
    lines += ["", *_coverage(report, width)]
    return "\n".join(lines)


def _verdict(verdict: Verdict, status: Status, width: int, paint: Paint, *, first: bool) -> list[str]:
    name = verdict.structure.value + (f" ({verdict.detail.value})" if verdict.detail else "")
    state = status.value.upper()
    head = paint(state, _COLOURS[status]) + (f"  {name}" if name != state else "") if first else name
    lines = [head, "", *textwrap.wrap(verdict.summary, width)]
    facts = _facts(verdict)
    if facts:
        lines += ["", *(line for label, text in facts for line in _labelled(label, text, width))]
    lines += _evidence(verdict, width)
    for title, texts in (
        ("Against it", verdict.contradictions),
        ("Not checked", verdict.not_checked),
        ("Next", verdict.next_steps),
    ):
        lines += _list(title, texts, width)
    return lines


def _facts(verdict: Verdict) -> list[tuple[str, str]]:
    facts: list[tuple[str, str]] = []
    if verdict.cause is not None:
        sure = "" if verdict.cause_confidence == "none" else f", {verdict.cause_confidence.value} confidence"
        facts.append(("cause", verdict.cause.value + sure))
    if verdict.culprit_ranks:
        hosts = f" on {', '.join(verdict.culprit_hosts[:4])}" if verdict.culprit_hosts else ""
        facts.append(
            ("culprit", f"{ranks_text(verdict.culprit_ranks)}{hosts}, {verdict.structure_confidence.value} confidence")
        )
    elif verdict.culprit_hosts:
        facts.append(
            ("culprit", f"{', '.join(verdict.culprit_hosts[:4])}, {verdict.structure_confidence.value} confidence")
        )
    if verdict.group is not None and verdict.seq is not None:
        group = group_text(verdict.group.name, verdict.group.desc, destroying=verdict.op == DESTROY)
        facts.append(("where", f"{verdict.op or 'call'} #{verdict.seq} of {group} ({verdict.group.size} ranks)"))
    if verdict.onset_ns is not None:
        facts.append(("onset", clock(verdict.onset_ns)))
    if verdict.waiting_ranks:
        more = verdict.victims.ranks - len(verdict.waiting_ranks)
        through = f"; {more} more through other groups" if more > 0 else ""
        facts.append(("waiting", f"{ranks_text(verdict.waiting_ranks)}{through}"))
    return facts


def _labelled(label: str, text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=f"  {label:<9}", subsequent_indent=" " * 11)


def _evidence(verdict: Verdict, width: int) -> list[str]:
    if not verdict.evidence:
        return []
    lines = ["", "Evidence"]
    shown = list(dict.fromkeys(verdict.evidence))
    for piece in shown[:MAX_EVIDENCE]:
        lines += textwrap.wrap(_piece(piece, verdict.onset_ns), width, initial_indent="  - ", subsequent_indent="    ")
        if piece.source:
            lines.append(f"      {piece.source}")
    if len(shown) > MAX_EVIDENCE:
        lines.append(f"  - and {len(shown) - MAX_EVIDENCE} more (--format json has all)")
    return lines


def _piece(piece: Evidence, onset_ns: int | None) -> str:
    if piece.time_ns is None or onset_ns is None:
        return piece.what
    after = piece.time_ns - onset_ns
    return f"{piece.what} [{'+' if after >= 0 else '-'}{duration(abs(after))}]"


def _list(title: str, texts: Iterable[str], width: int) -> list[str]:
    lines = [
        line for text in texts for line in textwrap.wrap(text, width, initial_indent="  - ", subsequent_indent="    ")
    ]
    return ["", title, *lines] if lines else []


def _coverage(report: Report, width: int) -> list[str]:
    have = report.coverage
    parts = [f"Read: {_ranks_read(have.ranks_seen, have.world_size)}"]
    for label, ranks in (
        ("missing", have.ranks_missing),
        ("without calls", have.ranks_empty),
        ("cut short", have.truncated),
    ):
        if ranks:
            parts.append(f"{label}: {fold(ranks)}")
    if have.unreadable:
        parts.append(f"unreadable: {', '.join(u.path for u in have.unreadable[:3])}")
    return textwrap.wrap("; ".join(parts) + ".", width)


def _ranks_read(seen: int, size: int | None) -> str:
    if size is not None:
        return f"{seen} of {size} ranks"
    read = "no rank's calls" if not seen else f"the calls of {seen} rank{'s' if seen != 1 else ''}"
    return f"{read}; how many ranks there are is not told"


def clock(time_ns: int) -> str:
    """A time of day: `2026-11-29 10:42:17.101 UTC`."""
    when = dt.datetime.fromtimestamp(time_ns / NS_PER_S, tz=dt.UTC)
    return f"{when:%Y-%m-%d %H:%M:%S}.{time_ns % NS_PER_S // 1_000_000:03d} UTC"
