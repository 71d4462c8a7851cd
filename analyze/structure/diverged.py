"""Which rank made another sequence of calls than its peers?

Judged at the lowest seq where anything differs, which is not always the seq that hangs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import polars as pl

from roundk.analyze.calls import SIGNATURE
from roundk.analyze.case import Case
from roundk.analyze.finding import Evidence, Finding, Reason
from roundk.analyze.names import Cause, Confidence, Structure
from roundk.analyze.phrases import capital, ranks_text, verb
from roundk.analyze.structure.lanes import Lane, lanes
from roundk.analyze.structure.place import has_left
from roundk.analyze.structure.shift import MAX_SHIFT, Shift, continued, find_shifts, realigns
from roundk.analyze.structure.sides import describe
from roundk.analyze.waitfor import StuckRound, WaitFor

PLAIN_SHIFT: Final = 3
"""From so many differing calls explained a shift is no coincidence."""


@dataclass(frozen=True)
class Reading:
    """How the calls of some ranks are to be read.

    Attributes:
        ranks: The ranks.
        group: The group in which they differ.
        seq: Where they first do.
        by: Calls skipped (> 0) or added (< 0); 0: how many cannot be seen.
        explained: Differing calls that this reading saves.
        majority: Most of their peers made one and the same other call there.
        aligned: Calls after that one match those of their peers; else the places in the code alone tell.
    """

    structure: Structure
    ranks: tuple[int, ...]
    group: int
    seq: int
    by: int
    explained: int
    majority: bool
    aligned: bool = True


def diverged(case: Case, graph: WaitFor) -> list[Finding]:
    """Skipped and added calls, ranks that are to be read alike together, by onset.

    Args:
        case: A case in which something is stuck or failed.
        graph: Its wait-for graph.
    """
    suspicious = (
        case.comparable_rounds.filter(pl.col("differs") | pl.col("site_differs"))["group"].unique().sort().to_list()
    )
    found: list[Finding] = []
    for group in suspicious:
        hangs = next((r for r in graph.rounds if r.group == group and r.pair is None), None)
        alike: dict[tuple[Structure, int, int], Reading] = {}
        for lane in lanes(case, group):
            reading = _read(case, graph, group, lane, hangs)
            if reading is None:
                continue
            key = (reading.structure, reading.seq, reading.by)
            known = alike.get(key)
            alike[key] = reading if known is None else replace(known, ranks=(*known.ranks, *reading.ranks))
        found.extend(_finding(case, reading, hangs) for reading in alike.values())
    return sorted(found, key=lambda f: (f.onset_ns is None, f.onset_ns or 0))


def _read(case: Case, graph: WaitFor, group: int, lane: Lane, hangs: StuckRound | None) -> Reading | None:
    """How to read one rank's difference."""
    # What a rank calls alone, ahead of its peers, is no reference for itself.
    reach = max(_peer_reach(case, group, lane.rank) - lane.first + 1, 0)
    peers = lane.peers[:reach]
    skipped = _skipped_new(case, group, replace(lane, peers=peers))
    if skipped is not None:
        return skipped
    hung = hangs is not None and any(r != lane.rank for r in hangs.inside) and hangs.seq >= lane.first + reach - 1
    longer = peers + (continued(peers, MAX_SHIFT) if hung and peers else [])
    shifts = find_shifts(lane.own, longer, reached=len(peers))
    aligned = [shift for shift in shifts if shift.explained or realigns(lane.own, peers, shift)]
    # A call instead of another in the last round that anybody came to: only where both were made tells more than that.
    candidates = aligned or (shifts if _from_elsewhere(case, group, replace(lane, peers=peers)) else [])
    if not candidates:
        return _read_by_place(case, group, replace(lane, peers=peers))
    shift = _chosen(case, graph, group, lane, candidates)
    if not lane.majority and shift.explained < PLAIN_SHIFT:
        return None  # two sides that differ in a call or two: nobody can say which of them is shifted
    structure = Structure.SKIPPED_CALL if shift.by > 0 else Structure.EXTRA_CALL
    seq = lane.first + shift.at
    return Reading(structure, (lane.rank,), group, seq, shift.by, shift.explained, lane.majority, bool(aligned))


