"""Two answers of RAS compared: who is gone, who is behind, and whether anything moved in between.

One answer cannot tell a job at work from one that hangs: ranks launch collectives while RAS asks them one after the
other, so counts differ by one or two all the time; and one whose ranks all hang in one collective has equal counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from roundk.analyze.phrases import fold
from roundk.analyze.sources.ras import snapshot as ras
from roundk.analyze.sources.ras.snapshot import Comm, Lag, Member, Place, Snapshot

RIGHT: Final = 0
WRONG: Final = 1
UNCLEAR: Final = 3
"""Exit codes, as those of `roundk analyze`."""

_ORDER: Final = {RIGHT: 0, UNCLEAR: 1, WRONG: 2}


@dataclass(frozen=True)
class Finding:
    """One thing that the answers tell.

    Attributes:
        label: What it is about, in a word: dead, silent, error, behind, still, level.
        text: What was seen.
        code: What it makes of the job: `RIGHT`, `WRONG` or `UNCLEAR`.
    """

    label: str
    text: str
    code: int


@dataclass(frozen=True)
class Compared:
    """What two answers tell together, the worst first.

    Attributes:
        findings: All that was seen.
        code: The worst of them.
        moved: Communicators in which a count rose between the answers.
        unmoved: The hashes of those in which none did.
        untold: Those without counts in both answers.
    """

    findings: tuple[Finding, ...]
    moved: int
    unmoved: tuple[str, ...]
    untold: int

    @property
    def code(self) -> int:
        """The exit code."""
        return max((one.code for one in self.findings), key=_ORDER.__getitem__, default=RIGHT)


def compare(first: Snapshot, second: Snapshot | None) -> Compared:
    """What the answers tell.

    Args:
        first: The first.
        second: The second; None: RAS could not be asked again.
    """
    names = _Names([first] if second is None else [first, second])
    last = first if second is None else second
    before = {(comm.hash, comm.key): comm for comm in first.comms}
    findings = [*_gone(first, last, names, has_both=second is not None), *_reported(last, names)]
    moved = untold = 0
    unmoved: list[str] = []
    for comm in last.comms:
        old = before.get((comm.hash, comm.key)) if second is not None else None
        if old is None or not (comm.ops and old.ops):
            untold += 1
            has_moved = None if old is None or not comm.ops else True
        else:
            has_moved = _has_moved(old, comm)
            moved += has_moved
            unmoved += [] if has_moved else [comm.hash]
        findings += [_lag(comm, lag, old, names, has_moved=has_moved) for lag in comm.lags()]
    if second is None:
        findings.append(Finding("once", "RAS answered once only: whether the job moves cannot be told", UNCLEAR))
    elif unmoved and not moved and not any(one.label == "behind" for one in findings):
        text = (
            "no rank launched a collective between the answers and all counts are level: the job computes, waits for"
            " something else, or all its ranks hang in the same collective; RAS cannot tell which"
        )
        findings.append(Finding("level", text, UNCLEAR))
    findings.sort(key=lambda one: -_ORDER[one.code])
    return Compared(tuple(findings), moved, tuple(unmoved), untold)


class _Names:
    """What to call ranks: by global rank where it is known."""

    def __init__(self, snapshots: Sequence[Snapshot]) -> None:
        self._places, self._whole, _ = ras.world(snapshots)

    def rank(self, comm: Comm, member: Member) -> int | None:
        return member.rank if (comm.hash, comm.key) in self._whole else self._places.get(member.place)

    def one(self, comm: Comm, member: Member) -> str:
        rank = self.rank(comm, member)
        who = f"rank {rank}" if rank is not None else f"rank {member.rank} of communicator {comm.hash}"
        return who if member.place.pid is None else f"{who} ({member.place})"

    def process(self, place: Place) -> str:
        rank = self._places.get(place)
        if rank is None:
            ranks = [r for known, r in self._places.items() if (known.host, known.pid) == (place.host, place.pid)]
            rank = ranks[0] if len(ranks) == 1 else None
        return str(place) if rank is None else f"rank {rank} ({place})"

    def many(self, comm: Comm, numbers: Sequence[int]) -> str:
        ranks = [self.rank(comm, comm.members[number]) for number in numbers]
        known = [rank for rank in ranks if rank is not None]
        if len(known) == len(numbers):
            return ("rank " if len(known) == 1 else "ranks ") + fold(known)
        return ("its rank " if len(numbers) == 1 else "its ranks ") + fold(numbers)


def _gone(first: Snapshot, last: Snapshot, names: _Names, *, has_both: bool) -> list[Finding]:
    before = {(place.host, place.pid) for place, state in first.processes if state == ras.UNRESPONSIVE}
    findings: list[Finding] = []
    named = {ras.DEAD: 0, ras.UNRESPONSIVE: 0}
    for place, state in last.processes:
        named[state] += 1
        if state == ras.DEAD:
            text = f"{names.process(place)} is dead: RAS could not reach it for a minute"
            findings.append(Finding("dead", text, WRONG))
        else:
            is_long = has_both and (place.host, place.pid) in before
            said = "answered neither time" if is_long else "did not answer"
            findings.append(Finding("silent", f"{names.process(place)} {said}", WRONG if is_long else UNCLEAR))
    for state, label, number in ((ras.DEAD, "dead", last.num_dead), (ras.UNRESPONSIVE, "silent", last.num_missing)):
        if number > named[state]:
            text = f"{number - named[state]} more processes, which RAS does not name"
            findings.append(Finding(label, text, WRONG if state == ras.DEAD else UNCLEAR))
    return findings


def _reported(last: Snapshot, names: _Names) -> list[Finding]:
    findings: list[Finding] = []
    for comm in last.comms:
        statuses = {member.status for member in comm.members.values()} - {None}
        for member in comm.members.values():
            who = names.one(comm, member)
            if member.error is not None:
                findings.append(Finding("error", f"{who} reports: {member.error}", WRONG))
            if member.status == "ABORT":
                findings.append(Finding("abort", f"{who} aborts communicator {comm.hash}", WRONG))
            elif member.status in {"FINALIZE", "INIT"} and len(statuses) > 1:
                doing = "ends" if member.status == "FINALIZE" else "still sets up"
                findings.append(Finding("status", f"{who} {doing} communicator {comm.hash}, others run it", UNCLEAR))
            if member.state == ras.NOT_MEMBER:
                text = f"{who} answers and has no communicator {comm.hash} (any more); others do"
                findings.append(Finding("left", text, UNCLEAR))
    return findings


def _has_moved(old: Comm, new: Comm) -> bool:
    return any(
        old.spread(op) != new.spread(op)
        or any(
            member.counts.get(op) != old.members[rank].counts.get(op)
            for rank, member in new.members.items()
            if rank in old.members and op in old.members[rank].counts and op in member.counts
        )
        for op in {*old.ops, *new.ops}
    )


def _lag(comm: Comm, lag: Lag, old: Comm | None, names: _Names, *, has_moved: bool | None) -> Finding:
    who = names.many(comm, lag.behind) if lag.behind else f"{lag.num_behind} ranks that RAS does not name"
    count = str(lag.low) if lag.num_behind == 1 or lag.high == lag.low + 1 else f"{lag.low} to {lag.high - 1}"
    ahead = lag.num_ranks - lag.num_behind
    text = (
        f"{who} launched {count} {lag.op}, the {'other' if ahead == 1 else f'{ahead} others'} {lag.high}"
        f" (communicator {comm.hash})"
    )
    was_behind = old is not None and any(other.op == lag.op for other in old.lags())
    if has_moved is False and was_behind:
        return Finding("behind", f"{text}; both times, and nobody moved", WRONG)
    if old is None or has_moved is None:
        return Finding("behind", f"{text}; at one time, which is normal for a job at work", UNCLEAR)
    text += _movers(old, comm, names)
    if not was_behind:
        return Finding("behind", f"{text}; the last time only: ask again to see if that stays", UNCLEAR)
    return Finding("differ", f"{text}; it goes on, so this is normal, or a rank that is slow", RIGHT)


def _movers(old: Comm, new: Comm, names: _Names) -> str:
    """Who launched more between the answers, and who did not."""
    rose: list[int] = []
    still: list[int] = []
    for rank, member in new.members.items():
        before = old.members.get(rank)
        if before is not None and before.counts and member.counts:
            (rose if before.counts != member.counts else still).append(rank)
    if not rose:
        return ""
    return f"; {names.many(new, rose)} launched more since" + (f", {names.many(new, still)} did not" if still else "")
