"""The round chart: ranks against time around the onset, so that the missing rank is plain to see."""

from __future__ import annotations

import pathlib
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import matplotlib as mpl
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from roundk.analyze.case import Case, Group
from roundk.analyze.control import DESTROY
from roundk.analyze.names import Detail, Structure
from roundk.analyze.phrases import NS_PER_S, duration
from roundk.analyze.verdict import Report, Verdict
from roundk.tracer.errors import RoundkError

MAX_LANES: Final = 64
"""Ranks that one chart can show and be read; the others are folded into a line of text."""

ROUNDS_BEFORE: Final = 5
"""Rounds shown before the onset."""

AFTER: Final = 0.8
"""Share of the time before the onset that is shown after it, where the waiting lasts longer."""

_COLOURS: Final = {"completed": "#7fa6c9", "failed": "#d9822b", "open": "#f2c14e", "not_recorded": "#d5d8dc"}
_LABELS: Final = {
    "completed": "completed",
    "failed": "failed",
    "open": "never ended",
    "not_recorded": "end not recorded",
}
_CULPRIT: Final = "#b3261e"
_ROOMY: Final = 16
"""Up to so many lanes are high enough for text in the bars."""

_MIN_SHARE: Final = 0.003
"""Least width of a bar as a share of the chart: a call of microseconds must still be seen."""