def _from_elsewhere(case: Case, group: int, lane: Lane) -> bool:
    """Where the rank first differs its call comes from another place in the code than that of its peers."""
    at = lane.differs_at()
    if at is None:
        return False
    seq = lane.first + at
    mine, theirs = case.call(group, seq, lane.rank), _reference_call(case, group, seq, lane.rank)
    return mine is not None and theirs is not None and _places_differ(mine, theirs)


def _places_differ(mine: dict[str, Any], theirs: dict[str, Any]) -> bool:
    return mine["site"] is not None and theirs["site"] is not None and mine["site"] != theirs["site"]


def _skipped_new(case: Case, group: int, lane: Lane) -> Reading | None:
    """A rank that goes on as usual where most of its peers make a call that nobody has made before: it skipped that."""
    at = lane.differs_at()
    if at is None or not lane.majority:
        return None
    new = lane.peers[at]
    if new in lane.peers[:at] or new in lane.own or lane.own[at] not in continued(lane.peers[:at], 1):
        return None
    seq = lane.first + at
    mine, theirs = case.call(group, seq, lane.rank), _reference_call(case, group, seq, lane.rank)
    if mine is None or theirs is None or not _places_differ(mine, theirs):
        return None  # the same place, or an unknown one: merely another call
    if has_left(case, theirs["site"], mine["site"]):
        return None
    return Reading(Structure.SKIPPED_CALL, (lane.rank,), group, seq, 1, 0, lane.majority, aligned=False)


def _chosen(case: Case, graph: WaitFor, group: int, lane: Lane, shifts: list[Shift]) -> Shift:
    """Of a skip and an addition that explain the calls as well, the one that fits how it ends."""
    best, other = shifts[0], shifts[-1]
    if other.left > best.left:
        return best
    direction = _direction(case, graph, group, lane)
    if direction is None:
        direction = best.by if abs(best.by) != abs(other.by) else 1
    return next((s for s in shifts if s.by * direction > 0), best)


def _read_by_place(case: Case, group: int, lane: Lane) -> Reading | None:
    """A rank whose last calls come from behind the loop of its peers has made fewer, and the other way round."""
    tail = lane.tail()
    if tail is None or tail >= len(lane.peers):
        return None
    seq = lane.first + tail
    mine, theirs = case.call(group, seq, lane.rank), _reference_call(case, group, seq, lane.rank)
    if mine is None or theirs is None:
        return None
    if has_left(case, mine["site"], theirs["site"]):
        return Reading(Structure.SKIPPED_CALL, (lane.rank,), group, seq, 0, 0, lane.majority)
    if has_left(case, theirs["site"], mine["site"]):
        return Reading(Structure.EXTRA_CALL, (lane.rank,), group, seq, 0, 0, lane.majority)
    return None


def _direction(case: Case, graph: WaitFor, group: int, lane: Lane) -> int | None:
    """> 0: the rank's peers wait for it, so it made fewer calls; < 0: it waits for them; None: nothing tells."""
    stuck = [r for r in graph.rounds if r.group == group and r.pair is None]
    if any(lane.rank in r.missing for r in stuck):
        return 1
    if any(lane.rank in r.inside and r.missing for r in stuck):
        return -1
    seq = lane.first + len(lane.own) - 1
    mine, theirs = case.call(group, seq, lane.rank), _reference_call(case, group, seq, lane.rank)
    if mine is None or theirs is None or None in (mine["step"], theirs["step"]) or mine["step"] == theirs["step"]:
        return None
    return 1 if mine["step"] > theirs["step"] else -1


def _peer_reach(case: Case, group: int, rank: int) -> int:
    """The last seq that any other member entered."""
    others = case.frontier.filter(pl.col("group") == group, pl.col("rank") != rank)
    return max(others["last_entered"].to_list(), default=0)


