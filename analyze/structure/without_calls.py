"""What a job left behind holds no call and names no error: what is in there, and what to collect instead."""

from __future__ import annotations

from typing import Final

from roundk.analyze import cause
from roundk.analyze.case import Case
from roundk.analyze.finding import Evidence, Finding
from roundk.analyze.names import Structure
from roundk.analyze.phrases import capital, number_of, ranks_text
from roundk.analyze.structure import first_error
from roundk.analyze.told import told

_DUMPS: Final = "flight_recorder"
_LOGS: Final = "job_log"
_SHOWN: Final = 3
_NOUNS: Final = {_DUMPS: "Flight Recorder dump", _LOGS: "log", "host_evidence": "file of a host's counters"}
_LATER: Final = "while it hangs: py-spy dump --pid on each rank"


def nothing_called(case: Case) -> Finding:
    """Nobody is seen to have called anything, and nothing tells of an error."""
    kinds = case.trace.sources
    parts = [number_of(count, _NOUNS.get(kind, f"{kind} input")) for kind, count in kinds.items()]
    held = " and ".join(parts) or "what was named"
    closed = first_error.closed_connections(case)
    said = " ".join(one for one in (_counters(case), _communicators(case)) if one)
    echo = ""
    if closed:
        peers = list(dict.fromkeys(peer for fact in closed if (peer := first_error.peer_of(fact)) is not None))
        whom = f" by {', '.join(peers[:_SHOWN])}" if peers else ""
        who = closed[0].subject or "A process"
        echo = f" {who} reported a connection that was closed{whom}, an echo: what ended there is not told."
    return Finding(
        structure=Structure.INSUFFICIENT_EVIDENCE,
        summary=f"{capital(held)}: no torch.distributed call in {'it' if _is_one(case) else 'them'}, and no "
        f"error of a rank's own.{f' {said}' if said else ''}{echo}",
        victim_hosts=tuple(sorted({fact.host for fact in closed if fact.host})),
        reason=cause.UNDETERMINED,
        evidence=(*(fact.evidence for fact in closed[:_SHOWN]), *_progress(case)),
        next_steps=(
            *(_dump_steps(case) if _DUMPS in kinds else ()),
            *(first_error.COLLECT if closed else _log_steps(case)),
        ),
    )


def _is_one(case: Case) -> bool:
    return sum(case.trace.sources.values()) == 1


def _counters(case: Case) -> str:
    """What the counters beside the calls say."""
    progress = case.trace.progress
    if progress.is_empty():
        return ""
    most = max((n for n in progress["enqueued"].to_list() if n is not None), default=0)
    who = capital(ranks_text(progress["rank"].to_list()))
    if most <= 0:
        return f"{who} had called no collective yet when this was written, as the counters tell."
    return f"The counters tell of up to {number_of(most, 'collective')}: the calls themselves were not kept."


def _progress(case: Case) -> tuple[Evidence, ...]:
    rows = case.trace.progress.sort("rank").head(_SHOWN).iter_rows(named=True)
    return tuple(
        Evidence(
            f"rank {row['rank']}: last enqueued {row['enqueued'] or 0}, last completed {row['completed'] or 0}",
            row["source"] or "",
            row["rank"],
            row["time_ns"],
        )
        for row in rows
    )


def _communicators(case: Case) -> str:
    made = [f for f in told(case.trace, ("nccl_communicator",)) if f.number_of("finished")]
    return f"NCCL made {number_of(len(made), 'communicator')}." if made else ""


def _dump_steps(case: Case) -> tuple[str, ...]:
    counted = [n for n in case.trace.progress["enqueued"].to_list() if n is not None]
    if counted and max(counted) <= 0:
        return (
            "if the job hangs before its first collective, look there: py-spy dump --pid on each rank",
            "if it came further, these dumps are too old: take them again while it hangs",
        )
    return (
        "take the dumps again while the job hangs, of all calls and not only of active ones",
        "check that every rank records: TORCH_FR_BUFFER_SIZE and TORCH_NCCL_TRACE_BUFFER_SIZE above 0 (2000)",
        _LATER,
    )


def _log_steps(case: Case) -> tuple[str, ...]:
    if _LOGS in case.trace.sources:
        return (
            "name the logs of all ranks here, stdout and stderr, to their end",
            first_error.COLLECT[-1],
        )
    return ("name the job's logs too: an error outside torch.distributed is only seen there",)
