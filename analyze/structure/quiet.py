"""Nothing points at a rank: the run is healthy, under way, was ended from outside, or says too little."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import polars as pl

from roundk.analyze import cause
from roundk.analyze.case import Case
from roundk.analyze.endings import Ending, How
from roundk.analyze.finding import Evidence, Finding, Reason
from roundk.analyze.names import Cause, Confidence, Structure
from roundk.analyze.phrases import NS_PER_S, capital, duration, number_of, ranks_text, verb
from roundk.analyze.structure import blame, first_error, without_calls
from roundk.analyze.structure.last_seen import SHOWN_RANKS, last_evidence

TOGETHER_NS: Final = NS_PER_S
"""Signs of life that end within a second of each other were ended by one hand."""


def under_way(case: Case) -> bool:
    """The job is alive, nothing of it failed or ended, and no open call is old enough to count as stuck."""
    if not case.alive or case.gave_up_ns is not None or any(e.how is not How.UNKNOWN for e in case.endings.values()):
        return False
    oldest = case.blocked["enter_ns"].min()
    return not isinstance(oldest, int) or case.last_alive_ns - oldest < case.stall_ns


def in_progress(case: Case) -> Finding:
    """A living job with nothing stuck."""
    count = case.blocked.select("group", "seq").unique().height
    timed = count == 0 or case.blocked["enter_ns"].null_count() == 0
    age = f" for less than {duration(case.stall_ns)}" if timed else ", for how long is not told"
    return Finding(
        structure=Structure.IN_PROGRESS,
        summary=f"The job is running: {_rounds_text(case)}, {count} open{age}.",
        next_steps=("analyze again after a while if it makes no progress",),
    )


def at_rest(case: Case) -> Finding:
    """No call is open or failed for good."""
    if case.in_order:
        return healthy(case)
    if _left_whole(case):
        return _unseen_p2p(case) if case.unrecorded_calls else _nothing_open(case)
    if case.alive and not any(e.how not in (How.UNKNOWN, How.CLEAN) for e in case.endings.values()):
        return in_progress(case)
    return unexplained(case)


def healthy(case: Case) -> Finding:
    """The job ended in order."""
    caught = case.blocked.height
    partial = [e.rank for e in case.endings.values() if e.data != "present"]
    whole = case.ordinary_rounds.filter(pl.col("completed") == pl.col("size"))
    if partial and whole.is_empty():
        return _unseen_whole(case, partial)
    against: list[str] = []
    if caught:
        calls = number_of(caught, "call")
        against.append(
            f"{calls} failed or never ended, and the program went on without {'it' if caught == 1 else 'them'}"
        )
    if partial:
        against.append(f"the recording of {ranks_text(partial)} is missing or incomplete")
    return Finding(
        structure=Structure.HEALTHY,
        summary=f"Nothing is wrong: {_rounds_text(case)}, and the job ended in order.",
        contradictions=tuple(against),
    )


def _left_whole(case: Case) -> bool:
    """What the job left behind is there of every rank, and nothing of it failed or waits."""
    if not case.trace.is_post_mortem or any(e.how not in (How.UNKNOWN, How.CLEAN) for e in case.endings.values()):
        return False
    there = all(e.data == "present" or e.rank in case.counted for e in case.endings.values())
    rounds = case.ordinary_rounds
    # Without rounds there are sends and receives, of which all ended.
    seen = not rounds.filter(pl.col("completed") == pl.col("size")).is_empty() if rounds.height else case.calls.height
    return there and not case.is_hung and bool(seen)


def _nothing_open(case: Case) -> Finding:
    return Finding(
        structure=Structure.HEALTHY,
        summary=f"Nothing is wrong in what the job left behind: {_rounds_text(case)}, and no call of any rank is open.",
        not_checked=("What came after these files were written is not known.",),
        next_steps=("if the job hangs all the same, take the dumps again while it does",),
    )


def _unseen_p2p(case: Case) -> Finding:
    ranks = sorted(case.unrecorded_calls)
    return Finding(
        structure=Structure.INSUFFICIENT_EVIDENCE,
        summary=f"No recorded call is open ({_rounds_text(case)}), and {ranks_text(ranks)} made sends or receives too, "
        "which gloo's Flight Recorder counts and does not record: whether the job hangs in one cannot be told.",
        reason=cause.UNDETERMINED,
        evidence=tuple(last_evidence(case, ranks)),
        next_steps=(
            "run it under `roundk run --`, which records sends and receives",
            "while it hangs: py-spy dump --pid on each rank",
        ),
    )


def _unseen_whole(case: Case, partial: list[int]) -> Finding:
    return Finding(
        structure=Structure.INSUFFICIENT_EVIDENCE,
        summary=f"The job ended in order, but no round can be seen complete: the recording of {ranks_text(partial)} is "
        f"missing or incomplete ({_rounds_text(case)}).",
        reason=cause.UNDETERMINED,
        evidence=tuple(last_evidence(case, partial)),
        next_steps=(f"look for the files of {ranks_text(partial)}: full disk, partial copy, lost host",),
    )


def unexplained(case: Case) -> Finding:
    """Something went wrong, and no round tells what: the first error of a rank's own, or the end from outside."""
    if _ended_from_outside(case):
        return _killed(case)
    errors = _errors(case)
    return first_error.finding(case, errors) if errors else _nothing(case)


def only_ended(case: Case, roots: list[Finding]) -> bool:
    """All that is wrong is that the job was ended from outside."""
    unsaid = all(finding.structure is Structure.INSUFFICIENT_EVIDENCE for finding in roots)
    return unsaid and _ended_from_outside(case)


