"""What a round chart shows: which ranks, which stretch of time, which calls and what to say of the culprits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from roundk.analyze.case import Case, Group
from roundk.analyze.control import DESTROY
from roundk.analyze.names import Detail, Structure
from roundk.analyze.phrases import NS_PER_S, duration
from roundk.analyze.verdict import Verdict

MAX_LANES: Final = 64
"""Ranks that one chart can show and be read; the others are folded into a line of text."""

ROUNDS_BEFORE: Final = 5
"""Rounds shown before the onset."""

AFTER: Final = 0.8
"""Share of the time before the onset that is shown after it, where the waiting lasts longer."""

MIN_SHARE: Final = 0.003
"""Least width of a bar as a share of the chart: a call of microseconds must still be seen."""

OUTCOMES: Final = {
    "completed": "completed",
    "failed": "failed",
    "open": "never ended",
    "not_recorded": "end not recorded",
}
"""What the ways in which a call can end are called in a legend."""

_UNITS: Final = (("seconds", NS_PER_S), ("milliseconds", NS_PER_S // 1_000), ("microseconds", NS_PER_S // 1_000_000))


@dataclass(frozen=True)
class Window:
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


@dataclass(frozen=True)
class Bar:
    """One call in the window.

    Attributes:
        lane: Place of its rank in `Window.ranks`.
        start_ns: Where the bar begins, in the window.
        end_ns: Where it ends, in the window.
        whole_ns: How long the call took; None: its end is not recorded.
        is_cut: It goes on to the right of the window.
    """

    lane: int
    outcome: str
    what: str
    start_ns: int
    end_ns: int
    whole_ns: int | None
    is_cut: bool


@dataclass(frozen=True)
class Note:
    """What is said in a culprit's lane, right of an instant or (`is_before`) left of it."""

    lane: int
    text: str
    at_ns: int
    is_before: bool


@dataclass(frozen=True)
class Tick:
    """The number of a round, at its first enter."""

    seq: int
    at_ns: int
    is_chosen: bool


def window(case: Case, verdict: Verdict) -> Window:
    """The ranks and the stretch of time that show a verdict."""
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
    return Window(ranks, folded, zero, left - margin, right + margin)


def bars(case: Case, shown: Window) -> list[Bar]:
    """One bar per call in the window, from enter to end or to the right edge."""
    lane = {rank: at for at, rank in enumerate(shown.ranks)}
    rows = case.calls.filter(
        pl.col("rank").is_in(list(shown.ranks)),
        pl.col("enter_ns") <= shown.right,
        pl.col("end_ns").fill_null(shown.right) >= shown.left,
    ).select("rank", "enter_ns", "end_ns", pl.col("outcome").cast(pl.String), pl.col("op").cast(pl.String), "seq")
    least = (shown.right - shown.left) * MIN_SHARE
    made = []
    for rank, enter, end, outcome, op, seq in rows.iter_rows():
        until = end if end is not None else enter + least if outcome == "not_recorded" else shown.right
        start = max(enter, shown.left)
        made.append(
            Bar(
                lane=lane[rank],
                outcome=outcome,
                what=f"{op} #{seq}",
                start_ns=start,
                end_ns=round(start + max(min(until, shown.right) - start, least)),
                whole_ns=None if end is None else end - enter,
                is_cut=until > shown.right,
            )
        )
    return made


def notes(case: Case, shown: Window, verdict: Verdict) -> list[Note]:
    """What is missing in the culprits' lanes."""
    made = []
    for lane, rank in enumerate(shown.ranks):
        text = _note(case, verdict, rank) if rank in verdict.culprit_ranks else ""
        if text:
            late = next((o.time_ns for o in verdict.occurrences if o.rank == rank), None)
            at = _free_from(case, shown, rank) if late is None else late
            if at <= shown.right:
                made.append(Note(lane, text, at, late is not None))
    return made


def ticks(case: Case, shown: Window, verdict: Verdict) -> list[Tick]:
    """The seqs of the verdict's group, as many as can stand side by side; the verdict's own is always there."""
    group = group_of(case, verdict) or next((g for g in case.groups.values() if not g.is_control), None)
    if group is None:
        return []
    rows = case.rounds.filter(
        pl.col("group") == group.key, pl.col("first_enter_ns") >= shown.left, pl.col("first_enter_ns") <= shown.right
    ).sort("seq")
    # Numbers closer than this would run into each other.
    step, last = (shown.right - shown.left) / 22, float("-inf")
    made = []
    for seq, first in rows.select("seq", "first_enter_ns").iter_rows():
        chosen = seq == verdict.seq
        near_onset = verdict.onset_ns is not None and 0 < verdict.onset_ns - first < step
        if chosen or (first - last >= step and not near_onset):
            last = first
            made.append(Tick(seq, first, chosen))
    return made


def group_of(case: Case, verdict: Verdict) -> Group | None:
    """The verdict's group; of several with one name, the one that has its ranks."""
    if verdict.group is None:
        return None
    named = [g for g in case.groups.values() if (g.name, g.desc) == (verdict.group.name, verdict.group.desc)]
    if verdict.op == DESTROY:
        named.reverse()  # the destroying of groups has a key of its own, behind that of their making
    concerned = {*verdict.culprit_ranks, *verdict.waiting_ranks}
    return next((g for g in named if concerned.issubset(g.ranks)), next(iter(named), None))


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
    group = group_of(case, verdict)
    members = () if group is None else group.ranks
    wanted = dict.fromkeys([*verdict.culprit_ranks, *members, *verdict.waiting_ranks, *everyone])
    limit = MAX_LANES if len(everyone) <= MAX_LANES else MAX_LANES // 2
    shown = sorted(list(wanted)[:limit])
    return tuple(shown), len(everyone) - len(shown)


def _free_from(case: Case, shown: Window, rank: int) -> int:
    """The end of the bar that reaches over the onset in a rank's lane, or the onset."""
    over = case.calls.filter(pl.col("rank") == rank, pl.col("enter_ns") < shown.zero, pl.col("end_ns") > shown.zero)[
        "end_ns"
    ].max()
    middle = (shown.zero + shown.right) // 2
    return min(over, middle) if isinstance(over, int) else shown.zero


def _note(case: Case, verdict: Verdict, rank: int) -> str:
    call = f"{verdict.op} #{verdict.seq}"
    if verdict.structure is Structure.STUCK_IN_INIT:
        return f"rank {rank} never called {verdict.op}" if verdict.detail is not Detail.RAISED else ""
    if verdict.structure is Structure.RANK_NOT_ENTERED:
        return f"rank {rank} never entered {call}"
    if verdict.structure in (Structure.STRAGGLER, Structure.ROTATING_STRAGGLER):
        late = next((o for o in verdict.occurrences if o.rank == rank), None)
        if late is None:
            return ""
        after = duration(late.time_ns - (verdict.onset_ns or late.time_ns))
        return f"{after} late for {verdict.op} #{late.seq}"
    if verdict.structure is Structure.SIGNATURE_MISMATCH and verdict.seq is not None:
        group = group_of(case, verdict)
        made = None if group is None else case.call(group.key, verdict.seq, rank)
        return "" if made is None else f"rank {rank} called {made['op']} {made['shapes'] or ''} here"
    return {
        Structure.SKIPPED_CALL: f"rank {rank} skipped a call here: {call} of its peers",
        Structure.EXTRA_CALL: f"rank {rank} made {call} in addition",
    }.get(verdict.structure, "")
