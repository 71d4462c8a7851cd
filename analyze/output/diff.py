"""What differs between two runs, as text in two columns and as JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from roundk.analyze.difference.found import Found, Row, Topic, Untold
from roundk.analyze.difference.run import Run
from roundk.analyze.output import words
from roundk.analyze.output.text import MAX_WIDTH, MIN_WIDTH, Paint, plain
from roundk.analyze.phrases import capital, number_of

SCHEMA: Final = 1
"""Version of the JSON form."""
_MOST_ROWS: Final = 12
"""Of one topic."""
_MOST_SAME: Final = 8
_MOST_UNTOLD: Final = 30
"""Names in one list of what is not recorded."""
_MOST_FILES: Final = 4
"""Files of a run that could not be read; `roundk show` has all."""
_NAME_SHARE: Final = 0.32
"""Of the width, for the names."""
_GAP: Final = 2
_COLOURS: Final = {0: "green", 1: "red", 2: "red", 3: "yellow"}
"""By what `roundk analyze` would exit with."""

_UNTOLD: Final = {
    ("A", True): "Not read in A",
    ("B", True): "Not read in B",
    ("both", True): "Read in neither",
    ("A", False): "Not recorded in A",
    ("B", False): "Not recorded in B",
    ("both", False): "Recorded in neither",
}
"""Titles by which run does not tell, and whether that may be for a file that could not be read."""


def render(a: Run, b: Run, found: Found, *, width: int = 80, paint: Paint = plain) -> str:
    """The comparison as text.

    Args:
        a: One run.
        b: The other one.
        found: What was found.
        width: Columns of the terminal.
        paint: How to colour a word.
    """
    width = min(max(width, MIN_WIDTH), MAX_WIDTH)
    lines = [line for side, run in (("A", a), ("B", b)) for line in _head(side, run, width, paint)]
    unread = [line for side, run in (("A", a), ("B", b)) for line in _unread(side, run, width, paint)]
    lines += ["", *unread] if unread else []
    if found.told:
        lines += ["", *_table("Told, not compared", found.told, width)]
    lines += [""]
    if found.rows:
        lines += [paint(f"DIFFERS  {number_of(len(found.rows), 'thing')}", "yellow")]
        lines += _differing(found.rows, width)
    else:
        lines += [paint("NOTHING DIFFERS of what was compared", "green")]
    lines += _inside(found.inside, width)
    lines += _same(found, width)
    return "\n".join(lines + _untold(found.untold, width))


def _head(side: str, run: Run, width: int, paint: Paint) -> list[str]:
    verdict = run.report.verdicts[0]
    state = run.report.status.value.upper()
    head = words.head(verdict, run.report.status)
    lines = [f"{side}  {run.name}", f"   {paint(state, _COLOURS[run.report.exit_code])}  {head}".rstrip()]
    return lines + textwrap.wrap(verdict.summary, width, initial_indent="   ", subsequent_indent="   ")


def _unread(side: str, run: Run, width: int, paint: Paint) -> list[str]:
    files = run.trace.unreadable
    said = [f"could not be read in {side}: {one.path} ({one.why})" for one in files[:_MOST_FILES]]
    if len(files) > _MOST_FILES:
        left = number_of(len(files) - _MOST_FILES, "more file", "more files")
        said.append(f"could not be read in {side}: {left} (`roundk show` lists all)")
    wrapped = [textwrap.wrap(text, width, subsequent_indent="    ", break_on_hyphens=False) for text in said]
    return [paint(line, "yellow") for lines in wrapped for line in lines]


def _differing(rows: Sequence[Row], width: int) -> list[str]:
    lines: list[str] = []
    touching = [row for row in rows if row.touches]
    if touching:
        lines += ["", *_table("Of a host that a verdict names", touching, width)]
    for topic in Topic:
        of_topic = [row for row in rows if row.topic is topic and not row.touches]
        if of_topic:
            lines += ["", *_table(capital(topic.value), of_topic, width)]
    return lines


def _inside(rows: Sequence[Row], width: int) -> list[str]:
    return ["", *_table("In both runs, but not everywhere in a run", rows, width)] if rows else []


def _same(found: Found, width: int) -> list[str]:
    if not found.same:
        return []
    said = []
    for topic in Topic:
        names = list(dict.fromkeys(found.same.get(topic, ())))
        if names:
            more = f" and {len(names) - _MOST_SAME} more" if len(names) > _MOST_SAME else ""
            said.append(f"{topic.value}: {', '.join(names[:_MOST_SAME])}{more}")
    return ["", *textwrap.wrap(f"The same: {'; '.join(said)}.", width, break_on_hyphens=False)]


def _untold(untold: Sequence[Untold], width: int) -> list[str]:
    lines = []
    for (where, is_unread), title in _UNTOLD.items():
        names = [one.name for one in untold if (one.where, one.is_unread) == (where, is_unread) and not one.why]
        if names:
            more = f"; and {len(names) - _MOST_UNTOLD:,} more" if len(names) > _MOST_UNTOLD else ""
            listed = "; ".join(names[:_MOST_UNTOLD])
            lines += textwrap.wrap(f"{title}: {listed}{more}.", width, break_on_hyphens=False)
    reasons = [one for one in untold if one.why]
    for one in reasons[:_MOST_ROWS]:
        side = "" if one.where == "both" else f" in {one.where}"
        unread = "; not all files there could be read" if one.is_unread else ""
        text = f"Not compared: {one.name}{side}: {one.why}{unread}."
        lines += textwrap.wrap(text, width, break_on_hyphens=False)
    if len(reasons) > _MOST_ROWS:
        lines.append(f"Not compared: {len(reasons) - _MOST_ROWS:,} more (--format json has all).")
    return ["", *lines] if lines else []


def _table(title: str, rows: Sequence[Row], width: int) -> list[str]:
    """A title over the names, `A` and `B` over what either run has; cells are wrapped."""
    shown = rows[:_MOST_ROWS]
    first = int(width * _NAME_SHARE)
    side = (width - first - 2 * _GAP) // 2
    is_long = len(title) > first
    lines = [title] if is_long else []
    lines.append(f"{'' if is_long else title:<{first}}{' ' * _GAP}{'A':<{side}}{' ' * _GAP}B")
    for row in shown:
        lines += _cells(row, first, side)
    if len(rows) > len(shown):
        lines.append(f"  and {len(rows) - len(shown):,} more (--format json has all)")
    return lines


def _cells(row: Row, first: int, side: int) -> list[str]:
    name = textwrap.wrap(row.name, first, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
    a, b = (textwrap.wrap(text, side, break_on_hyphens=False) or [""] for text in (row.a, row.b))
    b += [line for why in row.touches for line in textwrap.wrap(f"({why})", side, break_on_hyphens=False)]
    height = max(len(name), len(a), len(b))
    padded = ((cell + [""] * (height - len(cell))) for cell in (name, a, b))
    gap = " " * _GAP
    return [f"{n:<{first}}{gap}{x:<{side}}{gap}{y}".rstrip() for n, x, y in zip(*padded, strict=True)]


def render_json(a: Run, b: Run, found: Found) -> str:
    """The comparison as indented JSON text.

    Args:
        a: One run.
        b: The other one.
        found: What was found.
    """
    told = {
        "schema": SCHEMA,
        "a": _run(a),
        "b": _run(b),
        "differs": [_row(row) for row in found.rows],
        "not_everywhere": [_row(row) for row in found.inside],
        "same": {topic.value: list(dict.fromkeys(found.same[topic])) for topic in Topic if topic in found.same},
        "not_recorded": [asdict(one) for one in found.untold],
        "told": [_row(row) for row in found.told],
    }
    return json.dumps(told, indent=2)


def _run(run: Run) -> dict[str, Any]:
    first = run.report.verdicts[0]
    return {
        "path": run.name,
        "status": run.report.status.value,
        "structure": first.structure.value,
        "detail": first.detail,
        "cause": first.cause,
        "summary": first.summary,
        "world_size": run.world_size,
        "hosts": sorted(set(run.hosts.values())),
        "sources": dict(run.trace.sources),
        "unreadable": [asdict(one) for one in run.trace.unreadable],
    }


def _row(row: Row) -> dict[str, Any]:
    return asdict(row) | {"hosts": sorted(row.hosts), "touches": list(row.touches)}
