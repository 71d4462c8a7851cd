"""Which rank never entered the round that others wait in?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import polars as pl

from roundk.analyze import cause
from roundk.analyze.case import LATE_FLOOR_NS, Case
from roundk.analyze.control import DESTROY, INIT
from roundk.analyze.endings import How
from roundk.analyze.finding import Evidence, Finding, Reason
from roundk.analyze.names import Cause, Confidence, Detail, Structure
from roundk.analyze.phrases import NS_PER_MS, capital, duration, ranks_text, verb
from roundk.analyze.streams import Key
from roundk.analyze.structure import blame, seen, usual
from roundk.analyze.structure.last_seen import (
    SHOWN_RANKS,
    counted,
    last_call,
    last_evidence,
    waiting_evidence,
    without_calls,
)
from roundk.analyze.waitfor import StuckRound, WaitFor, stuck_calls
from roundk.tracer import words

_WENT_FIRST: Final = frozenset({Detail.DEAD, Detail.STOPPED})
_LIVING: Final = frozenset({Detail.IDLE, Detail.BUSY})
SHOWN_ROUNDS: Final = 3
"""Rounds that one sentence can carry."""

_UNEXPLAINED: Final = frozenset({Detail.IDLE, Detail.SILENT})


@dataclass(frozen=True)
class Suspect:
    """A rank that others wait for and that waits for nobody."""

    rank: int
    detail: Detail
    reason: Reason
    round: StuckRound
    waiting: tuple[int, ...]
    absent_ns: int | None
    """How long it was waited for; None: no time is recorded."""


def missing(case: Case, graph: WaitFor) -> list[Finding]:
    """Ranks at the root of the waiting, those with the same structure and cause together, by onset."""
    waited: dict[Key, int] = {}  # that of a round, once for all the ranks that it lacks
    suspects = _guilty(case, [_suspect(case, graph, rank, waited) for rank in graph.absent])
    together: dict[tuple[Detail, Cause], list[Suspect]] = {}
    for suspect in suspects:
        together.setdefault((suspect.detail, suspect.reason.cause), []).append(suspect)
    findings = [_of_few(case, _finding(case, graph, members)) for members in together.values()]
    return sorted(findings, key=lambda f: (f.detail not in _WENT_FIRST, f.onset_ns is None, f.onset_ns or 0))


def _suspect(case: Case, graph: WaitFor, rank: int, waited: dict[Key, int]) -> Suspect:
    rounds = graph.lacking([rank])
    # A round that also lacks victims began to wait by chance before or after the one that made them victims.
    roots = set(graph.absent)
    # Of those that lack it alone it would have come to one first; others began to wait earlier for being faster.
    soon = usual.distances(case, rank, rounds) if len(rounds) > 1 else {}
    first = min(rounds, key=lambda r: (not roots.issuperset(r.missing), soon.get(r.key, 0), *r.order))
    waiting = tuple(sorted({r for stuck in rounds for r in stuck.inside}))
    detail, reason = _state(case, rank, first, waiting)
    if first.key not in waited:
        waited[first.key] = max(waits(case, first), default=0)
    return Suspect(
        rank=rank,
        detail=detail,
        reason=reason,
        round=first,
        waiting=waiting,
        absent_ns=None if first.onset_ns is None else waited[first.key],
    )


def waits(case: Case, stuck: StuckRound) -> list[int]:
    """How long each of those inside waited, by its own clock, as those of hosts may differ; of ranks with times."""
    calls = stuck_calls(case, stuck).filter(pl.col("rank").is_in(list(stuck.inside)), pl.col("enter_ns").is_not_null())
    spans: list[int] = []
    for row in calls.iter_rows(named=True):
        ending = case.endings.get(row["rank"])
        alive = None if ending is None else ending.last_alive_ns
        # Whoever of a run that goes on shows no sign of life of its own waits as long as the others do.
        own = alive if alive is not None or case.trace.is_post_mortem else case.last_alive_ns
        until = row["end_ns"] or min((t for t in (own, case.gave_up_ns) if t is not None), default=None)
        if until is not None:
            spans.append(max(until - row["enter_ns"], 0))
    return spans


def _state(case: Case, rank: int, stuck: StuckRound, waiting: tuple[int, ...]) -> tuple[Detail, Reason]:
    """What an absent rank was doing, and why."""
    detail = blame.detail_of(case, rank, waiting)
    if detail not in (Detail.IDLE, Detail.SILENT):
        return detail, cause.reason(case, rank, detail)
    if _went_on_to_destroy(case, rank):
        because = f"it had gone on to {DESTROY}"
        return Detail.EXITED_EARLY, Reason(Cause.CODE_DIVERGENCE, Confidence.MEDIUM, because)
    at_work = seen.at_work(case, rank, stuck)
    return (detail, cause.UNDETERMINED) if at_work is None else (Detail.BUSY, at_work)


def _went_on_to_destroy(case: Case, rank: int) -> bool:
    """Its last call, before anybody gave up, destroys groups: it does not mean to make another."""
    newest = case.calls.filter(pl.col("rank") == rank).tail(1)
    if newest.is_empty() or newest["op"][0] != DESTROY:
        return False
    enter = newest["enter_ns"][0]
    told_ns = None if case.told_to_end is None else case.told_to_end.time_ns
    ends = [at for at in (case.gave_up_ns, told_ns) if at is not None]
    return not ends or (enter is not None and int(enter) < min(ends))


def _guilty(case: Case, suspects: list[Suspect]) -> list[Suspect]:
    """Leave out those who were only about to come when the job ended for another reason."""
    if case.trace.is_post_mortem:
        return suspects  # a dump is taken because something hangs, and ends where the waiting begins
    first = [s for s in suspects if s.detail in _WENT_FIRST]
    # Beside a rank that ended by itself, one that was sent a SIGTERM was sent it because of that.
    unasked = [s for s in first if not case.endings[s.rank].from_outside]
    first = unasked or first
    late = [s for s in suspects if s not in first]
    if first:
        known = [t for t in (_began_ns(case, s) for s in first) if t is not None]
        return first + [s for s in late if known and _was_late(case, s, min(known))]
    if case.gave_up_ns is not None or case.alive:
        # Others that fail within a moment failed for a reason of their own.
        return [s for s in late if _is_long(s, LATE_FLOOR_NS) or s.detail not in _LIVING]
    return [
        s
        for s in late
        if s.detail in (Detail.EXITED_EARLY, Detail.SILENT) or _is_long(s, case.usual_lateness_ns(s.round.group) + 1)
    ]


def _is_long(suspect: Suspect, least_ns: int) -> bool:
    """It was waited for so long; without times, that somebody waits for it is all there is to go by."""
    return suspect.absent_ns is None or suspect.absent_ns >= least_ns


def _was_late(case: Case, suspect: Suspect, began_ns: int) -> bool:
    """Its peers had waited unusually long when another rank's end began."""
    onset = suspect.round.onset_ns
    return onset is not None and began_ns - onset > case.usual_lateness_ns(suspect.round.group)


