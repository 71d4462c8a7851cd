"""The round chart of the page: an SVG whose colours follow the page's, so that it reads in the dark."""

from __future__ import annotations

import math
from typing import Final

from roundk.analyze import chart
from roundk.analyze.case import Case
from roundk.analyze.chart import Bar, Window
from roundk.analyze.output.safe import Html, element, joined
from roundk.analyze.phrases import duration, number_of
from roundk.analyze.verdict import Verdict

_WIDTH: Final = 1112
_LEFT: Final = 84
_RIGHT: Final = 16
_TOP: Final = 30
_BOTTOM: Final = 44
_ROOMY: Final = 16
"""Up to so many lanes are high enough for text in them."""

_MAX_BARS: Final = 4000
"""Bars that are drawn, the longest first: a page has to stay small and quick."""

_CHARACTER: Final = 7.8
_CHARACTER_SMALL: Final = 7.0
"""Width of a bold character of the notes, in high lanes and in low ones."""


def draw(case: Case, verdict: Verdict) -> Html:
    """The chart of the rounds around the onset; empty where no call has a time."""
    window = chart.window(case, verdict)
    found = sorted(chart.bars(case, window), key=lambda bar: bar.start_ns - bar.end_ns)
    if not found or not window.ranks:
        return Html("")
    bars = found[:_MAX_BARS]
    plot = _Plot(window)
    hot = {rank for rank in verdict.culprit_ranks if rank in window.ranks}
    picture = element(
        "svg",
        _patterns(),
        *(plot.band(lane) for lane, rank in enumerate(window.ranks) if rank in hot),
        *plot.axis("the onset" if verdict.onset_ns is not None else "the last round began"),
        *(plot.bar(bar) for bar in bars),
        *(plot.label(lane, rank, hot=rank in hot) for lane, rank in enumerate(window.ranks)),
        *(plot.tick(tick) for tick in chart.ticks(case, window, verdict)),
        plot.onset() if verdict.onset_ns is not None else "",
        *(plot.note(note) for note in chart.notes(case, window, verdict)),
        width=_WIDTH,
        height=plot.height,
        viewBox=f"0 0 {_WIDTH} {plot.height}",
        role="img",
        aria_label="round chart",
    )
    left_out = [
        f"{number_of(window.folded, 'more rank is', 'more ranks are')} not shown" if window.folded else "",
        f"{len(found) - len(bars):,} short calls are not shown" if len(found) > len(bars) else "",
    ]
    return joined(element("div", picture, class_="scroll"), _legend(bars, "; ".join(filter(None, left_out))))