def _reference_call(case: Case, group: int, seq: int, rank: int) -> dict[str, Any] | None:
    """What most peers of a rank called in a round."""
    others = case.round_calls(group, seq).filter(pl.col("rank") != rank)
    parts = others.partition_by("site", *SIGNATURE, maintain_order=True)
    most = max(parts, key=len, default=None)
    return None if most is None else most.row(0, named=True)


def _finding(case: Case, reading: Reading, hangs: StuckRound | None) -> Finding:
    group, seq = reading.group, reading.seq
    ranks = tuple(sorted(reading.ranks))
    mine, theirs = case.call(group, seq, ranks[0]), _reference_call(case, group, seq, ranks[0])
    waiting = tuple(sorted({r for r in (hangs.inside if hangs is not None else ()) if r not in ranks}))
    called = theirs if reading.structure is Structure.SKIPPED_CALL else mine
    onset = case.round_calls(group, seq)["enter_ns"].min()
    return Finding(
        structure=reading.structure,
        summary=_summary(case, replace(reading, ranks=ranks), mine, theirs, hangs),
        culprits=ranks if reading.majority else (),
        sides=() if reading.majority else case.member_ranks(group),
        group=group,
        seq=seq,
        op=None if called is None else str(called["op"]),
        onset_ns=onset if isinstance(onset, int) else None,
        waiting=waiting,
        victim_ranks=waiting,
        victim_groups=(group,) if waiting else (),
        reason=Reason(Cause.CODE_DIVERGENCE, Confidence.HIGH if reading.by else Confidence.MEDIUM),
        doubts=_doubts(reading),
        evidence=_evidence(case, seq, mine, theirs),
        next_steps=("compare the control flow at the two call sites: a condition, a `continue`, uneven data",),
    )


def _doubts(reading: Reading) -> tuple[str, ...]:
    doubts: list[str] = []
    if not reading.majority:
        doubts.append("no side has a majority: one side skipped the call or the other made it in addition")
    if not reading.by:
        doubts.append("the calls look alike: which one was skipped or added cannot be seen, only where it first shows")
    elif not reading.aligned:
        doubts.append("no later call shows the shift, only the places in the code that the calls come from")
    elif reading.explained < PLAIN_SHIFT:
        doubts.append("only few calls after the difference show the shift")
    return tuple(doubts)


def _summary(
    case: Case,
    reading: Reading,
    mine: dict[str, Any] | None,
    theirs: dict[str, Any] | None,
    hangs: StuckRound | None,
) -> str:
    what = "skipped" if reading.structure is Structure.SKIPPED_CALL else "added"
    count = {0: "a call or more at or before", 1: "a call at"}.get(abs(reading.by), f"{abs(reading.by)} calls at")
    text = f"{capital(ranks_text(reading.ranks))} {what} {count} #{reading.seq} of "
    text += case.groups[reading.group].text
    if mine is not None and theirs is not None:
        there = verb(reading.ranks, "it", "they")
        text += f": there {there} called {_call(case, mine, theirs)}, the others {_call(case, theirs, mine)}"
    if hangs is not None:
        where = "the same round" if hangs.seq == reading.seq else f"#{hangs.seq}"
        text += f"; it hangs in {where}, where {ranks_text(hangs.inside)} {verb(hangs.inside, 'waits', 'wait')}"
    return text + "."


def _call(case: Case, call: dict[str, Any], other: dict[str, Any] | None) -> str:
    """A call in words, with the frame by which it differs from another one of the same line."""
    via = case.branch(call["site"], None if other is None else other["site"])
    return describe(case, call) + (f" from {via}" if via else "")


def _evidence(case: Case, seq: int, mine: dict[str, Any] | None, theirs: dict[str, Any] | None) -> tuple[Evidence, ...]:
    found: list[Evidence] = []
    for call, other in ((mine, theirs), (theirs, mine)):
        if call is not None:
            what = f"rank {call['rank']} called #{seq} as {_call(case, call, other)}"
            found.append(Evidence(what, case.source(call["rank"]), call["rank"], call["enter_ns"]))
    return tuple(found)
