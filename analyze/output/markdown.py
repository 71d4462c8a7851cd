"""The report as Markdown, short enough for an issue or a chat."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from roundk.analyze.output import words
from roundk.analyze.output.safe import code, markdown
from roundk.analyze.phrases import number_of, ranks_text
from roundk.analyze.picture import Picture
from roundk.analyze.verdict import Report, Verdict

MAX_EVIDENCE: Final = 8
_MOST_ROOTS: Final = 3
_MOST_BEHIND: Final = 2


def render(report: Report, pictures: Sequence[Picture] = ()) -> str:
    """The report as Markdown.

    Args:
        report: What to say.
        pictures: Who waits for whom, of each verdict; none: that is left out.
    """
    blocks: list[str] = []
    for number, verdict in enumerate(report.verdicts):
        picture = pictures[number] if number < len(pictures) else Picture()
        state = report.status.value.upper() if not number else "Also"
        told = words.head(verdict, report.status) if not number else words.name(verdict)
        blocks.append(f"### {markdown(f'{state}: {told}' if told else state)}")
        blocks += _verdict(verdict, picture)
    blocks.append(_end(report))
    return "\n\n".join(blocks)


def _verdict(verdict: Verdict, picture: Picture) -> list[str]:
    blocks = [f"**{markdown(verdict.summary)}**"]
    facts = words.facts(verdict)
    held = words.waiting(verdict, picture)
    if held:
        facts.append(("waiting", held))
    if facts:
        blocks.append(_table(("", ""), ((label, markdown(text)) for label, text in facts)))
    waits = _waits(picture)
    if waits:
        blocks.append(waits)
    if verdict.next_steps:
        steps = (f"{number}. {markdown(step)}" for number, step in enumerate(verdict.next_steps, start=1))
        blocks.append("\n".join(["**Next**", "", *steps]))
    found = words.pieces(verdict)
    if found:
        rows = [
            (markdown(one.what), markdown(one.offset), code(one.source) if one.source else "")
            for one in found[:MAX_EVIDENCE]
        ]
        blocks.append(_table(("evidence", "after the onset", "source"), rows))
    if len(found) > MAX_EVIDENCE:
        blocks.append(
            f"and {number_of(len(found) - MAX_EVIDENCE, 'more piece of evidence', 'more pieces of evidence')}"
        )
    against = _list("Against it", verdict.contradictions)
    return [*blocks, *against]


def _waits(picture: Picture) -> str:
    if not picture.roots:
        return ""
    shown = [*picture.roots[:_MOST_ROOTS], *(picture.behind if len(picture.behind) <= _MOST_BEHIND else ())]
    rows = [(markdown(ranks_text(one.ranks)), markdown(words.place(one)), markdown(words.on(one))) for one in shown]
    left = len(picture.roots) - _MOST_ROOTS
    if left > 0:
        rows.append((f"and so in {number_of(left, 'more round')}", "", ""))
    if len(picture.behind) > _MOST_BEHIND:
        rows.append((markdown(words.further(picture)), "", ""))
    return _table(("who waits", "where", "for whom"), rows)


def _list(title: str, texts: Iterable[str]) -> list[str]:
    items = [f"- {markdown(text)}" for text in dict.fromkeys(texts)]
    return ["\n".join([f"**{title}**", "", *items])] if items else []


def _end(report: Report) -> str:
    (_, read), *rest = words.coverage(report.coverage)
    told = "; ".join([f"Read: {read}", *(f"{label}: {text}" for label, text in rest)])
    lines = [f"{markdown(told)}."]
    for title, texts in (("Not checked", words.unchecked(report)), ("Notes", list(dict.fromkeys(report.notes)))):
        if texts:
            lines.append(f"{title}: {' '.join(markdown(_sentence(text)) for text in texts)}")
    return "\n\n".join(lines)


def _sentence(text: str) -> str:
    """A text that stands among others on one line."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