def _began_ns(case: Case, suspect: Suspect) -> int | None:
    """When the end or stop of a suspect that went first took place."""
    ending = case.endings[suspect.rank]
    times = [t for t in (ending.at_ns, ending.stopped_ns, ending.last_alive_ns) if t is not None]
    return min(times, default=suspect.round.onset_ns)


def _finding(case: Case, graph: WaitFor, suspects: list[Suspect]) -> Finding:
    lead = min(suspects, key=lambda s: (*s.round.order[:2], s.rank))
    culprits = tuple(sorted(s.rank for s in suspects))
    victims, victim_groups = graph.victims(culprits)
    structure = Structure.STUCK_IN_INIT if lead.round.op == INIT else Structure.RANK_NOT_ENTERED
    confirmed, against = seen.waiting(case, lead.round)
    if lead.round.pair is not None and lead.detail is Detail.EXITED_EARLY:
        structure = Structure.P2P_UNPAIRED
    return Finding(
        structure=structure,
        detail=None if structure is Structure.P2P_UNPAIRED else lead.detail,
        summary=_summary(case, lead, suspects),
        culprits=culprits,
        group=lead.round.group,
        seq=lead.round.seq,
        op=lead.round.op,
        onset_ns=lead.round.onset_ns,
        waiting=tuple(sorted({rank for suspect in suspects for rank in suspect.waiting})),
        victim_ranks=victims,
        victim_groups=victim_groups,
        reason=lead.reason,
        doubts=_doubts(case, lead, suspects),
        evidence=(*_evidence(case, lead, suspects), *confirmed),
        contradictions=against,
        next_steps=_next_steps(lead, culprits),
    )


