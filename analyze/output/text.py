"""The report for a person who has to decide something at night: the sentence first, one screen, 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from roundk.analyze.names import Status
from roundk.analyze.output import words
from roundk.analyze.phrases import number_of
from roundk.analyze.picture import Picture, Wait
from roundk.analyze.verdict import Report, Verdict

MIN_WIDTH: Final = 60
MAX_WIDTH: Final = 120

MAX_EVIDENCE: Final = 5
MAX_EVIDENCE_ALSO: Final = 2
"""Pieces of evidence of the first verdict and of further ones: the sentence has to stay on the screen."""

MAX_LISTED: Final = 5
_MOST_ROOTS: Final = 3
_MOST_BEHIND: Final = 2

_UNBROKEN: Final = "\N{NO-BREAK SPACE}"

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


def render(report: Report, pictures: Sequence[Picture] = (), *, width: int = 80, paint: Paint = plain) -> str:
    """The report as text.

    Args:
        report: What to say.
        pictures: Who waits for whom, of each verdict; none: that is left out.
        width: Columns of the terminal.
        paint: How to colour a word.
    """
    width = min(max(width, MIN_WIDTH), MAX_WIDTH)
    lines: list[str] = []
    for number, verdict in enumerate(report.verdicts):
        picture = pictures[number] if number < len(pictures) else Picture()
        if number:
            lines += ["", f"{paint('ALSO', 'yellow')}  {words.name(verdict)}"]
        else:
            state = report.status.value.upper()
            lines.append(f"{paint(state, _COLOURS[report.status])}  {words.head(verdict, report.status)}".rstrip())
        lines += _verdict(verdict, picture, width, first=not number)
        if not number:
            lines += _list("Not checked", words.unchecked(report), width)
            lines += _list("Notes", report.notes, width)
    lines += ["", *_end(report, width)]
    return "\n".join(lines)


def _verdict(verdict: Verdict, picture: Picture, width: int, *, first: bool) -> list[str]:
    lines = ["", *textwrap.wrap(verdict.summary, width), *waits(picture, width)]
    facts = words.facts(verdict)
    held = words.waiting(verdict, picture)
    if held and not picture.roots:
        facts.append(("waiting", held))
    if facts:
        lines += ["", *(line for label, text in facts for line in _labelled(label, text, width))]
    lines += _list("Next", verdict.next_steps, width)
    lines += _evidence(verdict, width, MAX_EVIDENCE if first else MAX_EVIDENCE_ALSO)
    return lines + _list("Against it", verdict.contradictions, width)


def waits(picture: Picture, width: int) -> list[str]:
    """Who waits for whom, a line or three per round."""
    if not picture.roots:
        return []
    lines = ["", "Who waits for whom" + (", in a circle" if picture.is_circle else "")]
    for wait in picture.roots[:_MOST_ROOTS]:
        lines += _wait(wait, width)
    if len(picture.roots) > _MOST_ROOTS:
        lines.append(f"  and so in {number_of(len(picture.roots) - _MOST_ROOTS, 'more round')}")
    if len(picture.behind) <= _MOST_BEHIND:
        return lines + [line for wait in picture.behind for line in _wait(wait, width)]
    return lines + _wrapped(words.further(picture), width, "  ", "      ")


def _wait(wait: Wait, width: int) -> list[str]:
    who, whom = words.inside(wait), f"-> {words.on(wait)}"
    if len(who) + len(whom) + 4 <= width:
        return [f"  {who}  {whom}"]
    return [*_wrapped(who, width, "  ", "      "), *_wrapped(whom, width, "      ", "         ")]


def _labelled(label: str, text: str, width: int) -> list[str]:
    return _wrapped(text, width, f"  {label:<9}", " " * 11)


def _evidence(verdict: Verdict, width: int, limit: int) -> list[str]:
    found = words.pieces(verdict)
    if not found:
        return []
    timed = any(piece.offset for piece in found[:limit])
    lines = ["", "Evidence" + (" [time after the onset]" if timed else "")]
    for piece in found[:limit]:
        parts = [
            piece.what,
            f"[{_whole(piece.offset)}]" if piece.offset else "",
            f"({piece.source})" if piece.source else "",
        ]
        lines += _wrapped(" ".join(part for part in parts if part), width, "  - ", "    ")
    if len(found) > limit:
        lines.append(f"  - and {len(found) - limit} more (--format html or json has all)")
    return lines


def _list(title: str, texts: Iterable[str], width: int) -> list[str]:
    distinct = list(dict.fromkeys(texts))
    lines = [line for text in distinct[:MAX_LISTED] for line in _wrapped(text, width, "  - ", "    ")]
    if len(distinct) > MAX_LISTED:
        lines.append(f"  - and {len(distinct) - MAX_LISTED} more (--format html or json has all)")
    return ["", title, *lines] if lines else []


def _end(report: Report, width: int) -> list[str]:
    (_, read), *rest = words.coverage(report.coverage)
    told = "; ".join([f"Read: {read}", *(f"{label}: {text}" for label, text in rest)])
    lines = textwrap.wrap(f"{told}.", width, break_on_hyphens=False)
    name = words.explained(report)
    return [f"`roundk explain {name}` tells what that means.", *lines] if name else lines


def _whole(text: str) -> str:
    """The text as one that is not broken."""
    return text.replace(" ", _UNBROKEN)


def _wrapped(text: str, width: int, first: str, following: str) -> list[str]:
    lines = textwrap.wrap(text, width, initial_indent=first, subsequent_indent=following, break_on_hyphens=False)
    return [line.replace(_UNBROKEN, " ") for line in lines] or [first.rstrip()]
