"""The report as one page that needs nothing else: no network, no library, nothing of the inputs that could run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Final

from roundk.analyze import explain, heat
from roundk.analyze.case import Case
from roundk.analyze.names import Structure
from roundk.analyze.output import heatmap, roundchart, tables, words
from roundk.analyze.output.beside import Folded, Side, beside
from roundk.analyze.output.safe import Html, document, element, joined, printable
from roundk.analyze.phrases import number_of, ranks_text
from roundk.analyze.picture import Picture, Wait
from roundk.analyze.verdict import Report, Verdict

_LONG: Final = 190
"""Characters from which a sentence is set smaller, so that what to do next stays on the first screen."""

_MOST_ROOTS: Final = 3
_MOST_BEHIND: Final = 2
_MOST_STEPS: Final = 6
_SIDE_BY_SIDE: Final = 64
"""Up to so many ranks, two maps stand side by side."""

_STYLE: Final = "page.css"
_SCRIPT: Final = "page.js"

_STATES: Final = {"c": "sc", "w": "sw", "o": "so", ".": "sq", "n": "sn"}
_BEHIND: Final = {"0": "b0", "1": "b1", "2": "b2", "3": "b3", "4": "b4", "u": "bu", "-": "bx"}


def render(case: Case, report: Report, pictures: Sequence[Picture]) -> str:
    """The report as a page.

    Args:
        case: The case.
        report: The report on it.
        pictures: Who waits for whom, of each verdict.
    """
    root = report.verdicts[0]
    ranks = heat.known_ranks(case)
    return document(
        f"roundk: {root.structure.value}: {root.summary[:80]}",
        (_STYLE,),
        _SCRIPT,
        *_parts(case, report, pictures, ranks),
        data_ranks=json.dumps(_runs(ranks)),
        data_hosts=json.dumps(_hosts(case, ranks)),
    )


def _parts(case: Case, report: Report, pictures: Sequence[Picture], ranks: tuple[int, ...]) -> Iterable[Html]:
    root, picture = report.verdicts[0], pictures[0]
    yield _top(report, root, picture)
    yield from (_also(verdict, pictures[at]) for at, verdict in enumerate(report.verdicts) if at)
    yield _section("Rounds around the onset", "A bar is a call, from enter to end.", roundchart.draw(case, root))
    yield from _stacks(case, root, picture)
    if ranks:
        yield from _maps(case, root, picture, ranks)
    yield _section(
        "Evidence",
        "",
        tables.evidence(root),
        *_list("Against it", root.contradictions),
        *_list("Not checked", words.unchecked(report)),
        *_list("Notes", report.notes),
    )
    yield _section("All verdicts", "", tables.verdicts(report) if len(report.verdicts) > 1 else "")
    yield _section("Rounds of this group", "", tables.rounds(case, root))
    yield _section(
        "Frontier by group", "How far the members came; groups that are level are counted.", tables.frontier(case, root)
    )
    yield _section("What was read", "", tables.coverage(case, report))
    yield from _meanings(root)
    yield element("footer", "Made by roundk. This page is complete: it loads nothing and can be passed on as it is.")


def _top(report: Report, verdict: Verdict, picture: Picture) -> Html:
    state = report.status.value
    strip = element(
        "div",
        element("span", state.upper().replace("_", " "), class_=f"state {state}"),
        element("span", words.head(verdict, report.status), class_="kind"),
        element("span", "roundk", class_="tool"),
        class_="strip",
    )
    sentence = element("h1", verdict.summary, id="verdict", class_="long" if len(verdict.summary) > _LONG else None)
    return element("header", strip, sentence, _columns(verdict, picture), _waits(picture))


def _columns(verdict: Verdict, picture: Picture) -> Html:
    """The facts beside what to do."""
    steps = [element("li", step) for step in verdict.next_steps[:_MOST_STEPS]]
    facts = _facts(verdict, picture)
    cards = [element("div", facts, class_="card")] if facts else []
    if steps:
        cards.append(element("div", element("h2", "Next"), element("ol", *steps), class_="card", id="next"))
    return element("div", *cards, class_="two")


def _facts(verdict: Verdict, picture: Picture) -> Html:
    held = words.waiting(verdict, picture)
    facts = [*words.facts(verdict), *([("waiting", held)] if held else [])]
    rows = (joined(element("dt", label), element("dd", text, class_=label)) for label, text in facts)
    return element("dl", *rows) if facts else Html("")


def _waits(picture: Picture) -> Html:
    if not picture.roots:
        return Html("")
    lines = [_wait(wait) for wait in picture.roots[:_MOST_ROOTS]]
    if len(picture.roots) > _MOST_ROOTS:
        lines.append(
            element("div", f"and so in {number_of(len(picture.roots) - _MOST_ROOTS, 'more round')}", class_="wait")
        )
    if len(picture.behind) <= _MOST_BEHIND:
        lines += [_wait(wait, behind=True) for wait in picture.behind]
    else:
        lines.append(element("div", words.further(picture), class_="wait"))
    title = "Who waits for whom" + (", in a circle" if picture.is_circle else "")
    return element("div", element("h2", title), *lines, class_="card waits")


def _wait(wait: Wait, *, behind: bool = False) -> Html:
    return element(
        "div",
        element("b", ranks_text(wait.ranks)),
        element("span", words.place(wait)),
        element("span", "\u2192", class_="arrow"),
        element("span", words.on(wait), class_="on"),
        class_="wait behind" if behind else "wait",
    )


def _also(verdict: Verdict, picture: Picture) -> Html:
    return joined(
        element("h2", f"Also: {words.name(verdict)}"),
        element("p", verdict.summary),
        _columns(verdict, picture),
        _waits(picture),
        tables.evidence(verdict),
        *_list("Against it", verdict.contradictions),
    )


def _section(title: str, lead: str, *inside: str) -> Html:
    if not any(inside):
        return Html("")
    told = [element("p", lead, class_="lead")] if lead else []
    return element("section", element("h2", title), *told, element("div", *inside, class_="card"))


def _list(title: str, texts: Iterable[str]) -> list[Html]:
    items = [element("li", text) for text in dict.fromkeys(texts)]
    return [element("h3", title), element("ul", *items)] if items else []


def _stacks(case: Case, verdict: Verdict, picture: Picture) -> Iterable[Html]:
    if verdict.structure in (Structure.HEALTHY, Structure.IN_PROGRESS):
        return
    blamed, waiting = beside(case, verdict, picture)
    cards = [
        element("div", element("h2", title), *_side(side), class_=f"card {kind}")
        for title, side, kind in (("To blame", blamed, "blamed"), ("Waiting", waiting, "waiting"))
        if side.stacks or side.without
    ]
    if blamed.stacks or waiting.stacks:
        yield element("h2", "Stacks")
        yield element("p", "Innermost frame first; ranks with equal stacks are one.", class_="lead")
        yield element("div", *cards, class_="two")


def _side(side: Side) -> Iterable[Html]:
    yield from map(_folded, side.stacks)
    if side.more:
        yield element("p", f"and {number_of(side.more, 'other stack')}", class_="lead")
    if side.without:
        yield element("p", f"No stack of {ranks_text(side.without)}.", class_="lead")


def _folded(stack: Folded) -> Html:
    frames = [
        element("span", line.text + "\n", class_=None if line.is_users else "theirs", title=line.whole)
        for line in stack.lines
    ]
    return element(
        "div",
        element("div", ranks_text(stack.ranks), class_="who"),
        element("div", ", ".join(filter(None, (stack.what, stack.source))), class_="from"),
        element("pre", *frames),
        class_="stack",
    )


def _maps(case: Case, verdict: Verdict, picture: Picture, ranks: tuple[int, ...]) -> Iterable[Html]:
    ringed = set(verdict.culprit_ranks)
    marks = heat.states(case, verdict, picture, ranks)
    maps = [_map("Where every rank stands", heatmap.draw(marks, ranks, heat.STATES, _STATES, ringed))]
    families, level = heat.families(case, verdict, ranks)
    for one in families:
        what = "calls completed" if one.is_of_ends else "calls entered"
        groups = f"{one.groups:,} groups of up to {one.size:,}" if one.groups > 1 else number_of(one.size, "rank")
        drawn = heatmap.draw(one.marks, ranks, heat.BEHIND, _BEHIND, ringed)
        maps.append(_map(f"{one.text}: {what} ({groups})", drawn))
    small = len(ranks) <= _SIDE_BY_SIDE
    inside = [element("div", *maps, class_="two" if small else None)]
    if level:
        kinds = number_of(level, "more kind of groups", "more kinds of groups")
        inside.append(element("p", f"In {kinds} nobody is seen behind.", class_="lead"))
    framed = "; framed: who is to blame" if ringed else ""
    yield _section("All ranks", f"One cell per rank, in order of number{framed}.", *inside)


def _map(title: str, drawn: Html) -> Html:
    return element("div", element("h3", title), drawn)


def _meanings(verdict: Verdict) -> Iterable[Html]:
    names = dict.fromkeys(str(name) for name in (verdict.structure, verdict.detail, verdict.cause) if name)
    for entry in (entry for name in names for entry in explain.find(name)):
        told = entry.meaning
        yield element(
            "details",
            element("summary", f"What {entry.name} means"),
            *(
                joined(element("h3", title), element("p", text))
                for title, text in (
                    ("What was seen", told.means),
                    ("What it needs", told.needs),
                    ("What it can be mistaken for", told.mistaken),
                    ("What to do", told.then),
                )
                if text
            ),
        )


def _runs(ranks: Iterable[int]) -> list[tuple[int, int]]:
    """Ranks as (first, how many)."""
    runs: list[tuple[int, int]] = []
    for rank in ranks:
        if runs and rank == sum(runs[-1]):
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((rank, 1))
    return runs


def _hosts(case: Case, ranks: Iterable[int]) -> list[tuple[str, int]]:
    """Hosts of the ranks as (host, how many)."""
    runs: list[tuple[str, int]] = []
    for rank in ranks:
        host = printable((case.endings[rank].host if rank in case.endings else None) or "")
        if runs and runs[-1][0] == host:
            runs[-1] = (host, runs[-1][1] + 1)
        else:
            runs.append((host, 1))
    return runs