def with_end(case: Case, finding: Finding) -> Finding:
    """A finding on a job that was ended from outside, with what is known of that end."""
    killed = _killed(case)
    remark = f"The whole job was ended from outside ({_ways(case)}): who did it, and why, was not looked at."
    return replace(
        finding,
        evidence=(*finding.evidence, *killed.evidence),
        not_checked=(*finding.not_checked, remark),
        next_steps=(*finding.next_steps, *killed.next_steps),
    )


def _errors(case: Case) -> list[Ending]:
    """Ends that nobody brought about from outside."""
    return [e for e in case.endings.values() if e.how not in (How.UNKNOWN, How.CLEAN) and not e.from_outside]


def _ended_from_outside(case: Case) -> bool:
    errors = _errors(case)
    if case.told_to_end is not None:
        return not errors
    return _killed_together(case, errors) or (not errors and any(e.from_outside for e in case.endings.values()))


def _killed_together(case: Case, errors: list[Ending]) -> bool:
    """Every rank was ended by one and the same signal, within a second."""
    if len(case.endings) < 2 or len(errors) != len(case.endings) or any(e.how is not How.SIGNAL for e in errors):
        return False
    alive = [e.last_alive_ns for e in errors if e.last_alive_ns is not None]
    return len({e.signal for e in errors}) == 1 and len(alive) == len(errors) and max(alive) - min(alive) <= TOGETHER_NS


def _is_own(ending: Ending) -> bool:
    """It raised what neither a signal nor the loss of a peer is turned into."""
    return not (ending.is_interrupt or blame.speaks_of_peers(ending))


def _ways(case: Case) -> str:
    if case.told_to_end is not None:
        return case.told_to_end.text
    return ", ".join(sorted({e.text for e in case.endings.values() if e.how is not How.UNKNOWN}))


def _ends(ends: list[Ending]) -> tuple[Evidence, ...]:
    """How ranks ended; of those that ended like another one that is told, in one piece."""
    alike: dict[str, list[Ending]] = {}
    for end in ends:
        alike.setdefault(end.text, []).append(end)
    found: list[Evidence] = []
    for text, those in alike.items():
        shown, left = those[:SHOWN_RANKS], [e.rank for e in those[SHOWN_RANKS:]]
        found += [Evidence(f"rank {e.rank} {text}", e.source, e.rank, e.seen_ns or e.at_ns) for e in shown]
        if left:
            found.append(
                Evidence(f"{ranks_text(left)} ended in the same way: {text}", those[SHOWN_RANKS].source, left[0])
            )
    return tuple(found)


def _killed(case: Case) -> Finding:
    ends = [e for e in case.endings.values() if e.how is not How.UNKNOWN]
    then = next((e for e in ends if e.was_told and e.how is How.EXCEPTION and _is_own(e)), None)
    after = "" if then is None else f" Rank {then.rank} then {then.text}."
    evidence = (*([] if case.told_to_end is None else [case.told_to_end.evidence]), *_ends(ends))
    return Finding(
        structure=Structure.INSUFFICIENT_EVIDENCE,
        summary=f"The whole job was ended from outside ({_ways(case)}), and no round had been open for longer than "
        f"usual: nothing recorded says that a rank was at fault.{after}",
        reason=Reason(Cause.PROCESS_KILLED, Confidence.MEDIUM, "", evidence),
        evidence=evidence,
        next_steps=(
            "ask the scheduler's and the kernel's log who ended the job: time limit, out of memory, an operator",
        ),
    )


def _blind(case: Case, rank: int) -> bool:
    """The recording of a rank stops before its end, in some group."""
    return not case.frontier.filter(pl.col("rank") == rank, ~pl.col("sure")).is_empty()


def _nothing(case: Case) -> Finding:
    open_calls = case.blocked.height
    what = number_of(open_calls, "call is", "calls are") + " open" if open_calls else "no call is open"
    unsure = [e.rank for e in case.endings.values() if _blind(case, e.rank)]
    if unsure:
        what += f", the recording of {ranks_text(unsure)} stops early"
    silent = [e.rank for e in case.endings.values() if e.data in ("missing", "empty")]
    extra = f"; nothing is recorded of {ranks_text(silent)}" if silent else ""
    exit_text = "" if case.trace.exit_code is None else f", the command exited with code {case.trace.exit_code}"
    return Finding(
        structure=Structure.INSUFFICIENT_EVIDENCE,
        summary=f"What is recorded does not say what went wrong: {_rounds_text(case)}, {what}{exit_text}{extra}.",
        reason=cause.UNDETERMINED,
        evidence=tuple(last_evidence(case, list(case.endings))),
        next_steps=("keep the job's own output: an error outside torch.distributed is only seen there",),
    )


def no_calls(case: Case) -> Finding:
    """Not one call was recorded."""
    errors = _errors(case)
    if errors:
        return first_error.finding(case, errors)
    seen = [e.rank for e in case.endings.values() if e.data in ("present", "truncated")]
    who = f"{ranks_text(seen)} {verb(seen, 'has', 'have')}" if seen else "there is"
    if case.alive:
        return in_progress(case)
    if case.trace.is_post_mortem:
        return without_calls.nothing_called(case)
    return Finding(
        structure=Structure.INSUFFICIENT_EVIDENCE,
        summary=f"{capital(who)} no recorded torch.distributed call.",
        reason=cause.UNDETERMINED,
        next_steps=(
            "check that the command makes torch.distributed calls",
            "check that the recorder was on in its ranks: `python -I` and an emptied environment keep it out",
        ),
    )


def _rounds_text(case: Case) -> str:
    rounds = case.ordinary_rounds
    if rounds.is_empty():
        return "no collective was called"
    whole = rounds.filter(pl.col("completed") == pl.col("size")).height
    groups = number_of(rounds["group"].n_unique(), "group")
    return f"{number_of(rounds.height, 'round')} in {groups}, {whole:,} seen complete"
