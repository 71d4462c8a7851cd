"""The throughput of a job's ports over time as a picture: events as marks, slow and stuck rounds shaded."""

from __future__ import annotations

import pathlib
import textwrap
from collections.abc import Sequence
from typing import Final

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from roundk.analyze.links.lanes import Chart, Lane, Rates, chart
from roundk.analyze.links.view import Links
from roundk.analyze.phrases import NS_PER_S, number_of
from roundk.analyze.plot import save
from roundk.analyze.verdict import Report
from roundk.tracer.errors import RoundkError

_OUT, _IN, _DOWN, _TICK = "#3f74a3", "#9dbdd8", "#b3261e", "#d9822b"
_SLOW, _STUCK = "#f2c14e", "#c77b58"
_CHANGE: Final = "#6a3d9a"
_ROOMY: Final = 6
"""Up to so many lanes are high enough for numbers at the side."""
_UNITS: Final = ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s"))
_PEAK: Final = 99.5
"""Percentile of the throughput that fills a lane: a burst must not press all others to the ground."""


def draw(links: Links, report: Report, path: pathlib.Path) -> None:
    """Draw the throughput of the ports.

    Args:
        links: What is known of the links.
        report: The report on the job.
        path: The picture to write; its ending decides the form (png, svg, pdf); without one: png.

    Raises:
        RoundkError: There is nothing to draw, or the picture cannot be written.
    """
    shown = chart(links)
    if shown is None or not shown.lanes:
        raise RoundkError(f"{path}: there is nothing to draw: no port's bytes were read twice, with the time")
    count = len(shown.lanes) + bool(shown.others)
    high = 1.0 if count <= _ROOMY else 0.46
    with mpl.rc_context({"font.size": 9, "font.family": "sans-serif"}):
        figure = Figure(figsize=(11, 1.9 + count * high), layout=ConstrainedLayoutEngine(hspace=0.0, h_pad=0.03))
        grid = figure.subplots(count, 1, sharex=True, squeeze=False)
        every = [axes for row in grid for axes in row]
        peak = _peak(shown)
        for axes, lane in zip(every, shown.lanes, strict=False):
            _lane(axes, lane, shown, peak, links)
        if shown.others:
            _spread(every[-1], shown, links)
        _frame(every, shown, peak, roomy=count <= _ROOMY)
        figure.legend(handles=_legend(shown, links), loc="outside lower right", ncols=8, frameon=False, fontsize=8)
        figure.suptitle(_title(report), x=0.01, ha="left", fontsize=10)
        save(figure, path)


def _peak(shown: Chart) -> float:
    rates = np.concatenate([part for lane in (*shown.lanes, *shown.others) for part in (lane.out, lane.into)])
    known = rates[np.isfinite(rates) & (rates > 0)]
    return float(np.percentile(known, _PEAK)) if len(known) else 1.0


def _at(shown: Chart, time_ns: int) -> float:
    return (time_ns - shown.zero) / NS_PER_S


def _steps(shown: Chart) -> Rates:
    return np.asarray((shown.edges - shown.zero) / NS_PER_S, dtype=np.float64)


def _lane(axes: Axes, lane: Lane, shown: Chart, peak: float, links: Links) -> None:
    times = _steps(shown)
    axes.stairs(np.nan_to_num(lane.out), times, fill=True, color=_OUT, zorder=3)
    axes.stairs(-np.nan_to_num(lane.into), times, fill=True, color=_IN, zorder=3)
    _shade(axes, links, shown)
    _unread(axes, lane, times)
    for event in lane.events:
        at = _at(shown, event.time_ns or 0)
        if event.is_down:
            until = event.until_ns if event.until_ns is not None else int(shown.edges[-1])
            if event.before_ns is None:
                axes.axvspan(at, _at(shown, until), color=_DOWN, alpha=0.3, zorder=4, linewidth=0)
            axes.plot([at], [peak * 0.95], marker="v", color=_DOWN, markersize=7, zorder=6, clip_on=False)
            if event.until_ns is not None:
                back = _at(shown, event.until_ns)
                axes.plot([back], [peak * 0.95], marker="^", color=_DOWN, markersize=7, zorder=6, clip_on=False)
        else:
            axes.plot([at], [peak * 0.95], marker="D", color=_CHANGE, markersize=5, zorder=6, clip_on=False)
    if lane.ticks:
        ticks = [_at(shown, one) for one in lane.ticks]
        axes.plot(ticks, [-peak * 0.98] * len(ticks), "|", color=_TICK, markersize=7, zorder=6, clip_on=False)
    _name(axes, f"{lane.port.host} {lane.port.label}", is_unused=lane.port.use == "unused", is_hot=bool(lane.events))


def _name(axes: Axes, name: str, *, is_unused: bool = False, is_hot: bool = False) -> None:
    axes.set_ylabel(
        f"{name}{' (not in use)' if is_unused else ''}",
        rotation=0, ha="right", va="center", color=_DOWN if is_hot and not is_unused else "#222222",
        fontweight="bold" if is_hot else "normal",
    )  # fmt: skip


