"""Stuck before the first collective: the ranks did not all meet at the store, or NCCL did not connect them all.

Whoever says so waited, or could not get through: none of them is to blame. Who did not come can be named only where all
others are seen, and even then it may be that its log is merely not here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from roundk.analyze import cause
from roundk.analyze.case import Case
from roundk.analyze.finding import Evidence, Finding
from roundk.analyze.names import Detail, Structure
from roundk.analyze.phrases import NS_PER_MS, NS_PER_S, duration, number_of, ranks_text, verb
from roundk.analyze.told import Told, told

_INIT: Final = "init_process_group"
_SHOWN: Final = 3
_MOST_NAMED: Final = 32
"""More ranks that are not seen are hosts whose logs are not here, not culprits."""
_UNPROVEN: Final = "that the logs hold no line of a rank does not prove that it never came"


def stuck(case: Case) -> Finding | None:
    """The job hangs in its start, as its logs tell; None where they do not."""
    return _at_store(case) or _in_nccl(case)


def _at_store(case: Case) -> Finding | None:
    waits = told(case.trace, ("store_clients", "store_barrier"))
    failed = told(case.trace, ("store_connect_timeout", "store_connect_failed"))
    if waits:
        return _waited_for(case, waits, failed)
    # Until rank 0 is there every start prints refusals: they count where nothing shows that the job went on.
    went_on = any(_finished(fact) for fact in told(case.trace, ("nccl_communicator",)))
    return None if not failed or went_on or not case.calls.is_empty() else _unreachable(failed)


def _finished(communicator: Told) -> bool:
    return bool(communicator.number_of("finished"))


def _waited_for(case: Case, waits: list[Told], failed: list[Told]) -> Finding:
    """The store's host, or all who had come, waited for clients that did not come."""
    first = waits[0]
    joined, expected = first.number_of("joined") or 0, first.number_of("expected") or 0
    absent = _unseen(case, max((f.number_of("joined") or 0 for f in waits), default=0), expected)
    unable = sorted({f.where for f in failed if f.where})
    lacking = max(expected - joined, 0)
    if joined > expected:
        said = f"{joined} came to a start of {expected}: an earlier start of the job left its count in the store"
    else:
        said = f"{joined} of {expected} came, {lacking} did not"
    long = f" for {duration((first.number_of('waited_s') or 0) * NS_PER_S)}" if first.number_of("waited_s") else ""
    if absent:
        who = f"nothing here is of {ranks_text(absent)}"
    elif unable:
        who = f"{', '.join(unable[:_SHOWN])} could not connect to {_address(failed[0])}"
    else:
        who = "which did not is not told" if lacking else "none is told to be missing"
    waiter = first.subject or "The process that hosts the store"
    return Finding(
        structure=Structure.STUCK_IN_INIT,
        detail=Detail.SILENT if absent else None,
        summary=f"{waiter} waited{long} in {_INIT} for all ranks to come to the store: {said}; {who}.",
        culprits=tuple(absent),
        op=_INIT,
        waiting=tuple(sorted({f.rank for f in waits if f.rank is not None} - set(absent))),
        victim_hosts=tuple(sorted({f.host for f in (*waits, *failed) if f.host})),
        onset_ns=_onset(first, (first.number_of("waited_s") or 0) * NS_PER_S),
        reason=cause.UNDETERMINED,
        doubts=(_UNPROVEN, "the store counts who came, and does not say who") if absent else (),
        evidence=_evidence([*waits[:_SHOWN], *failed[:_SHOWN]]),
        next_steps=(
            *(() if unable and not absent else _look_at(absent)),
            *_reach(_address(failed[0]) if failed else "MASTER_ADDR:MASTER_PORT"),
            "compare WORLD_SIZE, --nnodes and --nproc-per-node with the hosts and processes that were started",
        ),
    )


