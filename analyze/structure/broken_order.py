"""Did one rank of a circle leave out a call that it had always made before the one it is stuck in?

Step after step it called group A and then group B. Now it is in B without having been in A, where its peers wait for
it. That is a skipped call rather than another order of groups. So is the making of a group, which has no steps before,
where most of those who must make it have come.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import polars as pl

from roundk.analyze.case import Case
from roundk.analyze.control import DESTROY
from roundk.analyze.finding import Evidence, Finding, Reason
from roundk.analyze.names import Cause, Confidence, Structure
from roundk.analyze.phrases import capital, ranks_text, verb
from roundk.analyze.waitfor import StuckRound, stuck_text

EARLIER_STEPS: Final = 2
"""Steps that must show the usual order: one may be chance."""


@dataclass(frozen=True)
class Skip:
    """Ranks that are stuck in one round and seem to have skipped the call of another."""

    ranks: tuple[int, ...]
    skipped: StuckRound
    stuck: StuckRound
    what: str


def find_skip(case: Case, ranks: tuple[int, ...], rounds: tuple[StuckRound, ...]) -> Skip | None:
    """Who of a circle left a call out: one rank by its own order, or those who make no group; None: it is not told."""
    places = [(lacking, at) for lacking in rounds for at in rounds if _differ(lacking, at)]
    made = [_not_made(case, lacking, at) for lacking, at in places]
    found = [skip for skip in made if skip is not None] or [
        Skip((rank,), lacking, at, _habit(case, rank, lacking, at))
        for lacking, at in places
        for rank in lacking.missing
        if rank in ranks and rank in at.inside and _broke(case, rank, lacking, at) and _as_usual(case, lacking, at)
    ]
    return found[0] if len(found) == 1 else None


def _differ(lacking: StuckRound, at: StuckRound) -> bool:
    return lacking.pair is None and at.pair is None and lacking.group != at.group


def _not_made(case: Case, lacking: StuckRound, at: StuckRound) -> Skip | None:
    """Ranks that are in another round while most of those who must make a group with them wait in that."""
    if lacking.group not in case.control_groups or lacking.op == DESTROY or at.group in case.control_groups:
        return None
    absent = lacking.missing
    if (
        not absent
        or not set(absent) <= set(at.inside)
        or 2 * len(lacking.inside) <= len(case.member_ranks(lacking.group))
    ):
        return None
    what = f"{ranks_text(lacking.inside)} of {len(case.member_ranks(lacking.group))} that must make the call wait in "
    what += f"{stuck_text(case, lacking)}: {ranks_text(absent)} went on without it, or makes it later"
    return Skip(absent, lacking, at, what)


def _habit(case: Case, rank: int, lacking: StuckRound, at: StuckRound) -> str:
    return (
        f"rank {rank} had called {case.groups[lacking.group].text} before {case.groups[at.group].text} in "
        f"its steps before, and now went on without it: it probably skipped {stuck_text(case, lacking)}"
    )


def with_skip(case: Case, finding: Finding, skip: Skip) -> Finding:
    """The finding on a circle with the rank that broke its order: blamed where most of the group made the call."""
    lacking = skip.skipped
    evidence = (Evidence(skip.what, case.source(skip.ranks[0]), skip.ranks[0]), *finding.evidence)
    if 2 * len(lacking.entered) <= len(case.member_ranks(lacking.group)):
        return replace(finding, evidence=evidence)
    waiting = tuple(rank for rank in finding.victim_ranks if rank not in skip.ranks)
    return replace(
        finding,
        structure=Structure.SKIPPED_CALL,
        summary=f"{capital(ranks_text(skip.ranks))} skipped {stuck_text(case, lacking)} and went on to "
        f"{stuck_text(case, skip.stuck)}; {ranks_text(lacking.inside)} waited for {verb(skip.ranks, 'it', 'them')}.",
        culprits=skip.ranks,
        sides=(),
        group=lacking.group,
        seq=lacking.seq,
        op=lacking.op,
        onset_ns=lacking.onset_ns,
        waiting=lacking.inside,
        victim_ranks=waiting,
        reason=Reason(Cause.CODE_DIVERGENCE, Confidence.MEDIUM),
        doubts=(*finding.doubts, "that it was skipped, and not only put off, is told by what is usual"),
        evidence=evidence,
        next_steps=("compare the control flow at the two call sites: a condition, a `continue`, uneven data",),
    )


def _broke(case: Case, rank: int, lacking: StuckRound, at: StuckRound) -> bool:
    """In its last steps it made the same number of calls in one group before each in the other, and now fewer."""
    *before, now = _counts(case, rank, lacking.group, at)
    usual = before[-EARLIER_STEPS:]
    return len(usual) == EARLIER_STEPS and len(set(usual)) == 1 and now < usual[0]


def _as_usual(case: Case, lacking: StuckRound, at: StuckRound) -> bool:
    """Those who wait made no more calls there than in the steps before: the round is no addition of theirs."""
    for rank in lacking.inside:
        *before, now = _counts(case, rank, lacking.group, at)
        if before and now > before[-1]:
            return False
    return True


def _counts(case: Case, rank: int, group: int, at: StuckRound) -> list[int]:
    """Calls of a rank in a group before each of its calls in the group of `at`, up to that round; the last is open."""
    mine = case.calls.filter(pl.col("rank") == rank, ~pl.col("p2p"), pl.col("group").is_in([group, at.group]))
    counts = [0]
    for called, seq in mine.select("group", "seq").iter_rows():
        if called == group:
            counts[-1] += 1
        elif seq < at.seq:
            counts.append(0)
    return counts