def _of_few(case: Case, finding: Finding) -> Finding:
    """A round to which only the smaller part of a group came: those may as well have made a call too many."""
    if finding.group is None or finding.seq is None or finding.detail not in (*_UNEXPLAINED, Detail.EXITED_EARLY):
        return finding
    if finding.op in (INIT, DESTROY, *words.P2P):
        return finding
    members = set(case.member_ranks(finding.group))
    absent = sorted(members.intersection(finding.culprits))
    came = sorted(members.intersection(finding.waiting))
    if len(members) == 2:
        doubt = "in a group of two it may as well be the other that made a call too many"
        return replace(finding, doubts=(*finding.doubts, doubt))
    if 2 * len(absent) <= len(members) or finding.detail is Detail.EXITED_EARLY:
        # Others of the group may wait elsewhere, for those that came here.
        doubt = f"only {ranks_text(came)} entered it: {verb(came, 'that', 'those')} may have made a call too many"
        is_few = len(came) < len(absent) and finding.detail is not Detail.EXITED_EARLY
        return replace(finding, doubts=(*finding.doubts, doubt)) if is_few else finding
    call = case.call(finding.group, finding.seq, came[0]) if came else None
    where = case.round_text(finding.group, finding.seq, finding.op or "call", None if call is None else call["site"])
    return replace(
        finding,
        summary=f"Only {ranks_text(came)} entered {where}; {ranks_text(absent)}, most of the group, did not: "
        f"either {ranks_text(came)} made a call too many, or the others are held up outside of calls.",
        culprits=(),
        sides=tuple(sorted({*came, *absent})),
        doubts=(*finding.doubts, "which side is off cannot be told from who came: fewer than half of the group did"),
        next_steps=(
            f"compare the code at that line on {ranks_text(came)} with what the others do: `if rank == 0`, uneven data",
            *finding.next_steps,
        ),
    )


def _summary(case: Case, lead: Suspect, suspects: list[Suspect]) -> str:
    culprits = tuple(sorted(s.rank for s in suspects))
    why = {
        Detail.IDLE: verb(culprits, "it was alive and in no call", "they were alive and in no call"),
        Detail.SILENT: _silence(case, culprits),
    }.get(lead.detail, lead.reason.because)
    if len(culprits) > 1 and lead.detail not in (Detail.IDLE, Detail.SILENT):
        why = f"rank {lead.rank} {lead.reason.because.removeprefix('it ')}".replace("its process", "(process)")
    waiting = sorted({rank for suspect in suspects for rank in suspect.waiting})
    waits = f"{ranks_text(waiting)} {verb(waiting, 'waits', 'wait')}"  # a dump ends where the waiting begins
    spans = [suspect.absent_ns or 0 for suspect in suspects]
    # Dumps tell of the waiting only until the last call in them.
    least = "at least " if case.trace.is_post_mortem and case.gave_up_ns is None else ""
    waited = f"{ranks_text(waiting)} waited {least}{duration(max(spans))}" if max(spans) >= NS_PER_MS else waits
    if case.trace.is_post_mortem and case.gave_up_ns is None and case.timed_out:
        waited = f"{waits} until a timeout"
    return f"{capital(_places(case, suspects))}{_gap(case, lead)}: {why}; {waited}."


def _places(case: Case, suspects: list[Suspect]) -> str:
    """Who did not enter what, by round: `rank 3 never entered all_reduce #4 of group tp0, rank 7 ...`."""
    by_round: dict[tuple[int | None, ...], list[Suspect]] = {}
    for suspect in suspects:
        by_round.setdefault(suspect.round.key, []).append(suspect)
    parts = sorted(by_round.values(), key=lambda part: part[0].round.order)
    if len(alike := _alike(case, parts)) == 1 and len(parts) > 1:
        return alike[0]
    said = [_place(case, part[0].round, tuple(sorted(s.rank for s in part))) for part in parts[:SHOWN_ROUNDS]]
    left = sorted(s.rank for part in parts[SHOWN_ROUNDS:] for s in part)
    return ", ".join(said) + (f", and {ranks_text(left)} others" if left else "")


def _alike(case: Case, parts: list[list[Suspect]]) -> list[str]:
    """The places where those of several groups of one kind did not come: `ranks 8-15 never entered all_reduce #6`."""
    told: dict[str, list[int]] = {}
    for part in parts:
        stuck = part[0].round
        where = case.round_text(stuck.group, stuck.seq, stuck.op, stuck.site)
        if stuck.pair is not None or any(case.call(stuck.group, stuck.seq, s.rank) is not None for s in part):
            return []
        told.setdefault(where, []).extend(s.rank for s in part)
    return [f"{ranks_text(ranks)} never entered {where}, each in its own group" for where, ranks in told.items()]