def _unseen(case: Case, joined: int, expected: int) -> list[int]:
    """The ranks of which the logs hold nothing, where they are just those that did not come."""
    seen = set(case.trace.facts["rank"].drop_nulls().to_list())
    if not seen or not 0 < expected - joined <= _MOST_NAMED or len(seen) != joined:
        return []
    absent = [rank for rank in range(expected) if rank not in seen]
    return absent if len(absent) == expected - joined < len(seen) else []


def _unreachable(failed: list[Told]) -> Finding:
    """Somebody does not get through to the store."""
    first = next((f for f in failed if f.kind == "store_connect_timeout"), failed[0])
    places = list(dict.fromkeys(f.subject for f in failed if f.where))
    who = f"{', '.join(places[:_SHOWN])}" + (f" and {len(places) - _SHOWN} more" if len(places) > _SHOWN else "")
    errors = list(dict.fromkeys(error for f in failed if (error := f.text_of("error"))))
    waited = (first.number_of("timeout_ms") or 0) * NS_PER_MS
    long = f" within {duration(waited)}" if waited else ""
    why = f" ({', '.join(errors[:_SHOWN])})" if errors else ""
    refused = any("refused" in error.lower() for error in errors)
    means = (
        " The host answers and nothing listens at that port: rank 0 has not started there, has ended, or has another "
        "port."
        if refused
        else ""
    )
    return Finding(
        structure=Structure.STUCK_IN_INIT,
        summary=f"{who or 'A process'} could not connect to the store of rank 0 at {_address(first)}{long}"
        f"{why}.{means}",
        op=_INIT,
        waiting=tuple(sorted({f.rank for f in failed if f.rank is not None})),
        victim_hosts=tuple(sorted({f.host for f in failed if f.host})),
        onset_ns=_onset(first, waited),
        reason=cause.UNDETERMINED,
        doubts=("only the side that connects is heard",),
        evidence=_evidence(failed[: 2 * _SHOWN]),
        next_steps=(
            f"look whether rank 0 runs on {first.text_of('peer')}, and at its log: it hosts the store",
            *_reach(_address(first)),
        ),
    )


def _address(fact: Told) -> str:
    return f"{fact.text_of('peer') or 'MASTER_ADDR'}:{fact.number_of('port') or 'MASTER_PORT'}"


def _onset(fact: Told, waited_ns: int) -> int | None:
    return fact.time_ns - waited_ns if fact.time_ns is not None and waited_ns else None


def _reach(address: str) -> tuple[str, ...]:
    host, _, port = address.rpartition(":")
    return (
        f"from each host: `getent hosts {host}` must give the address of rank 0's host",
        f"from each host: `nc -zv {host} {port}` must get through: firewall, routes, another port",
    )


def _look_at(absent: Sequence[int]) -> tuple[str, ...]:
    if not absent:
        return (
            "find the process that did not come: name the logs of all ranks here, ask the scheduler what it started",
        )
    started = verb(absent, "its process", "their processes")
    return (f"look for {ranks_text(absent)}: did {started} start (scheduler, ps), is the log among those read here?",)


def _in_nccl(case: Case) -> Finding | None:
    """A communicator that some ranks, or all, began to initialise and did not finish."""
    every = told(case.trace, ("nccl_communicator",))
    pending = told(case.trace, ("nccl_init_open",))
    open_of: dict[str | None, list[Told]] = {}
    for fact in pending:
        open_of.setdefault(fact.text_of("comm"), []).append(fact)
    stuck_ones = [
        fact
        for index, fact in enumerate(every)
        if fact.text_of("comm") in open_of and not _went_on(fact, every[index + 1 :])
    ]
    if not stuck_ones:
        return None
    waits_elsewhere = {fact.rank for fact in pending if fact.rank is not None}
    named = [(fact, _absent(fact, waits_elsewhere)) for fact in stuck_ones]
    fact, absent = next(((f, ranks) for f, ranks in named if ranks), named[0])
    return _unfinished(fact, absent, open_of[fact.text_of("comm")])


