"""What many runs say together, as one page that needs nothing else: what kills the jobs on its first screen."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from roundk.analyze.batch import llama3, shares
from roundk.analyze.batch.fleet import Counted, Fleet
from roundk.analyze.batch.offenders import Answer, Finding, called
from roundk.analyze.batch.table import Category
from roundk.analyze.batch.trends import Week
from roundk.analyze.names import Confidence
from roundk.analyze.output import fleetwords as words
from roundk.analyze.output.safe import Html, document, element, joined, page
from roundk.analyze.phrases import number_of

_STYLES: Final = ("page.css", "fleet.css")
_SCRIPT: Final = "fleet.js"

_JOINTS: Final = re.compile(r"([_/:.-]+)(?=\w)")

_MOST_TOP: Final = 4
"""Findings in the card at the top, so that it ends on the first screen."""

_MOST_CAUSES: Final = 3
_MOST_RUNS: Final = 12
_MOST_WEEKS: Final = 53
_CHART_HIGH: Final = 150
_CHART_STEP: Final = 46
_CHART_BAR: Final = 30


def render(fleet: Fleet) -> str:
    """The report as a page.

    Args:
        fleet: What to say.
    """
    return document(f"roundk: {words.states(fleet.states)}", _STYLES, _SCRIPT, *_parts(fleet))


def _parts(fleet: Fleet) -> Iterable[Html]:
    yield _top(fleet)
    yield _section("Repeat offenders", "", *_offenders(fleet), ident="offenders")
    yield _section(
        "Interruptions by week", "By onset, in weeks from Monday, UTC.", *_weeks(fleet) if fleet.trend.weeks else ()
    )
    yield _section("Rails and planes", words.layout(fleet), *_places(fleet))
    yield _section("The same job failing the same way", "", _repeats(fleet))
    yield _section("Slow runs, which went on", "", _table(("cause", "runs", "confidence"), _slow(fleet), ("", "n", "")))
    if fleet.states.interrupted:
        yield _section("Beside the published breakdown", words.pace(), *_reference(fleet))
    yield _section("Runs with problems", "Not judged, or judged without some of their files.", _problems(fleet))
    yield _section("Left out", "Files and folders that are part of no run.", _left_out(fleet))
    yield _section("All runs", "", *_runs(fleet), ident="runs")
    yield element("footer", "Made by roundk. This page is complete: it loads nothing and can be passed on as it is.")


def _top(fleet: Fleet) -> Html:
    of = fleet.states
    strip = element(
        "div",
        element(
            "span",
            f"{of.interrupted:,} INTERRUPTED" if of.interrupted else "NONE INTERRUPTED",
            class_="state failed" if of.interrupted else "state healthy",
        ),
        element("span", words.states(of), class_="kind"),
        element("span", "roundk batch", class_="tool"),
        class_="strip",
    )
    sentence = element("h1", words.headline(fleet), id="headline")
    back = words.comes_back(fleet)
    also = element("p", back, class_="also") if back else Html("")
    if not of.interrupted:
        return element("header", strip, sentence, also)
    cards = element("div", _causes(fleet), _beside(fleet), class_="two first")
    return element("header", strip, sentence, also, cards)


def _causes(fleet: Fleet) -> Html:
    longest = max(one.count for one in fleet.categories)
    rows = []
    for category in fleet.categories:
        rows.append(_bar(words.NAMES[category.category], category, longest, "category"))
        if category.category is Category.UNDETERMINED:
            told = [_line(name, f"{count:,}") for name, count in fleet.untold]
        else:
            of = [one for one in fleet.causes if one.category is category.category]
            told = [_bar(one.name, one, longest, "cause") for one in of]
        rows += told[:_MOST_CAUSES]
        if len(told) > _MOST_CAUSES:
            rows.append(_line(f"{len(told) - _MOST_CAUSES} more", ""))
    marks = [
        element("span", element("i", class_=f"key s-{level}"), text)
        for level, text in ((level, f"{level} confidence") for level in Confidence if level is not Confidence.NONE)
    ]
    legend = element("div", *marks, element("span", element("i", class_="key s-none"), "no cause"), class_="legend")
    grid = element("div", *rows, class_="bars")
    return element("div", element("h2", "What interrupts the jobs"), grid, legend, class_="card", id="causes")


def _bar(name: str, one: Counted, longest: int, kind: str) -> Html:
    parts = [
        element("i", class_=f"s-{level}", style=f"width:{100 * one.sure[level] / longest:.3f}%")
        for level in Confidence
        if one.sure[level]
    ]
    # Where a determined cause has no confidence, the bar still has its length.
    title = f"{name}: {one.count:,} of {one.total:,}; {words.sure(one) or 'no confidence'}"
    return joined(
        element("span", name, class_=f"name {kind}"),
        element("span", *parts, class_=f"bar c-{one.category} {kind}", title=title),
        element("span", f"{one.count:,}", class_=f"count {kind}"),
        element("span", shares.text(one.count, one.total), class_=f"share {kind}"),
    )


def _line(name: str, count: str) -> Html:
    return joined(
        element("span", name, class_="name cause"),
        element("span", class_="bar cause"),
        element("span", count, class_="count cause"),
        element("span", class_="share cause"),
    )


def _beside(fleet: Fleet) -> Html:
    lost = [element("p", text) for text in (words.lost(fleet), *words.between(fleet.between)) if text]
    by = [
        (words.NAMES[one.category], words.hours(one.gpu_hours_lost))
        for one in sorted(fleet.categories, key=lambda one: -one.gpu_hours_lost)
        if one.lost_of
    ]
    if by:
        lost.insert(1, element("p", ", ".join(f"{name} {count}" for name, count in by), class_="lead"))
    found = [
        _short(one, named=answer is fleet.blame) for answer, _ in words.offenders(fleet) for one in answer.findings
    ]
    more = len(found) - _MOST_TOP
    inside = found[:_MOST_TOP] + ([element("p", f"and {more:,} more below", class_="lead")] if more > 0 else [])
    if not inside:
        remarks = dict.fromkeys(answer.remark for answer, _ in words.offenders(fleet) if answer.remark)
        inside = [element("p", text, class_="lead") for text in remarks] or [
            element("p", "Nothing comes back more often than chance allows.")
        ]
    return element(
        "div",
        element("div", element("h2", "What comes back"), *inside, class_="card", id="back"),
        element("div", element("h2", "What it costs"), *lost, class_="card", id="costs"),
        class_="stacked",
    )


def _short(one: Finding, *, named: bool) -> Html:
    return element(
        "div",
        element("b", one.unit.text),
        element("div", words.found(one, named=named)),
        element("div", "; ".join(filter(None, (words.causes(one), words.advice(one)))), class_="dim"),
        class_="unit",
    )


def _offenders(fleet: Fleet) -> Iterable[Html]:
    for answer, title in words.offenders(fleet):
        yield element("h3", title)
        if answer.findings:
            yield _findings(answer)
        if not answer.findings:
            yield element("p", words.nothing(answer))
        if answer.test:
            yield element("p", words.tested(answer), class_="lead test")


def _findings(answer: Answer) -> Html:
    rows = [
        (
            one.unit.text,
            f"{one.jobs:,} of {one.used_in:,}",
            f"{one.expected:.1f}",
            words.chance(one.log_p),
            words.chance(one.log_corrected),
            ", ".join(f"{cause} {count:,}" for cause, count in one.causes),
            words.span(one),
            words.some(one.runs[:_MOST_RUNS], _MOST_RUNS, len(one.runs)),
        )
        for one in answer.findings
    ]
    heads = ("unit", "jobs", "by chance", "p", "p, corrected", "causes", "from, to", "runs")
    return _table(heads, rows, ("w", "n", "n", "n", "n", "", "w", "m"))


def _weeks(fleet: Fleet) -> Iterable[Html]:
    weeks = fleet.trend.weeks[-_MOST_WEEKS:]
    yield element("div", _chart(weeks), class_="scroll")
    marks = [element("span", element("i", class_=f"key c-{one}"), name) for one, name in words.NAMES.items()]
    yield element("div", *marks, class_="legend")
    rows = [
        (
            week.name,
            week.begins.isoformat(),
            f"{week.count:,}",
            *(f"{week.interruptions[one]:,}" for one in words.NAMES),
            "" if week.per_1000_gpu_hours is None else words.hours(week.per_1000_gpu_hours),
        )
        for week in weeks
    ]
    heads = ("week", "from", "all", *words.NAMES.values(), "per 1,000 GPU-hours")
    yield element("details", element("summary", "The numbers"), _table(heads, rows, ("", "", *("n",) * 7)))
    before = sum(week.count for week in fleet.trend.weeks[:-_MOST_WEEKS]) + fleet.trend.earlier
    told = [(before, "before that"), (fleet.trend.untimed, "without a time")]
    left = "; ".join(f"{count:,} {what}" for count, what in told if count)
    if left:
        yield element("p", f"{left}.", class_="lead")


def _chart(weeks: Sequence[Week]) -> Html:
    highest = max(1, *(week.count for week in weeks))
    made = []
    for at, week in enumerate(weeks):
        left, base = at * _CHART_STEP + (_CHART_STEP - _CHART_BAR) / 2, _CHART_HIGH + 20.0
        middle = f"{left + _CHART_BAR / 2:g}"
        for category in words.NAMES:
            count = week.interruptions[category]
            high = _CHART_HIGH * count / highest
            base -= high
            if count:
                title = element("title", f"{week.name}: {words.NAMES[category]} {count:,}")
                size: dict[str, str | float | None] = {
                    "x": f"{left:g}",
                    "y": f"{base:.2f}",
                    "width": _CHART_BAR,
                    "height": f"{high:.2f}",
                }
                made.append(element("rect", title, class_=f"c-{category}", **size))
        made.append(element("text", f"{week.count:,}", x=middle, y=f"{base - 4:.2f}", class_="mid small"))
        made.append(element("text", week.name[5:], x=middle, y=_CHART_HIGH + 36, class_="mid small dim"))
    wide, high = len(weeks) * _CHART_STEP, _CHART_HIGH + 44
    return element("svg", *made, width=wide, height=high, viewBox=f"0 0 {wide} {high}", role="img")


def _places(fleet: Fleet) -> Iterable[Html]:
    if fleet.shared:
        yield element("h3", "Hangs whose culprits share a place")
        yield element("ul", *(element("li", words.shared(one)) for one in fleet.shared[:_MOST_RUNS]))
        if len(fleet.shared) > _MOST_RUNS:
            yield element("p", f"and {len(fleet.shared) - _MOST_RUNS:,} more", class_="lead")
    rows = [
        (
            called(one.kind, one.name),
            f"{one.jobs:,}",
            shares.text(one.jobs, one.of),
            f"{one.expected:.1f}",
            f"{100 * one.expected / one.of:.1f} %" if one.of else "",
        )
        for one in fleet.parts
    ]
    if rows:
        yield element("h3", "Jobs that name a port of each")
        yield _table(("", "jobs", "of all such jobs", "even spread", "of all such jobs"), rows, ("", *("n",) * 4))


def _repeats(fleet: Fleet) -> Html:
    rows = [
        (f"job {one.job}", words.repeat(one), words.some(one.runs[:_MOST_RUNS], _MOST_RUNS, len(one.runs)))
        for one in fleet.repeats
    ]
    return _table(("job", "what", "runs"), rows, ("w", "", "m"))


def _slow(fleet: Fleet) -> list[tuple[str, ...]]:
    return [(one.name, f"{one.count:,}", words.sure(one)) for one in fleet.slow]


def _reference(fleet: Fleet) -> Iterable[Html]:
    yield _table(("", "here", "share", "Llama 3 405B", "share"), words.reference(fleet), ("", *("n",) * 4))
    rows = [
        (
            row.component,
            row.theirs,
            words.NAMES[row.category],
            f"{row.count:,}",
            shares.text(row.count, llama3.UNEXPECTED),
            f"{row.printed:.1f} %",
        )
        for row in llama3.ROWS
    ]
    printed = f"{sum(row.printed for row in llama3.ROWS):.1f} %"
    rows.append(("all", "", "", f"{llama3.UNEXPECTED:,}", shares.text(1, 1), printed))
    yield element("h3", f"{llama3.NAME}: all rows ({llama3.SOURCE})")
    heads = ("component", "their category", "ours", "count", "share", "as printed")
    yield _table(heads, rows, ("", "", "", "n", "n", "n"))
    yield element("ol", *(element("li", note) for note in llama3.footnotes()), class_="notes")


def _problems(fleet: Fleet) -> Html:
    return _table(("run", "problem"), fleet.problems, ("m", ""))


def _left_out(fleet: Fleet) -> Html:
    return element("ul", *(element("li", one) for one in fleet.left_out)) if fleet.left_out else Html("")


def _runs(fleet: Fleet) -> Iterable[Html]:
    if fleet.runs.is_empty():
        return
    yield element(
        "label",
        "Show runs with ",
        element("input", id="filter", type="search", placeholder="host, cause, job, status", autocomplete="off"),
        element("span", number_of(fleet.runs.height, "run"), id="shown"),
        class_="filter",
    )
    known = ("run", "job", "status", "cause", "confidence", "structure")
    heads = (*known, "onset (UTC)", "ranks", "GPU-h lost", "culprits")
    kinds = ("m", "m", "w", "", "w", "", "w", "n", "n", "m")
    rows = [_run(row) for row in fleet.runs.iter_rows(named=True)]
    yield _table(heads, rows, kinds, ident="all")


def _run(row: dict[str, Any]) -> tuple[str, ...]:
    links = [f"{one['host']}:{one['device']}" for one in row["culprit_links"]]
    culprits = links or row["culprit_hosts"] or [f"rank {rank}" for rank in row["culprit_ranks"]]
    lost = row["gpu_hours_lost"]
    return (
        row["run"],
        row["job"] or "",
        row["status"],
        row["cause"] or "",
        row["cause_confidence"] or "",
        f"{row['structure'] or ''}{' ' + row['detail'] if row['detail'] else ''}",
        words.minute(row["onset_at"]),
        "" if row["world_size"] is None else f"{row['world_size']:,}",
        "" if lost is None else words.hours(lost),
        words.some(culprits[:_MOST_CAUSES], _MOST_CAUSES, len(culprits)),
    )


def _cell(text: str, kind: str) -> Html:
    """Text whose long names may be broken behind what joins their parts; numbers and times may not."""
    return page(text) if kind in ("n", "w") else Html(_JOINTS.sub(r"\1<wbr>", page(text)))


def _section(title: str, lead: str, *inside: str, ident: str | None = None) -> Html:
    if not any(inside):
        return Html("")
    told = [element("p", lead, class_="lead")] if lead else []
    return element("section", element("h2", title), *told, element("div", *inside, class_="card"), id=ident)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], kinds: Sequence[str], ident: str | None = None) -> Html:
    if not rows:
        return Html("")
    head = element("tr", *(element("th", name, class_=kind or None) for name, kind in zip(heads, kinds, strict=True)))
    body = [
        element(
            "tr",
            *(element("td", _cell(cell, kind), class_=kind or None) for cell, kind in zip(row, kinds, strict=True)),
        )
        for row in rows
    ]
    return element("div", element("table", element("thead", head), element("tbody", *body), id=ident), class_="scroll")