def _place(case: Case, stuck: StuckRound, ranks: tuple[int, ...]) -> str:
    where = case.round_text(stuck.group, stuck.seq, stuck.op, stuck.site)
    if stuck.pair is not None:
        answer = "recv" if stuck.op == "send" else "send"
        where = f"the {answer} that answers {stuck.op} #{stuck.seq} of rank {stuck.inside[0]}"
    if all(stuck.pair is None and case.call(stuck.group, stuck.seq, rank) is not None for rank in ranks):
        return f"{ranks_text(ranks)} entered {where} only after {verb(ranks, 'its', 'their')} peers had given up"
    return f"{ranks_text(ranks)} never entered {where}"


def _gap(case: Case, lead: Suspect) -> str:
    """In the sentence, how far it had come where what came next is overwritten; nothing else may hang first."""
    reach = _overwritten_after(case, lead)
    if reach is None:
        return ""
    return f" (rank {lead.rank} had come to #{reach}; the calls of its peers before #{lead.round.seq} are overwritten)"


def _silence(case: Case, ranks: tuple[int, ...]) -> str:
    """What is known of ranks that show no sign of life of their own."""
    endings = [case.endings[rank] for rank in ranks if rank in case.endings]
    if len(endings) == len(ranks) and all(e.how is How.SIGNAL and e.last_alive_ns is None for e in endings):
        return f"{verb(ranks, 'it', 'they')} recorded nothing and {endings[0].text}, but only after that"
    return verb(ranks, "it gave no sign of life", "they gave no sign of life")


def _doubts(case: Case, lead: Suspect, suspects: list[Suspect]) -> tuple[str, ...]:
    doubts: list[str] = []
    culprits = {s.rank for s in suspects}
    silent = [r for r in case.member_ranks(lead.round.group) if r not in culprits and _no_data(case, r)]
    if silent:
        doubts.append(f"nothing is recorded of {ranks_text(silent)}")
    if lead.round.unsure:
        doubts.append(f"the recording of {ranks_text(lead.round.unsure)} stops early: it may have entered unseen")
    # Of who died first the end is enough where there is no recording at all.
    gone = {s.rank for s in suspects if s.detail is Detail.DEAD and _no_data(case, s.rank)}
    blind = culprits.intersection(_unseen(case, lead.round.group)) - gone
    if blind and lead.detail is not Detail.SILENT:
        doubts.append(f"the recording of {ranks_text(sorted(blind))} is missing or incomplete: only the end is told")
    if lead.detail is Detail.SILENT:
        doubts.append(f"nothing tells what {ranks_text(sorted(culprits))} did")
    unseen = sorted(culprits & case.unrecorded_calls)
    if unseen and lead.detail in _UNEXPLAINED:
        who = f"{ranks_text(unseen)} may wait in {verb(unseen, 'one', 'some')}"
        doubts.append(f"sends and receives are not in gloo's dumps, and this job makes some: {who}")
    if lead.detail not in (*_WENT_FIRST, Detail.EXITED_EARLY):
        unproven = open_doubts(case, [] if lead.absent_ns is None else [lead.absent_ns])
        doubts.extend(unproven)
        if unproven and case.is_many(culprits):
            doubts.append("that many are rather behind by a moment than held up all at once")
    return tuple(doubts)


def open_doubts(case: Case, spans: list[int]) -> tuple[str, ...]:
    """What is to be said against a round's being stuck, as far as time goes: nothing where somebody gave up.

    Args:
        case: The case.
        spans: How long it was seen open, by each of those who tell.
    """
    if case.timed_out:
        return ()
    if not spans:
        return ("no times are recorded: how long the round was open is not told",)
    longest = max(spans)
    if longest >= case.stall_ns:
        return ()
    if case.trace.is_post_mortem and longest < NS_PER_MS:
        return ("what is there ends where the waiting begins: how long the round was open is not told",)
    return (f"the round was seen open for only {duration(longest)}",)


def _unseen(case: Case, group: int) -> list[int]:
    """Members of whom the recording cannot tell what they did not call."""
    return case.frontier.filter(pl.col("group") == group, ~pl.col("sure"))["rank"].to_list()


def _no_data(case: Case, rank: int) -> bool:
    ending = case.endings.get(rank)
    if rank in case.counted:
        return False
    return ending is None or ending.data in ("missing", "empty")