def _went_on(fact: Told, later: Sequence[Told]) -> bool:
    """A communicator as large that came after it was made: it is of an earlier attempt."""
    size = fact.number_of("nranks") or 0
    return any((f.number_of("nranks") or 0) >= size and f.number_of("finished") == f.number_of("nranks") for f in later)


def _absent(fact: Told, waiting: set[int]) -> list[int]:
    """Who never began, as ranks of the job, where so few are missing that it is not the logs that are."""
    listed: Any = fact.fields.get("absent_ranks") or []
    began, nranks = fact.number_of("began") or 0, fact.number_of("nranks") or 0
    if fact.number_of("finished") or not 0 < nranks - began <= min(_MOST_NAMED, began - 1):
        return []
    return [rank for rank in listed if rank not in waiting]


def _unfinished(fact: Told, absent: list[int], pending: list[Told]) -> Finding:
    nranks, began, finished = (fact.number_of(name) or 0 for name in ("nranks", "began", "finished"))
    waiting = sorted({f.rank for f in pending if f.rank is not None})
    lead = f"The NCCL communicator of {number_of(nranks, 'rank')} was not made: "
    if absent:
        what = f"{number_of(began, 'rank')} began to initialise it and wait{'s' if began == 1 else ''}, "
        what += f"{ranks_text(absent)} never did"
    elif finished:
        left = began - finished
        what = f"{finished} of {nranks} finished, {ranks_text(waiting) if waiting else number_of(left, 'rank')} did not"
        what += ", and nothing tells what for"
    elif began >= nranks:
        what = (
            "all of them began to initialise it and none finished: they do not all reach each other, or one hangs in it"
        )
    else:
        what = f"{began} began to initialise it and none finished; whether the other {nranks - began} did is not told"
    doubts: tuple[str, ...] = ("the logs may end before the initialisation did",)
    if absent:
        doubts = (_UNPROVEN, *(() if _is_one_log(pending) else ("their logs may not be among those that were read",)))
    return Finding(
        structure=Structure.STUCK_IN_INIT,
        detail=Detail.SILENT if absent else None,
        summary=f"{lead}{what}.",
        culprits=tuple(absent),
        op=_INIT,
        waiting=tuple(waiting),
        victim_ranks=tuple(waiting),
        victim_hosts=tuple(sorted({f.host for f in pending if f.host})),
        reason=cause.UNDETERMINED,
        doubts=doubts,
        evidence=(fact.evidence, *_began(pending)),
        next_steps=_nccl_steps(absent),
    )


def _is_one_log(pending: list[Told]) -> bool:
    """One file has the lines of several hosts: that of the whole job, in which no rank's are left out."""
    files = {fact.source.rpartition(":")[0] for fact in pending}
    return len(files) == 1 and len({fact.host for fact in pending}) > 1


def _began(pending: list[Told]) -> tuple[Evidence, ...]:
    more = len(pending) - _SHOWN
    shown = _evidence(pending[:_SHOWN])
    if more <= 0:
        return shown
    last = pending[-1]
    return (*shown, Evidence(f"{number_of(more, 'more rank')} likewise", last.source, last.rank, last.time_ns))


def _nccl_steps(absent: list[int]) -> tuple[str, ...]:
    stacks = "while it hangs: py-spy dump --pid on each rank"
    if absent:
        return (
            *_look_at(absent),
            f"{stacks}, first on {ranks_text(absent)}: what it does instead of its first collective",
        )
    return (
        "check that the hosts reach each other on NCCL_SOCKET_IFNAME's interface, on any port: NCCL picks free ones",
        "start it with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,BOOTSTRAP,NET: see the last line of each rank",
        stacks,
    )


def _evidence(facts: Sequence[Told]) -> tuple[Evidence, ...]:
    return tuple(fact.evidence for fact in facts)
