"""Sends and receives that do not go together: one to the wrong peer, one left out, one too many.

Who waits for a message shows only that its peer has not come yet. That the peer never will is told by where it is
instead: in a message with a third rank, or in a later call of its step. Which side is wrong only the steps before can
tell; where they do not, both are named.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import polars as pl

from roundk.analyze.case import Case
from roundk.analyze.finding import Evidence, Finding, Reason
from roundk.analyze.names import Cause, Confidence, Detail, Structure
from roundk.analyze.phrases import capital, ranks_text
from roundk.analyze.waitfor import StuckRound, WaitFor, stuck_text

EARLIER_STEPS: Final = 2
"""Steps that must show what is usual before a side is blamed: one may be chance."""

_OTHER: Final = {"send": "recv", "recv": "send"}
_LEFT_OPEN: Final = (Detail.IDLE, Detail.SILENT)
"""What is known of a rank of which nothing says that it was elsewhere for a reason of its own."""


@dataclass(frozen=True)
class _Unanswered:
    """A send or a receive of a rank that its peer has no part in."""

    rank: int
    op: str
    peer: int
    group: int
    seq: int
    is_open: bool
    onset_ns: int | None
    text: str


class _Messages:
    """The sends and receives of a case by rank, put apart once: a circle asks for those of many ranks."""

    def __init__(self, case: Case) -> None:
        p2p = case.calls.filter(pl.col("p2p"))
        self._by_rank = {rank: part for (rank,), part in p2p.partition_by("rank", as_dict=True).items()}
        self._none = p2p.clear()

    def of(self, rank: int, op: str, peer: int | None = None) -> pl.DataFrame:
        """Those of a rank, with one peer or with all."""
        mine = self._by_rank.get(rank, self._none).filter(pl.col("op").cast(pl.String) == op)
        return mine if peer is None else mine.filter(pl.col("peer") == peer)


@dataclass(frozen=True)
class _Reading:
    """How two sides that do not go together are to be read."""

    lead: StuckRound
    culprits: tuple[int, ...]
    sides: tuple[int, ...]
    waiting: tuple[int, ...]
    summary: str
    because: tuple[Evidence, ...]
    doubts: tuple[str, ...]


def of_circle(case: Case, graph: WaitFor, circle: tuple[StuckRound, ...]) -> Finding | None:
    """What a circle is where a message of it can never be answered; None: the order of its calls may be all."""
    lacking = [r for r in circle if r.pair is not None and r.missing and not r.from_any]
    if not lacking:
        return None
    messages = _Messages(case)
    # Who waits for a rank of the circle may stand outside of it.
    for rank in sorted({rank for r in circle for rank in (*r.inside, *r.missing)}):
        for awaited in _lacking_pairs(graph, rank):
            reading = _wrong_peer(case, graph, messages, rank, awaited)
            if reading is not None:
                return _finding(case, graph, reading)
    for stuck in lacking:
        for rank in stuck.missing:
            at = [r for r in circle if rank in r.inside and r is not stuck]
            reading = next((found for r in at if (found := _miscounted(case, stuck, rank, r))), None)
            if reading is not None:
                return _finding(case, graph, reading)
    return None


def instead(case: Case, graph: WaitFor, finding: Finding) -> Finding:
    """A rank that did not come to a message, where it may as well have been the other side's that went astray.

    Args:
        case: The case.
        graph: Its wait-for graph.
        finding: A missing rank, as `missing.missing` finds it.

    Returns:
        The finding as P2P_UNPAIRED, or unchanged.
    """
    if finding.structure is not Structure.RANK_NOT_ENTERED or finding.detail not in _LEFT_OPEN:
        return finding
    pairs = [r for r in graph.lacking(finding.culprits) if r.pair is not None and len(r.missing) == 1]
    if not pairs:
        return finding
    messages = _Messages(case)
    for stuck in pairs:
        # The one that waits sends to, or receives from, a rank that may never have been meant.
        for rank in stuck.inside:
            for awaited in _lacking_pairs(graph, rank):
                reading = _wrong_peer(case, graph, messages, rank, awaited)
                if reading is not None:
                    return _finding(case, graph, reading)
    return finding


def _lacking_pairs(graph: WaitFor, rank: int) -> list[StuckRound]:
    return [r for r in graph.lacking([rank]) if r.pair is not None and None not in r.pair]


def _wrong_peer(case: Case, graph: WaitFor, messages: _Messages, rank: int, awaited: StuckRound) -> _Reading | None:
    """A rank that others wait for in one message, while its own with another rank is not answered.

    Args:
        case: The case.
        graph: Its wait-for graph.
        messages: Its sends and receives.
        rank: Who may have taken the wrong peer.
        awaited: The message that lacks it.
    """
    if awaited.pair is None:
        return None
    waiting = next(end for end in awaited.pair if end != rank)
    wanted = "send" if awaited.pair[0] == rank else "recv"
    if not _is_whole(case, rank):
        return None  # whether it had gone to that peer before is not known
    for own in _unanswered(case, graph, messages, rank):
        if own.op != wanted or own.peer == waiting or waiting is None:
            continue
        usual = messages.of(rank, wanted, waiting).height
        unusual = messages.of(rank, wanted, own.peer).height - 1
        if unusual > 0:
            continue  # It has messages with both: the one that it is in is in its turn.
        here = stuck_text(case, awaited)
        sides = tuple(sorted({rank, own.peer, waiting}))
        habit = f"rank {rank} had {usual} calls of {wanted} with rank {waiting} before, and none with rank {own.peer}"
        is_told = usual > 0
        end = "is" if own.is_open else "was"
        where = "from" if wanted == "recv" else "to"
        summary = (
            f"Rank {rank} {end} in {own.text}, which rank {own.peer} does not answer, while rank {waiting} waits in "
            f"{here}: " + (f"it probably took the wrong peer {where} which it had never gone before."
                           if is_told else "one of the three has the wrong peer or a call too few.")
        )  # fmt: skip
        doubts = () if is_told else ("no earlier step tells which side is right",)
        return _Reading(
            lead=awaited,
            culprits=(rank,) if is_told else (),
            sides=() if is_told else sides,
            waiting=tuple(r for r in sorted({waiting, *((rank,) if own.is_open else ())}) if not is_told or r != rank),
            summary=summary,
            because=(
                Evidence(f"rank {rank} in {own.text}", case.source(rank), rank, own.onset_ns),
                Evidence(f"rank {waiting} waits in {here}", case.source(waiting), waiting, awaited.onset_ns),
                *((Evidence(habit, case.source(rank), rank),) if is_told else ()),
            ),
            doubts=doubts,
        )
    return None


def _is_whole(case: Case, rank: int) -> bool:
    """All calls that a rank ever made are kept."""
    row = case.trace.ranks.filter(pl.col("rank") == rank)
    return row.filter((pl.col("first_call") > 1) | (pl.col("calls_lost") > 0)).is_empty()


def _unanswered(case: Case, graph: WaitFor, messages: _Messages, rank: int) -> Iterator[_Unanswered]:
    """The messages of a rank that their peer has no part in: open ones, and its last one if that was buffered."""
    for stuck in graph.rounds:
        if stuck.pair is None or rank not in stuck.inside or not stuck.missing or stuck.from_any:
            continue
        src, dst = stuck.pair
        if src is None:
            continue
        op, peer = ("send", dst) if src == rank else ("recv", src)
        text = stuck_text(case, replace(stuck, op=op))
        yield _Unanswered(rank, op, peer, stuck.group, stuck.seq, True, stuck.onset_ns, text)
    is_buffered = pl.col("is_aligned") & (pl.col("outcome").cast(pl.String) == "completed")
    newest = messages.of(rank, "send").filter(is_buffered).tail(1)
    for row in newest.iter_rows(named=True):
        if row["peer"] is None or _received(case, messages, row):
            continue
        stuck = _as_round(row)
        yield _Unanswered(
            rank, "send", row["peer"], row["group"], row["seq"], False, row["enter_ns"], stuck_text(case, stuck)
        )


def _received(case: Case, messages: _Messages, row: dict[str, Any]) -> bool:
    """Whether a send has its receive, or nothing says that it has not."""
    if case.frontier.filter(pl.col("rank") == row["dst"], pl.col("group") == row["group"])["lost"].any():
        return True
    match = messages.of(row["dst"], "recv").filter(
        pl.col("group") == row["group"],
        pl.col("seq") == row["seq"],
        pl.col("src").is_null() | (pl.col("src") == row["src"]),
    )
    return not match.is_empty()


def _as_round(row: dict[str, Any]) -> StuckRound:
    pair = (row["src"], row["dst"])
    return StuckRound(
        row["group"], row["seq"], row["op"], pair, (), (row["rank"],), (), (), row["enter_ns"], row["site"]
    )


def _miscounted(case: Case, stuck: StuckRound, absent: int, at: StuckRound) -> _Reading | None:
    """One side made fewer calls in a pair than it had always made before the call that it is in, or the other more.

    Args:
        case: The case.
        stuck: The message.
        absent: The side that it lacks.
        at: Where that side waits instead.
    """
    if stuck.pair is None or None in stuck.pair:
        return None
    waiting = next(end for end in stuck.pair if end is not None and end != absent)
    op = "send" if stuck.pair[0] == absent else "recv"
    theirs, own = _steps(case, absent, op, waiting, at), _steps(case, waiting, _OTHER[op], absent, at)
    less, more = _changed(theirs) < 0, _changed(own) > 0
    if less == more:
        return _by_role(case, stuck, absent, at, op) if len(theirs) < 2 else None
    here, there = stuck_text(case, stuck), stuck_text(case, at)
    if less:
        one, usual, made = absent, theirs, op
        summary = f"{capital(ranks_text([absent]))} left out the {op} that answers {here} and went on to {there}; "
        summary += f"rank {waiting} waits for it."
    else:
        one, usual, made = waiting, own, _OTHER[op]
        summary = f"{capital(ranks_text([waiting]))} made a call too many: {here} has no {op} that answers it, as "
        summary += f"rank {absent} went on to {there}."
    peer = waiting if less else absent
    what = f"rank {one} had made {usual[-2]} calls of {made} with rank {peer} in a step before, and now {usual[-1]}"
    is_told = len(usual) > EARLIER_STEPS
    sides = tuple(sorted((absent, waiting)))
    return _Reading(
        lead=stuck,
        culprits=(one,) if is_told else (),
        sides=() if is_told else sides,
        waiting=(absent,) if is_told and one == waiting else (waiting,),
        summary=summary if is_told else _either(case, stuck, waiting, absent, at, op),
        because=(Evidence(what, case.source(one), one),),
        doubts=("which side is wrong is told by the number of its calls in the steps before only",),
    )


def _either(case: Case, stuck: StuckRound, waiting: int, absent: int, at: StuckRound, op: str) -> str:
    return (
        f"Rank {waiting} waits in {stuck_text(case, stuck)}, and rank {absent} went on to {stuck_text(case, at)} "
        f"without the {op} that answers it: one of the two made a call too many or too few."
    )


def _by_role(case: Case, stuck: StuckRound, absent: int, at: StuckRound, op: str) -> _Reading | None:
    """In a first step only its peers can tell that a rank left a call out: most of them made it before."""
    if at.pair is not None or stuck.pair is None:
        return None
    waiting = next(end for end in stuck.pair if end is not None and end != absent)
    first = _first_steps(case, stuck.group, op, at)
    others = [count for rank, count in first.items() if rank != absent]
    mine = first.get(absent, 0)
    alike = [count for count in others if count > mine]
    if 2 * len(alike) <= len(case.member_ranks(stuck.group)):
        return None
    return _Reading(
        lead=stuck,
        culprits=(),
        sides=tuple(sorted((absent, waiting))),
        waiting=(waiting,),
        summary=_either(case, stuck, waiting, absent, at, op),
        because=(
            Evidence(
                f"rank {absent} made {mine} calls of {op} before {at.op} #{at.seq}, most of its peers more",
                case.source(absent),
                absent,
            ),
        ),
        doubts=("no earlier step tells which side is right",),
    )


def _first_steps(case: Case, group: int, op: str, at: StuckRound) -> dict[int, int]:
    """Calls of each member before its first call in the group of `at`; empty where earlier steps are kept or lost."""
    if at.seq > 1:
        return {}
    calls = case.calls.filter(pl.col("rank").is_in(case.member_ranks(group)))
    before = calls.filter(
        ((pl.col("group") == at.group) & ~pl.col("p2p")).cum_sum().over("rank") == 0,
        pl.col("p2p"),
        pl.col("group") == group,
        pl.col("op").cast(pl.String) == op,
    )
    counts = dict(before.group_by("rank").len().iter_rows())
    return {rank: counts.get(rank, 0) for rank in case.member_ranks(group)}


def _changed(steps: list[int]) -> int:
    """By how many calls the last step differs from those before; 0: there is none, or they differ themselves."""
    *before, now = steps
    usual = before[-EARLIER_STEPS:]
    return now - usual[0] if len(set(usual)) == 1 else 0


def _steps(case: Case, rank: int, op: str, peer: int, at: StuckRound) -> list[int]:
    """Calls of a rank with a peer before each of its calls where `at` is, up to that; the last step is open."""
    mine = case.calls.filter(pl.col("rank") == rank)
    counts = [0]
    for row in mine.select("group", "seq", "op", "peer", "p2p", "src", "dst").iter_rows(named=True):
        if row["p2p"] and row["op"] == op and row["peer"] == peer:
            counts[-1] += 1
        elif row["group"] == at.group and _is_like(row, at) and row["seq"] < at.seq:
            counts.append(0)
    return counts


def _is_like(row: dict[str, Any], at: StuckRound) -> bool:
    return not row["p2p"] if at.pair is None else bool(row["p2p"]) and (row["src"], row["dst"]) == at.pair


def _finding(case: Case, graph: WaitFor, reading: _Reading) -> Finding:
    lead = reading.lead
    roots = reading.culprits or reading.sides
    victims, groups = graph.victims(roots)
    held = {*victims, *reading.waiting} - set(reading.culprits)
    return Finding(
        structure=Structure.P2P_UNPAIRED,
        summary=reading.summary,
        culprits=reading.culprits,
        sides=reading.sides,
        group=lead.group,
        seq=lead.seq,
        op=lead.op,
        onset_ns=lead.onset_ns,
        waiting=reading.waiting,
        victim_ranks=tuple(sorted(held)),
        victim_groups=tuple(sorted({*groups, lead.group})),
        reason=Reason(Cause.CODE_DIVERGENCE, Confidence.MEDIUM),
        doubts=(*reading.doubts, *_age(case, lead)),
        evidence=reading.because,
        next_steps=("compare the peers, the order and the number of the sends and receives on both sides",),
    )


def _age(case: Case, lead: StuckRound) -> tuple[str, ...]:
    if case.gave_up_ns is not None or case.ended or lead.onset_ns is None:
        return ()
    return ("it was seen for a short time only",) if case.last_alive_ns - lead.onset_ns < case.stall_ns else ()
