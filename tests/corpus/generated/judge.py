"""What a report is worth, given what was planted."""

from __future__ import annotations

from dataclasses import dataclass

from generated.faults import DIVERGED

LEVELS = ("high", "medium", "low")
UNSAID = ("INSUFFICIENT_EVIDENCE", "METHODS_DISAGREE")


@dataclass(frozen=True)
class Judgement:
    """`mark`: right, honest or wrong; `innocents`: the highest confidence at which an innocent rank is named."""

    mark: str
    innocents: str | None
    why: str


def judge(case, report):
    truth = case.truth
    root = report.verdicts[0]
    innocents = None
    for verdict in report.verdicts:
        named = set(verdict.culprit_ranks) - truth.guilty - truth.spared
        if named and (innocents is None or LEVELS.index(verdict.structure_confidence.value) < LEVELS.index(innocents)):
            innocents = verdict.structure_confidence.value
    mark, why = _mark(case, root.structure.value, set(root.culprit_ranks), root.structure_confidence.value)
    return Judgement(mark, innocents, why)


def _mark(case, structure, named, confidence):
    """The mark of the first verdict, and why."""
    truth = case.truth
    if not named:
        if structure in truth.right_empty:
            return "right", ""
        is_honest = structure in UNSAID or structure in truth.honest
        return ("honest", "") if is_honest else ("wrong", f"{structure} without culprits")
    why = _excuse(case, structure, named) if confidence != "high" else ""
    if why:
        return "honest", why
    if not named <= truth.guilty:
        return "wrong", f"{structure} names {sorted(named - truth.guilty)}"
    return ("right", "") if structure in truth.right else ("wrong", f"{structure} is not what the ranks did")


def _excuse(case, structure, named):
    """Why what is said, below high confidence, is what any observer would have to say of what is left; '' where not."""
    spared = named <= case.truth.spared
    if named <= case.truth.guilty and structure in DIVERGED and structure not in case.truth.right:
        # `a b a a b` is an `a` too many, or a `b` too few: where it hangs at once, both fit.
        return "the right rank, the other way round" if set(case.truth.right) & set(DIVERGED) else ""
    if structure != "RANK_NOT_ENTERED":
        # A rank that waits in one call cannot show that the other one would have come after it.
        alike = case.is_blocking and spared and structure in DIVERGED
        return "a skipped call and another order look alike" if alike else ""
    if named & case.lost and named <= case.lost | case.truth.guilty:
        # A rank of which nothing is left looks as one that died without a word.
        return f"names {sorted(named & case.lost)}, of which nothing is left"
    if case.is_cut_short and case.is_left_behind and named <= case.behind() | case.lost:
        # A dump on demand looks as one of a hang: those who are behind are, at that moment, waited for.
        return "as in a hang"
    # Of two ranks, one that waits and one that is done: without call sites that is all there is to see.
    return "nothing tells which of the two it is" if spared and not case.has_sites else ""