_UNITS: Final = (("seconds", NS_PER_S), ("milliseconds", NS_PER_S // 1_000), ("microseconds", NS_PER_S // 1_000_000))


@dataclass(frozen=True)
class _Window:
    """What is shown: lanes from top to bottom, and the time from `left` to `right` around `zero`, all Unix ns."""

    ranks: tuple[int, ...]
    folded: int
    zero: int
    left: int
    right: int

    @property
    def unit(self) -> tuple[str, int]:
        """Name and length of the unit in which a tick of the axis is a number one can read."""
        return next((unit for unit in _UNITS if self.right - self.left >= 2 * unit[1]), _UNITS[-1])

    def at(self, time_ns: int) -> float:
        """A time on the axis."""
        return (time_ns - self.zero) / self.unit[1]


def draw(case: Case, report: Report, path: pathlib.Path) -> None:
    """Draw the rounds around the onset of the first verdict.

    Args:
        case: The case.
        report: The report on it.
        path: The picture to write; its ending decides the form (png, svg, pdf).

    Raises:
        RoundkError: The picture cannot be written.
    """
    verdict = report.verdicts[0]
    window = _window(case, verdict)
    height = 1.9 + max(3, len(window.ranks)) * (0.42 if len(window.ranks) <= _ROOMY else 0.2)
    with mpl.rc_context(
        {"font.size": 9, "hatch.linewidth": 0.6, "hatch.color": "#8a6d1f", "font.family": "sans-serif"}
    ):
        figure = Figure(figsize=(11, height), layout="constrained")
        axes = figure.add_subplot()
        outcomes = _bars(case, axes, window)
        _lanes(case, axes, window, verdict)
        _rounds(case, axes, window, verdict)
        _frame(axes, window, verdict)
        handles = [Patch(facecolor=_COLOURS[o], hatch=_hatch(o), label=_LABELS[o]) for o in _COLOURS if o in outcomes]
        figure.legend(handles=handles, loc="outside lower right", ncols=4, frameon=False)
        _title(figure, verdict)
        try:
            figure.savefig(path, dpi=130)
        except (OSError, ValueError) as error:
            raise RoundkError(f"{path}: the chart cannot be written: {error}; name a .png or .svg file") from error


def _window(case: Case, verdict: Verdict) -> _Window:
    ranks, folded = _chosen(case, verdict)
    zero = verdict.onset_ns if verdict.onset_ns is not None else _last_round_ns(case)
    rounds = case.ordinary_rounds
    before = rounds.filter(pl.col("first_enter_ns") < zero).sort("first_enter_ns").tail(ROUNDS_BEFORE)
    left = int(before["first_enter_ns"][0]) if before.height else zero - NS_PER_S // 10
    end = max([*_ends(case), zero])
    right = min(end, zero + max(round((zero - left) * AFTER), 1_000_000))
    # A straggler's onset is the first enter of the round: its own enter has to be in the picture.
    for late in verdict.occurrences[:1]:
        right = max(right, late.time_ns + (zero - left) // 4)
    margin = max((right - left) // 40, 1)
    return _Window(ranks, folded, zero, left - margin, right + margin)


def _ends(case: Case) -> list[int]:
    known = [case.last_alive_ns]
    known += [int(t) for t in (case.calls["end_ns"].max(), case.calls["enter_ns"].max()) if isinstance(t, int)]
    return known


def _last_round_ns(case: Case) -> int:
    last = case.ordinary_rounds["first_enter_ns"].max()
    return last if isinstance(last, int) else case.last_alive_ns


def _chosen(case: Case, verdict: Verdict) -> tuple[tuple[int, ...], int]:
    """The ranks to show in order of number: culprits, their group, then others, as many as can be read."""
    everyone = list(case.endings)
    group = _group(case, verdict)
    members = () if group is None else group.ranks
    wanted = dict.fromkeys([*verdict.culprit_ranks, *verdict.waiting_ranks, *members, *everyone])
    limit = MAX_LANES if len(everyone) <= MAX_LANES else MAX_LANES // 2
    shown = sorted(list(wanted)[:limit])
    return tuple(shown), len(everyone) - len(shown)


def _group(case: Case, verdict: Verdict) -> Group | None:
    """The verdict's group; of several with one name, the one that has its ranks."""
    if verdict.group is None:
        return None
    named = [g for g in case.groups.values() if (g.name, g.desc) == (verdict.group.name, verdict.group.desc)]
    if verdict.op == DESTROY:
        named.reverse()  # the destroying of groups has a key of its own, behind that of their making
    concerned = {*verdict.culprit_ranks, *verdict.waiting_ranks}
    return next((g for g in named if concerned.issubset(g.ranks)), next(iter(named), None))


def _bars(case: Case, axes: Axes, window: _Window) -> set[str]:
    """One bar per call, from enter to end or to the right edge; returns the outcomes that occur."""
    lane = {rank: at for at, rank in enumerate(window.ranks)}
    shown = case.calls.filter(
        pl.col("rank").is_in(list(window.ranks)),
        pl.col("enter_ns") <= window.right,
        pl.col("end_ns").fill_null(window.right) >= window.left,
    ).select("rank", "enter_ns", "end_ns", outcome=pl.col("outcome").cast(pl.String))
    least = (window.right - window.left) * _MIN_SHARE
    found: set[str] = set()
    for (outcome,), part in shown.partition_by("outcome", as_dict=True).items():
        name = str(outcome)
        found.add(name)
        starts, widths, lanes = [], [], []
        for rank, enter, end, _ in part.iter_rows():
            until = end if end is not None else enter + least if name == "not_recorded" else window.right
            start = max(enter, window.left)
            starts.append(window.at(start))
            widths.append(max(min(until, window.right) - start, least) / window.unit[1])
            lanes.append(lane[rank])
            if until > window.right and name == "failed" and len(window.ranks) <= _ROOMY:
                axes.annotate(
                    f"{duration(until - enter)} in all →", (window.at(window.right), lanes[-1]), xytext=(-5, 0),
                    textcoords="offset points", va="center", ha="right", fontsize=8, zorder=5,
                    bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.0},
                )  # fmt: skip
        axes.barh(
            lanes, widths, left=starts, height=0.62, color=_COLOURS[name], edgecolor="white", linewidth=0.4,
            hatch=_hatch(name), zorder=3,
        )  # fmt: skip
    return found


def _hatch(outcome: str) -> str:
    return "////" if outcome in ("open", "failed") else ""


def _lanes(case: Case, axes: Axes, window: _Window, verdict: Verdict) -> None:
    """Mark the culprits' lanes and say what is missing there."""
    for at, rank in enumerate(window.ranks):
        if rank not in verdict.culprit_ranks:
            continue
        axes.axhspan(at - 0.5, at + 0.5, color=_CULPRIT, alpha=0.08, zorder=0)
        text = _note(case, verdict, rank)
        if text:
            late = next((o.time_ns for o in verdict.occurrences if o.rank == rank), None)
            where = window.at(_free_from(case, window, rank) if late is None else late)
            axes.annotate(
                text, (where, at), xytext=(6 if late is None else -6, 0), textcoords="offset points", color=_CULPRIT,
                va="center", ha="left" if late is None else "right", fontweight="bold", zorder=5,
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.0},
            )  # fmt: skip


def _free_from(case: Case, window: _Window, rank: int) -> int:
    """The end of the bar that reaches over the onset in a rank's lane, or the onset."""
    over = case.calls.filter(pl.col("rank") == rank, pl.col("enter_ns") < window.zero, pl.col("end_ns") > window.zero)[
        "end_ns"
    ].max()
    middle = (window.zero + window.right) // 2
    return min(over, middle) if isinstance(over, int) else window.zero


def _note(case: Case, verdict: Verdict, rank: int) -> str:
    call = f"{verdict.op} #{verdict.seq}"
    if verdict.structure is Structure.STUCK_IN_INIT:
        return f"rank {rank} never called {verdict.op}" if verdict.detail is not Detail.RAISED else ""
    if verdict.structure is Structure.RANK_NOT_ENTERED:
        return f"rank {rank} never entered {call}"
    if verdict.structure is Structure.STRAGGLER:
        late = next((o for o in verdict.occurrences if o.rank == rank), None)
        after = duration(late.time_ns - (verdict.onset_ns or late.time_ns)) if late is not None else ""
        return f"{after} late for {call}"
    if verdict.structure is Structure.SIGNATURE_MISMATCH and verdict.seq is not None:
        group = _group(case, verdict)
        made = None if group is None else case.call(group.key, verdict.seq, rank)
        return "" if made is None else f"rank {rank} called {made['op']} {made['shapes'] or ''} here"
    return {
        Structure.SKIPPED_CALL: f"rank {rank} skipped a call here: {call} of its peers",
        Structure.EXTRA_CALL: f"rank {rank} made {call} in addition",
    }.get(verdict.structure, f"rank {rank}")


def _rounds(case: Case, axes: Axes, window: _Window, verdict: Verdict) -> None:
    """The seqs of the verdict's group, above the first enter of each round."""
    group = _group(case, verdict) or next((g for g in case.groups.values() if not g.is_control), None)
    if group is None:
        return
    shown = case.rounds.filter(
        pl.col("group") == group.key, pl.col("first_enter_ns") >= window.left, pl.col("first_enter_ns") <= window.right
    ).sort("seq")
    # Numbers closer than a twentieth of the chart would run into each other; the onset's own is always there.
    step, last = (window.right - window.left) / 22, float("-inf")
    for seq, first in shown.select("seq", "first_enter_ns").iter_rows():
        chosen = seq == verdict.seq
        near_onset = verdict.onset_ns is not None and 0 < verdict.onset_ns - first < step
        if not chosen and (first - last < step or near_onset):
            continue
        last = first
        axes.annotate(
            f"#{seq}", (window.at(first), -0.5), xytext=(0, 3), textcoords="offset points", ha="center",
            va="bottom", fontsize=8, color=_CULPRIT if chosen else "#555555", annotation_clip=False,
            fontweight="bold" if chosen else "normal",
        )  # fmt: skip


def _frame(axes: Axes, window: _Window, verdict: Verdict) -> None:
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
    folded = f"      {window.folded} more ranks are not shown" if window.folded else ""
    axes.set_xlabel(f"{window.unit[0]} {since}{folded}", loc="left")
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#e6e6e6", linewidth=0.6, zorder=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _title(figure: Figure, verdict: Verdict) -> None:
    lines: Sequence[str] = textwrap.wrap(verdict.summary, 135, max_lines=3, placeholder=" ...")
    figure.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=10)
