"""Did one rank of a circle leave out a call that it had always made before the one it is stuck in?

Step after step it called group A and then group B. Now it is in B without having been in A, where its peers wait for
it. That is a skipped call rather than another order of groups.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import polars as pl

from roundk.analyze.case import Case
from roundk.analyze.finding import Evidence, Finding, Reason
from roundk.analyze.names import Cause, Confidence, Structure
from roundk.analyze.phrases import capital, ranks_text
from roundk.analyze.waitfor import StuckRound, stuck_text

EARLIER_STEPS: Final = 2
"""Steps that must show the usual order: one may be chance."""


@dataclass(frozen=True)
class Skip:
    """A rank that is stuck in one round and seems to have skipped the call of another."""

    rank: int
    skipped: StuckRound
    stuck: StuckRound


def find_skip(case: Case, ranks: tuple[int, ...], rounds: tuple[StuckRound, ...]) -> Skip | None:
    """The one rank of a circle that broke its own order; None: none did, or several."""
    found = [
        Skip(rank, lacking, at)
        for lacking in rounds
        for rank in lacking.missing
        for at in rounds
        if rank in ranks and rank in at.inside and lacking.pair is None and at.pair is None
        if lacking.group != at.group and _broke(case, rank, lacking, at) and _as_usual(case, lacking, at)
    ]
    return found[0] if len(found) == 1 else None


def with_skip(case: Case, finding: Finding, skip: Skip) -> Finding:
    """The finding on a circle with the rank that broke its order: blamed where most of the group made the call."""
    lacking = skip.skipped
    what = (
        f"rank {skip.rank} had called {case.groups[lacking.group].text} before {case.groups[skip.stuck.group].text} in "
        f"its steps before, and now went on without it: it probably skipped {stuck_text(case, lacking)}"
    )
    evidence = (Evidence(what, case.source(skip.rank), skip.rank), *finding.evidence)
    if 2 * len(lacking.entered) <= len(case.member_ranks(lacking.group)):
        return replace(finding, evidence=evidence)
    waiting = tuple(rank for rank in finding.victim_ranks if rank != skip.rank)
    return replace(
        finding,
        structure=Structure.SKIPPED_CALL,
        summary=f"{capital(ranks_text([skip.rank]))} skipped {stuck_text(case, lacking)} and went on to "
        f"{stuck_text(case, skip.stuck)}; {ranks_text(lacking.inside)} waited for it.",
        culprits=(skip.rank,),
        sides=(),
        group=lacking.group,
        seq=lacking.seq,
        op=lacking.op,
        onset_ns=lacking.onset_ns,
        waiting=lacking.inside,
        victim_ranks=waiting,
        reason=Reason(Cause.CODE_DIVERGENCE, Confidence.MEDIUM),
        doubts=(*finding.doubts, "the skip is told by the order of its calls in the steps before only"),
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
