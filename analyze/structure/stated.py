"""Without a call to line up: what torch's own checks say of who did not come, or whose calls differ.

Whoever prints it is no culprit.
"""

from __future__ import annotations

from typing import Any, Final

from roundk.analyze import cause
from roundk.analyze.case import Case
from roundk.analyze.finding import Finding, Reason
from roundk.analyze.names import Cause, Confidence, Detail, Structure
from roundk.analyze.phrases import NS_PER_MS, capital, ranks_text, verb
from roundk.analyze.told import Told, told

_SHOWN: Final = 3
_DIFFERS: Final = (("op", Detail.OP), ("dtype", Detail.DTYPE), ("shape", Detail.SIZE))


def stated(case: Case) -> Finding | None:
    """What a monitored barrier or the comparison of collectives (TORCH_DISTRIBUTED_DEBUG=DETAIL) says."""
    if barriers := told(case.trace, ("monitored_barrier",)):
        return _absent(barriers)
    compared = told(case.trace, ("fingerprint_mismatch",))
    return _differ(compared) if compared else None


def _absent(barriers: list[Told]) -> Finding | None:
    first = barriers[0]
    ranks = sorted({rank for rank in first.fields.get("ranks") or [] if isinstance(rank, int)})
    if not ranks:
        return None
    waited = (first.number_of("timeout_ms") or 0) * NS_PER_MS
    reporter = first.rank if first.rank is not None else first.number_of("reporter")
    return Finding(
        structure=Structure.RANK_NOT_ENTERED,
        detail=Detail.SILENT,
        summary=f"{capital(ranks_text(ranks))} did not come to a monitored barrier, as "
        f"{'its root' if reporter is None else f'rank {reporter}'} says, which waited there.",
        culprits=tuple(ranks),
        op="monitored_barrier",
        onset_ns=first.time_ns - waited if first.time_ns is not None and waited else None,
        waiting=() if reporter is None else (reporter,),
        reason=cause.UNDETERMINED,
        doubts=("the barrier numbers ranks as its group does, and does not say which group that is",),
        evidence=tuple(fact.evidence for fact in barriers[:_SHOWN]),
        next_steps=(
            f"look at the {verb(ranks, 'log', 'logs')} of {ranks_text(ranks)}: what happened there before the barrier",
            f"while it hangs: py-spy dump --pid on {ranks_text(ranks)}",
        ),
    )


def _differ(compared: list[Told]) -> Finding:
    first = compared[0]
    sides: list[dict[str, Any]] = [side for side in first.fields.get("sides") or [] if isinstance(side, dict)]
    ranks = sorted({side["rank"] for side in sides if isinstance(side.get("rank"), int)})
    detail = next((d for name, d in _DIFFERS if len({str(side.get(name)) for side in sides}) > 1), None)
    seqs = {side.get("seq") for side in sides}
    return Finding(
        structure=Structure.SIGNATURE_MISMATCH,
        detail=detail,
        summary=f"{capital('; '.join(_call(side) for side in sides))}: they made different calls in one round, as "
        "torch's own check found. Which of them is wrong is not told.",
        sides=tuple(ranks),
        seq=next(iter(seqs)) if len(seqs) == 1 and isinstance(next(iter(seqs)), int) else None,
        onset_ns=first.time_ns,
        reason=Reason(Cause.CODE_DIVERGENCE, Confidence.MEDIUM, "", (first.evidence,)),
        doubts=("only the two calls that torch compared are told",),
        evidence=tuple(fact.evidence for fact in compared[:_SHOWN]),
        next_steps=(
            f"compare the tracebacks of {ranks_text(ranks)}: the first branch at which they part is the one to mend",
        ),
    )


def _call(side: dict[str, Any]) -> str:
    shape = f" of shape {side['shape']}" if side.get("shape") is not None else ""
    dtype = f" ({side['dtype']})" if side.get("dtype") else ""
    return f"rank {side.get('rank', '?')} called {side.get('op') or side.get('source_op')}{shape}{dtype}"
