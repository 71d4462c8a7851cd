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
_NAME_SHARE: Final = 0.32
"""Of the width, for the names."""
_GAP: Final = 2
_COLOURS: Final = {0: "green", 1: "red", 2: "red", 3: "yellow"}
"""By what `roundk analyze` would exit with."""


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
    for where, title in (("A", "Not recorded in A"), ("B", "Not recorded in B"), ("both", "Recorded in neither")):
        of_run = [one for one in untold if one.where == where and not one.why]
        if of_run:
            listed = "; ".join(one.name for one in of_run)
            lines += textwrap.wrap(f"{title}: {listed}.", width, break_on_hyphens=False)
    for one in untold:
        if one.why:
            side = "" if one.where == "both" else f" in {one.where}"
            text = f"Not compared: {one.name}{side}: {one.why}."
            lines += textwrap.wrap(text, width, break_on_hyphens=False)
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
        "world_size": run.trace.world_size,
        "hosts": sorted(set(run.hosts.values())),
        "sources": dict(run.trace.sources),
    }


def _row(row: Row) -> dict[str, Any]:
    return asdict(row) | {"hosts": sorted(row.hosts), "touches": list(row.touches)}
