"""What many runs say together, for a terminal: what kills the jobs on the first screen, the rest below."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from roundk.analyze.batch import shares
from roundk.analyze.batch.fleet import Counted, Fleet
from roundk.analyze.batch.offenders import Answer, called
from roundk.analyze.batch.table import Category
from roundk.analyze.batch.trends import Week
from roundk.analyze.names import Confidence
from roundk.analyze.output import fleetwords as words
from roundk.analyze.output.columns import columns, paragraph
from roundk.analyze.output.text import MAX_WIDTH, MIN_WIDTH, Paint, plain
from roundk.analyze.phrases import number_of

_MARKS: Final = {Confidence.HIGH: "#", Confidence.MEDIUM: "+", Confidence.LOW: "-", Confidence.NONE: "."}
_BAR: Final = {80: 20, 120: 40}
"""Characters of the longest bar, by columns of the terminal."""

_MOST_CAUSES: Final = 4
"""Causes listed of each category: the first screen has room for so many."""

_MOST_LISTED: Final = 5
_MOST_WEEKS: Final = 8
_MOST_FINDINGS: Final = 6
_MOST_RUNS: Final = 3


def render(fleet: Fleet, *, width: int = 80, paint: Paint = plain) -> str:
    """The report as text.

    Args:
        fleet: What to say.
        width: Columns of the terminal.
        paint: How to colour a word.
    """
    width = min(max(width, MIN_WIDTH), MAX_WIDTH)
    of = fleet.states
    head = paint("FLEET", "red" if of.interrupted else "green")
    lines = [f"{head}  {words.states(of)}", "", *paragraph(words.headline(fleet), width)]
    back = words.comes_back(fleet)
    if back:
        lines += paragraph(back, width)
    lines += _interruptions(fleet, width)
    lines += _costs(fleet, width)
    for answer, title in words.offenders(fleet):
        lines += _answer(answer, title, width, paint, named=answer is fleet.blame)
    lines += _places(fleet, width)
    lines += _listed(
        "The same job failing the same way",
        [f"job {one.job}: {words.repeat(one)}" for one in fleet.repeats],
        width,
    )
    lines += _weeks(fleet, width)
    if fleet.slow:
        rows = [("", "", ""), *((one.name, f"{one.count:,}", words.sure(one)) for one in fleet.slow)]
        lines += ["", "Slow runs, which went on (confidence)", *columns(rows, width, right=(1,))[1:]]
    lines += _reference(fleet, width)
    lines += _problems(fleet, width)
    return "\n".join(lines)


def _interruptions(fleet: Fleet, width: int) -> list[str]:
    if not fleet.states.interrupted:
        return []
    longest = max(one.count for one in fleet.categories)
    room = max(size for columns_, size in _BAR.items() if columns_ <= max(width, min(_BAR)))
    rows: list[tuple[str, str, str, str, str]] = [("", "", "", "", "")]
    for category in fleet.categories:
        rows.append(_row(words.NAMES[category.category], category, longest, room))
        if category.category is Category.UNDETERMINED:
            told = [(f"  {name}", f"{count:,}", "", "", "") for name, count in fleet.untold]
        else:
            causes = [one for one in fleet.causes if one.category is category.category]
            told = [_row(f"  {one.name}", one, longest, room) for one in causes]
        rows += told[:_MOST_CAUSES]
        if len(told) > _MOST_CAUSES:
            rows.append((f"  {len(told) - _MOST_CAUSES} more", "", "", "", ""))
    return [
        "",
        "What interrupted them (confidence: # high, + medium, - low, . none)",
        *columns(rows, width, right=(1, 2))[1:],
    ]


def _row(name: str, one: Counted, longest: int, room: int) -> tuple[str, str, str, str, str]:
    share = shares.text(one.count, one.total) if one.count else ""
    lost = f"{words.hours(one.gpu_hours_lost)} GPU-h lost" if one.lost_of and one.gpu_hours_lost else ""
    return name, f"{one.count:,}", share, _bar(one, longest, room), lost


def _bar(one: Counted, longest: int, room: int) -> str:
    size = 0 if not longest else max(round(one.count * room / longest), 1 if one.count else 0)
    drawn, ends = "", 0
    for level, mark in _MARKS.items():
        ends += one.sure[level]
        drawn += mark * (round(size * ends / one.count) - len(drawn) if one.count else 0)
    return drawn


def _costs(fleet: Fleet, width: int) -> list[str]:
    told = [*filter(None, [words.lost(fleet)]), *words.between(fleet.between)] if fleet.states.interrupted else []
    return ["", *(line for text in told for line in paragraph(text, width))] if told else []


def _answer(answer: Answer, title: str, width: int, paint: Paint, *, named: bool) -> list[str]:
    lines = ["", title]
    for one in answer.findings[:_MOST_FINDINGS]:
        # Painted after the line is broken: colours have no width.
        first, *rest = paragraph(
            f"{one.unit.text}: {words.found(one, named=named)}", width, first="  - ", following="    "
        )
        lines += [first.replace(one.unit.text, paint(one.unit.text, "red"), 1), *rest]
        facts = [
            words.causes(one),
            words.span(one),
            f"runs {words.some(one.runs[:_MOST_RUNS], _MOST_RUNS, len(one.runs))}",
            words.advice(one),
        ]
        lines += paragraph("; ".join(filter(None, facts)), width, first="    ", following="    ")
    if len(answer.findings) > _MOST_FINDINGS:
        lines.append(f"  - and {len(answer.findings) - _MOST_FINDINGS:,} more (--format json or --html has all)")
    if not answer.findings:
        lines += paragraph(words.nothing(answer), width, first="  ", following="  ")
    if answer.test:
        lines += paragraph(f"({words.tested(answer)[:-1]})", width, first="  ", following="  ")
    return lines


def _places(fleet: Fleet, width: int) -> list[str]:
    lines = []
    if fleet.parts:
        rows = [("", ""), *((called(one.kind, one.name), words.part(one)) for one in fleet.parts if one.jobs)]
        shown = rows[: _MOST_LISTED * 2 + 1]
        if len(shown) > 1:
            lines += ["", "What each rail or plane is named in", *columns(shown, width)[1:]]
            lines += [f"  and {len(rows) - len(shown):,} more"] if len(rows) > len(shown) else []
    lines += _listed("Hangs whose culprits share a place", map(words.shared, fleet.shared), width)
    told = words.layout(fleet)
    return lines + (["", *paragraph(told, width)] if told else [])


def _listed(title: str, texts: Iterable[str], width: int) -> list[str]:
    listed = list(texts)
    lines = [line for text in listed[:_MOST_LISTED] for line in paragraph(text, width, first="  - ", following="    ")]
    if len(listed) > _MOST_LISTED:
        lines.append(f"  - and {len(listed) - _MOST_LISTED:,} more (--format json or --html has all)")
    return ["", title, *lines] if listed else []


def _weeks(fleet: Fleet, width: int) -> list[str]:
    weeks = fleet.trend.weeks
    if not weeks:
        return []
    shown = weeks[-_MOST_WEEKS:]
    heads = ("week", "all", *words.NAMES.values(), "per 1,000 GPU-h")
    lines = ["", "Interruptions by week (UTC)", *columns([heads, *map(_week, shown)], width, right=range(1, 8))]
    before = sum(week.count for week in weeks[:-_MOST_WEEKS]) + fleet.trend.earlier
    if before:
        lines.append(f"  {before:,} before that")
    if fleet.trend.untimed:
        lines.append(f"  {fleet.trend.untimed:,} without a time")
    return lines


def _week(week: Week) -> Sequence[str]:
    rate = week.per_1000_gpu_hours
    counts = (f"{week.interruptions[category]:,}" for category in words.NAMES)
    return week.name, f"{week.count:,}", *counts, "" if rate is None else words.hours(rate)


def _reference(fleet: Fleet, width: int) -> list[str]:
    if not fleet.states.interrupted:
        return []
    rows = [("", "here", "", "Llama 3", ""), *words.reference(fleet)]
    return ["", "Beside the published one", *columns(rows, width, right=(1, 2, 3, 4)), *paragraph(words.pace(), width)]


def _problems(fleet: Fleet, width: int) -> list[str]:
    of = fleet.states
    title = f"Not judged: {number_of(of.problems, 'run')}; judged without some of their files: {of.partly:,}"
    lines = _listed(title, (f"{run}: {why}" for run, why in fleet.problems), width)
    return lines + _listed(f"Left out: {len(fleet.left_out):,}", fleet.left_out, width)
