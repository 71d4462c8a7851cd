"""The round chart as a picture: ranks against time around the onset, so that the missing rank is plain to see."""

from __future__ import annotations

import pathlib
import textwrap
from collections.abc import Sequence
from typing import Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from roundk.analyze import chart
from roundk.analyze.case import Case
from roundk.analyze.chart import Bar, Window
from roundk.analyze.phrases import duration, number_of
from roundk.analyze.verdict import Report, Verdict
from roundk.tracer.errors import RoundkError

_COLOURS: Final = {"completed": "#7fa6c9", "failed": "#d9822b", "open": "#f2c14e", "not_recorded": "#d5d8dc"}
_CULPRIT: Final = "#b3261e"
_ROOMY: Final = 16
"""Up to so many lanes are high enough for text in the bars."""


def draw(case: Case, report: Report, path: pathlib.Path) -> None:
    """Draw the rounds around the onset of the first verdict.

    Args:
        case: The case.
        report: The report on it.
        path: The picture to write; its ending decides the form (png, svg, pdf); without one: png.

    Raises:
        RoundkError: The picture cannot be written.
    """
    verdict = report.verdicts[0]
    window = chart.window(case, verdict)
    height = 1.9 + max(3, len(window.ranks)) * (0.42 if len(window.ranks) <= _ROOMY else 0.2)
    with mpl.rc_context(
        {"font.size": 9, "hatch.linewidth": 0.6, "hatch.color": "#8a6d1f", "font.family": "sans-serif"}
    ):
        figure = Figure(figsize=(11, height), layout="constrained")
        axes = figure.add_subplot()
        outcomes = _bars(chart.bars(case, window), axes, window)
        _lanes(case, axes, window, verdict)
        _rounds(case, axes, window, verdict)
        _frame(axes, window, verdict)
        handles = [
            Patch(facecolor=_COLOURS[o], hatch=_hatch(o), label=chart.OUTCOMES[o]) for o in _COLOURS if o in outcomes
        ]
        figure.legend(handles=handles, loc="outside lower right", ncols=4, frameon=False)
        _title(figure, verdict)
        save(figure, path)


def save(figure: Figure, path: pathlib.Path) -> None:
    """Write a picture to the very file that was named.

    Args:
        figure: The picture.
        path: The file; its ending decides the form, without one it is PNG.

    Raises:
        RoundkError: It cannot be written.
    """
    form = path.suffix.removeprefix(".") or "png"  # matplotlib would write to another name
    try:
        figure.savefig(path, dpi=130, format=form)
    except (OSError, ValueError) as error:
        raise RoundkError(f"{path}: the chart cannot be written: {error}; name a .png or .svg file") from error


def _bars(bars: Sequence[Bar], axes: Axes, window: Window) -> set[str]:
    """Draw the bars; returns the outcomes that occur."""
    found = {bar.outcome for bar in bars}
    for outcome in found:
        part = [bar for bar in bars if bar.outcome == outcome]
        axes.barh(
            [bar.lane for bar in part],
            [(bar.end_ns - bar.start_ns) / window.unit[1] for bar in part],
            left=[window.at(bar.start_ns) for bar in part],
            height=0.62,
            color=_COLOURS[outcome],
            edgecolor="white",
            linewidth=0.4,
            hatch=_hatch(outcome),
            zorder=3,
        )
        for bar in part:
            if bar.is_cut and bar.whole_ns is not None and outcome == "failed" and len(window.ranks) <= _ROOMY:
                axes.annotate(
                    f"{duration(bar.whole_ns)} in all →", (window.at(window.right), bar.lane), xytext=(-5, 0),
                    textcoords="offset points", va="center", ha="right", fontsize=8, zorder=5,
                    bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.0},
                )  # fmt: skip
    return found


def _hatch(outcome: str) -> str:
    return "////" if outcome in ("open", "failed") else ""


def _lanes(case: Case, axes: Axes, window: Window, verdict: Verdict) -> None:
    """Mark the culprits' lanes and say what is missing there."""
    for at, rank in enumerate(window.ranks):
        if rank in verdict.culprit_ranks:
            axes.axhspan(at - 0.5, at + 0.5, color=_CULPRIT, alpha=0.08, zorder=0)
    for note in chart.notes(case, window, verdict):
        axes.annotate(
            note.text, (window.at(note.at_ns), note.lane), xytext=(-6 if note.is_before else 6, 0),
            textcoords="offset points", color=_CULPRIT, va="center", ha="right" if note.is_before else "left",
            fontweight="bold", zorder=5, bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.0},
        )  # fmt: skip


def _rounds(case: Case, axes: Axes, window: Window, verdict: Verdict) -> None:
    """The seqs of the verdict's group, above the first enter of each round."""
    for tick in chart.ticks(case, window, verdict):
        axes.annotate(
            f"#{tick.seq}", (window.at(tick.at_ns), -0.5), xytext=(0, 3), textcoords="offset points", ha="center",
            va="bottom", fontsize=8, color=_CULPRIT if tick.is_chosen else "#555555", annotation_clip=False,
            fontweight="bold" if tick.is_chosen else "normal",
        )  # fmt: skip


def _frame(axes: Axes, window: Window, verdict: Verdict) -> None:
    count = len(window.ranks)
    if verdict.onset_ns is not None:
        axes.axvline(0, color=_CULPRIT, linestyle="--", linewidth=1, zorder=4)
    axes.set_xlim(window.at(window.left), window.at(window.right))
    axes.set_ylim(max(count, 1) - 0.5, -0.5)
    axes.set_yticks(range(count), [f"rank {rank}" for rank in window.ranks], fontsize=9 if count <= _ROOMY else 7)
    for label, rank in zip(axes.get_yticklabels(), window.ranks, strict=True):
        if rank in verdict.culprit_ranks:
            label.set_color(_CULPRIT)
            label.set_fontweight("bold")
    since = "since the onset" if verdict.onset_ns is not None else "since the last round began"
    folded = f"      {number_of(window.folded, 'more rank is', 'more ranks are')} not shown" if window.folded else ""
    axes.set_xlabel(f"{window.unit[0]} {since}{folded}", loc="left")
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#e6e6e6", linewidth=0.6, zorder=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _title(figure: Figure, verdict: Verdict) -> None:
    lines: Sequence[str] = textwrap.wrap(verdict.summary, 135, max_lines=3, placeholder=" ...")
    figure.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=10)