def _shade(axes: Axes, links: Links, shown: Chart) -> None:
    for window in links.windows:
        begin, end = _at(shown, window.begin_ns), _at(shown, window.end_ns)
        axes.axvspan(begin, end, color=_STUCK if window.is_stuck else _SLOW, alpha=0.3, zorder=1, linewidth=0)


def _unread(axes: Axes, lane: Lane, times: Rates) -> None:
    """Hatch where nothing was read: an empty lane is no silence."""
    blank = np.isnan(lane.out) & np.isnan(lane.into)
    changes = np.flatnonzero(np.diff(np.concatenate([[0], blank.astype(int), [0]])))
    for begin, end in zip(changes[::2], changes[1::2], strict=True):
        axes.axvspan(
            times[begin], times[end], facecolor="none", edgecolor="#c9c9c9", hatch="///", linewidth=0, zorder=2
        )


def _spread(axes: Axes, shown: Chart, links: Links) -> None:
    """The ports without a lane of their own: the median, and where nine in ten lie."""
    times = _steps(shown)
    for sign, colour, rates in (
        (1, _OUT, np.array([lane.out for lane in shown.others])),
        (-1, _IN, np.array([lane.into for lane in shown.others])),
    ):
        low, middle, high = np.percentile(np.nan_to_num(rates), [5, 50, 95], axis=0)
        axes.stairs(sign * high, times, baseline=sign * low, fill=True, color=colour, alpha=0.35, zorder=3)
        axes.stairs(sign * middle, times, baseline=None, color=colour, linewidth=1.4, zorder=4)
    _shade(axes, links, shown)
    _name(axes, f"{len(shown.others)} other ports")
    axes.annotate(
        "median, and where 9 of 10 lie", (1, 0), xycoords="axes fraction", ha="right", va="bottom", fontsize=7,
        color="#555555",
    )  # fmt: skip


def _frame(every: Sequence[Axes], shown: Chart, peak: float, *, roomy: bool) -> None:
    size, unit = next((size, unit) for size, unit in _UNITS if peak >= size or size == 1.0)
    for number, axes in enumerate(every):
        axes.set_ylim(-peak * 1.12, peak * 1.12)
        axes.set_xlim(_at(shown, int(shown.edges[0])), _at(shown, int(shown.edges[-1])))
        axes.axhline(0, color="#777777", linewidth=0.6, zorder=5)
        is_told = roomy or number == 0
        axes.set_yticks(
            [-peak, 0, peak], [f"{peak / size:.3g}", "0", f"{peak / size:.3g} {unit}"] if is_told else [""] * 3
        )
        axes.yaxis.tick_right()
        axes.tick_params(axis="y", length=0, labelsize=7, colors="#555555")
        axes.tick_params(axis="x", length=3 if number == len(every) - 1 else 0)
        axes.grid(axis="x", color="#e6e6e6", linewidth=0.6, zorder=0)
        for side in ("top", "right", "left", "bottom"):
            axes.spines[side].set_visible(side == "bottom")
            axes.spines[side].set_color("#c9c9c9")
    left_out = f"      {number_of(shown.left_out, 'port')} not in use not shown" if shown.left_out else ""
    every[-1].set_xlabel(f"seconds {shown.since}, spread evenly between two readings{left_out}", loc="left")


def _legend(shown: Chart, links: Links) -> list[Artist]:
    made: list[Artist] = [Patch(color=_OUT, label="out (up)"), Patch(color=_IN, label="in (down)")]
    kinds = {one.is_stuck for one in links.windows}
    made += [Patch(color=_STUCK, alpha=0.4, label="rounds stuck")] if True in kinds else []
    made += [Patch(color=_SLOW, alpha=0.4, label="rounds slow")] if False in kinds else []
    events = [event for lane in shown.lanes for event in lane.events]
    if any(event.is_down for event in events):
        made.append(_mark("v", _DOWN, "port down"))
    if any(event.until_ns is not None for event in events):
        made.append(_mark("^", _DOWN, "back up"))
    if any(not event.is_down for event in events):
        made.append(_mark("D", _CHANGE, "changed"))
    if any(np.isnan(lane.out).any() for lane in shown.lanes):
        made.append(Patch(facecolor="none", edgecolor="#c9c9c9", hatch="///", linewidth=0, label="not read"))
    if any(lane.ticks for lane in shown.lanes):
        made.append(_mark("|", _TICK, "errors or timeouts counted"))
    return made


def _mark(marker: str, colour: str, label: str) -> Line2D:
    return Line2D([], [], linestyle="none", marker=marker, color=colour, label=label)


def _title(report: Report) -> str:
    verdict = report.verdicts[0]
    text = verdict.summary if report.coverage.ranks_seen else "Throughput of the ports"
    return "\n".join(textwrap.wrap(text, 135, max_lines=3, placeholder=" ..."))