class _Plot:
    """Where things go in the picture."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self.lane = 27 if len(window.ranks) <= _ROOMY else 14
        self.bottom = _TOP + self.lane * len(window.ranks)
        self.height = self.bottom + _BOTTOM

    def x(self, time_ns: float) -> float:
        """A time's place."""
        share = (time_ns - self.window.left) / (self.window.right - self.window.left)
        return round(_LEFT + share * (_WIDTH - _LEFT - _RIGHT), 1)

    def y(self, lane: int) -> float:
        """The middle of a lane."""
        return _TOP + self.lane * (lane + 0.5)

    def band(self, lane: int) -> Html:
        """The ground of a culprit's lane."""
        return element("rect", class_="lane", x=0, y=_TOP + lane * self.lane, width=_WIDTH - _RIGHT, height=self.lane)

    def bar(self, bar: Bar) -> Html:
        """One call."""
        x, thick = self.x(bar.start_ns), round(self.lane * 0.64, 1)
        box: dict[str, str | float] = {
            "x": x,
            "y": round(self.y(bar.lane) - thick / 2, 1),
            "width": max(round(self.x(bar.end_ns) - x, 1), 1),
            "height": thick,
        }
        took = "" if bar.whole_ns is None else f", {duration(bar.whole_ns)}"
        says = f"rank {self.window.ranks[bar.lane]}: {bar.what}, {chart.OUTCOMES.get(bar.outcome, bar.outcome)}{took}"
        drawn = element("rect", element("title", says), class_=bar.outcome, **box)
        hatched = bar.outcome in ("open", "failed")
        drawn = joined(drawn, element("rect", fill="url(#hatch)", pointer_events="none", **box)) if hatched else drawn
        if not (bar.is_cut and bar.whole_ns is not None and self.lane > 20):
            return drawn
        told = element(
            "text", f"{duration(bar.whole_ns)} in all \u2192", class_="small halo", x=_WIDTH - _RIGHT - 6,
            y=self.y(bar.lane) + 4, text_anchor="end",
        )  # fmt: skip
        return joined(drawn, told)

    def label(self, lane: int, rank: int, *, hot: bool) -> Html:
        """The name of a lane."""
        kind = ("hot" if hot else "dim") + ("" if self.lane > 20 else " small")
        return element("text", f"rank {rank}", class_=kind, x=_LEFT - 8, y=self.y(lane) + 4.5, text_anchor="end")

    def tick(self, tick: chart.Tick) -> Html:
        """The number of a round."""
        kind = "small hot" if tick.is_chosen else "small dim"
        return element("text", f"#{tick.seq}", class_=kind, x=self.x(tick.at_ns), y=_TOP - 9, text_anchor="middle")

    def onset(self) -> Html:
        """The line at which the waiting begins."""
        x = self.x(self.window.zero)
        return element("line", class_="onset", x1=x, x2=x, y1=_TOP - 4, y2=self.bottom)

    def note(self, note: chart.Note) -> Html:
        """What is said in a culprit's lane, on a ground of its own and inside of the picture."""
        roomy = self.lane > 20
        wide = len(note.text) * (_CHARACTER if roomy else _CHARACTER_SMALL) + 10
        x = self.x(note.at_ns)
        left = x - wide - 3 if note.is_before else x + 3
        left = max(_LEFT, min(left, _WIDTH - _RIGHT - wide))
        high = min(self.lane - 2, 19)
        ground = element(
            "rect", class_="note", x=left, y=self.y(note.lane) - high / 2, width=wide, height=high, rx=3,
        )  # fmt: skip
        text = element(
            "text", note.text, class_="hot" if roomy else "hot small", x=left + 5,
            y=self.y(note.lane) + (4.5 if roomy else 4),
        )  # fmt: skip
        return joined(ground, text)

    def axis(self, since: str) -> list[Html]:
        """The line of times below, with its grid."""
        unit, length = self.window.unit
        lines = []
        step = _step((self.window.right - self.window.left) / length / 8)
        number = math.ceil(self.window.at(self.window.left) / step)
        while number * step <= self.window.at(self.window.right):
            x = self.x(self.window.zero + number * step * length)
            lines += [
                element("line", class_="rule", x1=x, x2=x, y1=_TOP, y2=self.bottom),
                element(
                    "text", f"{number * step:g}", class_="small dim", x=x, y=self.bottom + 16, text_anchor="middle"
                ),
            ]
            number += 1
        said = f"{unit} since {since}"
        return [*lines, element("text", said, class_="small dim", x=_LEFT, y=self.bottom + 34)]


def _step(rough: float) -> float:
    """The next of 1, 2, 5, 10 ... above."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)


def _patterns() -> Html:
    line = element("path", d="M0 6 6 0", stroke="var(--hatch)", stroke_width="0.8", opacity="0.55")
    pattern = element("pattern", line, id="hatch", width=6, height=6, patternUnits="userSpaceOnUse")
    return element("defs", pattern)


def _legend(bars: list[Bar], left_out: str) -> Html:
    there = {bar.outcome for bar in bars}
    keys = []
    for outcome, text in chart.OUTCOMES.items():
        if outcome in there:
            boxes = [element("rect", class_=outcome, width=18, height=11)]
            if outcome in ("open", "failed"):
                boxes.append(element("rect", fill="url(#hatch)", width=18, height=11))
            keys.append(element("span", element("svg", *boxes, width=18, height=11), text))
    return element("div", *keys, element("span", left_out), class_="legend")