def _evidence(case: Case, lead: Suspect, suspects: list[Suspect]) -> tuple[Evidence, ...]:
    found: list[Evidence] = []
    bare = without_calls(case, [s.rank for s in suspects if not s.reason.evidence and not _life(case, s)])
    single = [s for s in suspects if s.rank not in bare]
    for suspect in single[:SHOWN_RANKS]:
        found.extend(suspect.reason.evidence)
        found.append(counted(case, suspect.rank, suspect.round.group) or last_call(case, suspect.rank))
        found.extend(_life(case, suspect))
        found.extend(overwritten(case, suspect))
    if left := [s.rank for s in single[SHOWN_RANKS:]]:
        found.append(Evidence(f"{ranks_text(left)}: not listed one by one", case.source(left[0]), left[0]))
    found.extend(last_evidence(case, bare))
    found.extend(waiting_evidence(case, lead.round))
    return tuple(found)


def overwritten(case: Case, suspect: Suspect) -> list[Evidence]:
    """How far it had come where the first rounds that it is absent from are no longer kept of any peer."""
    reach = _overwritten_after(case, suspect)
    if reach is None:
        return []
    stuck = suspect.round
    told = case.trace.progress.filter(pl.col("rank") == suspect.rank, pl.col("group") == stuck.group)
    by = "by its counters " if told.height else ""
    what = (
        f"{by}rank {suspect.rank} had come to #{reach} of {case.groups[stuck.group].text}; the calls of its peers "
        f"before #{stuck.seq} are overwritten"
    )
    return [Evidence(what, case.source(suspect.rank), suspect.rank)]


def _overwritten_after(case: Case, suspect: Suspect) -> int | None:
    """The last round that it entered where those between that and the one that it is absent from are not kept."""
    stuck = suspect.round
    if stuck.pair is not None:
        return None
    at = case.frontier.filter(pl.col("group") == stuck.group, pl.col("rank") == suspect.rank)
    reach = at["last_entered"][0] if at.height and at["sure"][0] else None
    if reach is None or reach >= stuck.seq - 1:
        return None
    kept = case.calls.filter(pl.col("group") == stuck.group, ~pl.col("p2p"), pl.col("rank").is_in(list(stuck.inside)))
    between = kept.filter(pl.col("seq") > reach, pl.col("seq") < stuck.seq)
    return int(reach) if between.is_empty() else None


def _life(case: Case, suspect: Suspect) -> list[Evidence]:
    """Signs of life after the onset: what tells an idle rank from a dead one."""
    ending = case.endings.get(suspect.rank)
    if ending is None or suspect.detail not in (*_LIVING, Detail.SILENT):
        return []
    found: list[Evidence] = []
    if ending.last_alive_ns is not None and suspect.round.onset_ns is not None:
        after = ending.last_alive_ns - suspect.round.onset_ns
        when = f"{duration(after)} after" if after >= 0 else f"{duration(-after)} before"
        what = f"last sign of life of rank {suspect.rank}: {when} the first member began to wait"
        found.append(Evidence(what, ending.source, suspect.rank))
    if ending.how not in (How.UNKNOWN, How.CLEAN):
        when = ", but only after the others had waited" if ending.is_timed else "; when is not told"
        text = f"rank {suspect.rank} {ending.text}{when}"
        at = ending.seen_ns or ending.told_ns
        found.append(Evidence(text, cause.end_source(case, ending), suspect.rank, at))
    return found


def _next_steps(lead: Suspect, culprits: tuple[int, ...]) -> tuple[str, ...]:
    who = ranks_text(culprits)
    do, process = verb(culprits, "does", "do"), verb(culprits, "process", "processes")
    them = verb(culprits, "it", "them")
    its, peers = verb(culprits, "its", "their"), verb(culprits, "its peers", "their peers")
    return {
        Detail.IDLE: (
            f"look at what {who} {do} between {its} last call and this one: data loading, a save, a lock",
            f"while it hangs: py-spy dump --pid on the {process} of {who}",
        ),
        Detail.BUSY: (f"look at what {who} {do} there that {peers} do not, or not for so long",),
        Detail.DEAD: (f"read the log of {who} around {its} end; the errors of other ranks are echoes",),
        Detail.STOPPED: (f"find who stopped the {process} of {who} (SIGSTOP, a debugger, a frozen container)",),
        Detail.EXITED_EARLY: (f"compare how many iterations {who} and {peers} make: uneven data, a `break`",),
        Detail.SILENT: (f"look for the {process} and the host of {who}: nothing here says what became of {them}",),
    }.get(lead.detail, ())
