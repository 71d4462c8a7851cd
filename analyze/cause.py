"""WHY: what the end or the state of a culprit's process says, and the faults that lie on the path of a structure."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import polars as pl

from roundk.analyze import degraded, kills, onpath
from roundk.analyze.case import Case
from roundk.analyze.endings import Ending, How
from roundk.analyze.finding import Evidence, Finding, Reason
from roundk.analyze.lost_connections import Lost, completion_errors, first_lost, slack_ns
from roundk.analyze.names import Cause, Confidence, Detail, Structure
from roundk.analyze.onpath import Path, Suspicion
from roundk.analyze.phrases import port_text
from roundk.analyze.stacks import Dump
from roundk.analyze.troubles import GPU_CAUSES, LINK_CAUSES, cuda_fault

_ENDINGS: Final = {
    How.EXCEPTION: (Cause.EXCEPTION, Confidence.HIGH),
    How.SIGNAL: (Cause.PROCESS_KILLED, Confidence.HIGH),
    How.EXIT_CODE: (Cause.PROCESS_EXITED, Confidence.HIGH),
    How.CLEAN: (Cause.PROCESS_EXITED, Confidence.MEDIUM),
    # Neither an exception nor an orderly end was seen: os._exit or a signal, and nobody told which.
    How.VANISHED: (Cause.UNDETERMINED, Confidence.NONE),
    How.UNKNOWN: (Cause.UNDETERMINED, Confidence.NONE),
}

_EXITS: Final = ("exit", "elastic_failure", "elastic_failed", "mpirun_exit", "slurm_task_exit")

_FACT_KINDS: Final = {
    How.EXCEPTION: ("exception", *_EXITS),
    How.SIGNAL: _EXITS,
    How.EXIT_CODE: _EXITS,
    How.CLEAN: ("goodbye", "exit"),
    How.VANISHED: ("vanished",),
    How.UNKNOWN: (),
}

UNDETERMINED: Final = Reason(Cause.UNDETERMINED, Confidence.NONE)

_EXPLAINABLE: Final = frozenset(
    {
        Structure.RANK_NOT_ENTERED,
        Structure.DEVICE_STUCK,
        Structure.KERNEL_NOT_STARTED,
        Structure.ALL_ENTERED_NONE_COMPLETED,
        Structure.PARTIAL_COMPLETION,
        Structure.STUCK_IN_INIT,
        Structure.P2P_UNPAIRED,
        Structure.ERROR_REPORTED,
        Structure.SLOW_TRANSFER,
    }
)
"""Structures that a fault of a machine can bring about; none makes code call something else."""

_SYMPTOMS: Final = {
    Cause.PROCESS_KILLED: frozenset({Cause.OOM_KILLED, Cause.GPU_FAULT, Cause.NVLINK_FAULT}),
    Cause.PROCESS_EXITED: frozenset({Cause.OOM_KILLED, Cause.GPU_FAULT, Cause.NVLINK_FAULT}),
    Cause.EXCEPTION: frozenset({Cause.GPU_FAULT, Cause.NVLINK_FAULT}),
}
"""Ways of ending that a fault may lie behind, and which."""

_NOT_ENDED: Final = frozenset({Detail.SILENT, Detail.IDLE, Detail.BUSY})
_SHOWN: Final = 3


def reason(case: Case, rank: int, detail: Detail) -> Reason:
    """Why this rank is where the structure found it.

    Args:
        case: The case.
        rank: A culprit.
        detail: What the structure says of it.
    """
    ending = case.endings.get(rank)
    if ending is None:
        return UNDETERMINED
    if detail is Detail.STOPPED:
        return Reason(Cause.PROCESS_STOPPED, Confidence.HIGH, "its process is stopped", _stopped(case, ending))
    if detail in (Detail.DEAD, Detail.EXITED_EARLY):
        return ended(case, ending)
    return UNDETERMINED


def ended(case: Case, ending: Ending) -> Reason:
    """The end of a process as a cause."""
    cause, confidence = _ENDINGS[ending.how]
    return Reason(cause, confidence, f"it {ending.text}", end_evidence(case, ending))


def end_evidence(case: Case, ending: Ending) -> tuple[Evidence, ...]:
    """What the files say about the end of a rank."""
    if ending.how is How.UNKNOWN:
        return ()
    said = _said(case, ending)
    main = Evidence(f"rank {ending.rank} {ending.text}", _first_source(said, ending), ending.rank, ending.told_ns)
    stack = () if ending.fatal is None else (stack_evidence(ending.fatal, f"{ending.fatal.what.lower()} in"),)
    return (main, *stack, *(fact for fact in said if fact.source != main.source))


def end_source(case: Case, ending: Ending) -> str:
    """The file, with its line where it has one, that tells how a rank ended."""
    return _first_source(_said(case, ending), ending)


def _said(case: Case, ending: Ending) -> tuple[Evidence, ...]:
    said = _facts(case, ending.rank, _FACT_KINDS[ending.how])
    if ending.exit_source == kills.SOURCE:
        said = tuple(e for one in case.troubles if one.rank == ending.rank for e in one.shown[:1]) + said
    return said


def stack_evidence(dump: Dump, when: str) -> Evidence:
    """A stack in one line."""
    return Evidence(f"stack of rank {dump.rank}, {when} {dump.line}", dump.source, dump.rank, dump.time_ns)


def _stopped(case: Case, ending: Ending) -> tuple[Evidence, ...]:
    what = f"rank {ending.rank} was last seen in process state {ending.state} (stopped)"
    said = _facts(case, ending.rank, ("process_state",))
    return (Evidence(what, _first_source(said[::-1], ending), ending.rank, ending.stopped_ns),)


def _first_source(said: tuple[Evidence, ...], ending: Ending) -> str:
    return said[0].source if said else ending.source


def _facts(case: Case, rank: int, kinds: tuple[str, ...]) -> tuple[Evidence, ...]:
    rows = case.trace.facts.filter(pl.col("rank") == rank, pl.col("kind").is_in(list(kinds)))
    return tuple(
        Evidence(f"rank {rank}: {row['text']}", row["source"], rank, row["time_ns"])
        for row in rows.iter_rows(named=True)
    )


def explained(case: Case, finding: Finding) -> Finding:
    """A finding with the cause that facts on its path show, where they show a better one than it has.

    Args:
        case: The case.
        finding: As a structure gave it; its cause may come of how its ranks ended.

    Returns:
        The finding itself where nothing explains it; else with cause, evidence, hosts, links and next steps.
    """
    known = Cause.UNDETERMINED if finding.reason is None else finding.reason.cause
    if finding.structure not in _EXPLAINABLE or (known is not Cause.UNDETERMINED and known not in _SYMPTOMS):
        return finding
    if finding.structure is Structure.ERROR_REPORTED and not finding.culprits:
        return finding
    path = onpath.path_of(case, finding)
    found = [one for one in onpath.suspicions(case, finding, path) if _is_better(case, finding, known, one)]
    lost = _lost_by(case, path) if known is Cause.UNDETERMINED else None
    if found:
        return _by_fault(case, finding, path, found, lost)
    if lost is not None and _is_of_network(finding):
        return _by_lost(finding, path, lost)
    worded = _by_words(case, finding, known)
    return degraded.explained(case, worded) if known is Cause.UNDETERMINED else worded


def _is_better(case: Case, finding: Finding, known: Cause, one: Suspicion) -> bool:
    """A fault explains an unexplained finding; of a known end it must be what brings such an end about."""
    if known is Cause.UNDETERMINED:
        return True
    if known is Cause.EXCEPTION and not _speaks_of_devices(case, finding):
        return False
    return one.trouble.cause in _SYMPTOMS[known]


def _speaks_of_devices(case: Case, finding: Finding) -> bool:
    """An exception that a broken device can be behind."""
    said = " ".join(_raised(case, rank) for rank in finding.culprits)
    return any(word in said for word in ("cuda", "nccl", "ecc", "gpu", "xid", "acceleratorerror"))


def _raised(case: Case, rank: int) -> str:
    ending = case.endings.get(rank)
    return "" if ending is None else f"{ending.exception_type or ''} {ending.exception_message or ''}".lower()


def _by_words(case: Case, finding: Finding, known: Cause) -> Finding:
    """An exception whose own words tell of broken hardware."""
    says = cuda_fault(" ".join(_raised(case, rank) for rank in finding.culprits)) if known is Cause.EXCEPTION else None
    if says is None or finding.reason is None:
        return finding
    return replace(
        finding,
        reason=replace(finding.reason, cause=says[0], confidence=says[1]),
        next_steps=(
            *steps(*says, ", ".join(_hosts_of(case, finding.culprits)) or "their host", None),
            *finding.next_steps,
        ),
    )


def _hosts_of(case: Case, ranks: tuple[int, ...]) -> list[str]:
    return sorted({host for r in ranks if r in case.endings and (host := case.endings[r].host)})


def _by_fault(case: Case, finding: Finding, path: Path, found: list[Suspicion], lost: Lost | None) -> Finding:
    """The first fault in time is the cause; one on another host at the same time leaves open which."""
    first = min(found, key=lambda one: (one.trouble.time_ns is None, one.trouble.time_ns or 0, _level(one)))
    trouble, slack = first.trouble, slack_ns(case.trace)
    rivals = [
        one
        for one in found
        if one.trouble.host != trouble.host
        and not path.is_culprits
        and (trouble.time_ns is None or one.trouble.time_ns is None or one.trouble.time_ns - trouble.time_ns < slack)
    ]
    sure, against = first.sure, list(first.against)
    is_link, host = trouble.cause in LINK_CAUSES, trouble.host
    confirming = [f for f in (lost.close if lost else ()) if lost is not None and lost.suspect == host]
    if is_link and lost is not None and lost.suspect not in (None, host):
        against.append(f"completion errors name {lost.suspect}, not {host}")
        sure = onpath.lowered(sure)
    elif is_link and confirming and sure is not Confidence.HIGH and not trouble.is_counted:
        sure = onpath.LEVELS[onpath.LEVELS.index(sure) - 1]
    if rivals:
        names = ", ".join(sorted({str(one.trouble.host) for one in rivals})[:_SHOWN])
        against.append(f"{names} reported a fault at the same time: which was first is not told")
        sure = Confidence.LOW
    shown = (*trouble.shown, *(e for one in rivals[:_SHOWN] for e in one.trouble.shown[:1]))
    confirmed = tuple(fact.evidence for fact in confirming[:_SHOWN] if is_link)
    because = trouble.what if not rivals else f"{trouble.what}, and other hosts reported a fault too"
    if sure is Confidence.LOW:
        because = f"possibly because {because}"
    # A host is not to be drained for what may be chance.
    alone = not rivals and not path.is_culprits and sure is not Confidence.LOW
    names_rank = alone and not is_link and trouble.rank is not None
    # The kernel's line about its process is exit information.
    is_dead = path.is_culprits and trouble.cause is Cause.OOM_KILLED and trouble.rank is not None
    end = trouble.device if trouble.port is None else port_text(trouble.device or "a device", trouble.port)
    return replace(
        finding,
        detail=Detail.DEAD if is_dead and finding.detail in _NOT_ENDED else finding.detail,
        summary=_with_cause(finding, because, is_dead=is_dead),
        culprits=(trouble.rank,) if names_rank and trouble.rank is not None else finding.culprits,
        hosts=(*finding.hosts, host) if host and alone else finding.hosts,
        victim_hosts=tuple(sorted({*finding.victim_hosts, *(lost.victims if confirming and lost else ())})),
        links=((host, trouble.device, trouble.port),)
        if is_link and host and trouble.device and alone
        else finding.links,
        reason=Reason(trouble.cause, sure, because, (*shown, *confirmed), tuple(against)),
        evidence=(*finding.evidence, *shown, *confirmed),
        next_steps=(
            *(_shared_steps(rivals) if is_link and rivals else steps(trouble.cause, sure, host or trouble.what, end)),
            # What became of it is told now.
            *(() if is_dead and finding.detail in _NOT_ENDED else finding.next_steps),
        ),
    )


def _level(one: Suspicion) -> int:
    return onpath.LEVELS.index(one.sure)


def _with_cause(finding: Finding, because: str, *, is_dead: bool = False) -> str:
    said = finding.summary.rstrip(".")
    if is_dead:  # what was taken for alive or silent and was killed by the kernel is told as killed
        said = said.replace(" it was alive and in no call;", "").replace(" it gave no sign of life;", "")
    return f"{said}; {because.rstrip('.')}."


def _lost_by(case: Case, path: Path) -> Lost | None:
    """The first connection that a host of the path lost, or that was lost to one of them."""
    errors = completion_errors(case.trace)
    if path.onset_ns is not None:
        errors = [f for f in errors if f.time_ns is None or f.time_ns >= path.onset_ns - onpath.BEFORE_NS]
    lost = first_lost(errors, slack_ns(case.trace))
    if lost is None:
        return None
    if path.is_culprits:
        return lost if lost.suspect in path.hosts else None
    ranks = {fact.rank for fact in lost.close}
    hosts = {fact.host for fact in lost.close} | {lost.suspect}
    return lost if ranks & path.ranks or hosts & path.hosts else None


def _is_of_network(finding: Finding) -> bool:
    """A lost connection does not keep a living rank from coming."""
    return finding.detail not in (Detail.IDLE, Detail.BUSY, Detail.STOPPED, Detail.EXITED_EARLY)


def _by_lost(finding: Finding, path: Path, lost: Lost) -> Finding:
    """Whoever prints a completion error is the victim; the peer that it names the suspect."""
    who = lost.first.where or "a process"
    whom = lost.suspect or ", ".join(lost.named[:_SHOWN]) or "a peer"
    because = f"{who} lost its connection to {whom} (status {lost.first.number_of('status')})"
    against = ("only the victims' side is heard",) if lost.suspect else ("several peers are named",)
    shown = tuple(fact.evidence for fact in lost.close[:_SHOWN])
    return replace(
        finding,
        summary=_with_cause(finding, because),
        hosts=finding.hosts if path.is_culprits or lost.suspect is None else (*finding.hosts, lost.suspect),
        victim_hosts=tuple(sorted({*finding.victim_hosts, *lost.victims})),
        reason=Reason(
            Cause.TRANSPORT_ERROR, Confidence.MEDIUM if lost.suspect else Confidence.LOW, because, shown, against
        ),
        evidence=(*finding.evidence, *shown),
        next_steps=(
            f"look at the links of {whom}, then at those between it and {who}: port errors, link_downed",
            *finding.next_steps,
        ),
    )


def _shared_steps(rivals: list[Suspicion]) -> tuple[str, ...]:
    names = ", ".join(sorted({str(one.trouble.host) for one in rivals})[:_SHOWN])
    return (f"ports of several hosts went down together, {names} among them: look first at the switch that they share",)


def steps(cause: Cause, sure: Confidence, where: str, device: str | None) -> tuple[str, ...]:
    """What to do about a fault of a machine; nobody is advised to drain a host on `low`."""
    if cause in GPU_CAUSES:
        part = "its NVLinks and NVSwitches" if cause is Cause.NVLINK_FAULT else "the GPUs"
        first = "" if sure is Confidence.LOW else f"keep {where} out of the next run; "
        return (f"{first}check {part} of {where}: Xid lines of its kernel, nvidia-smi -q, nvidia-smi nvlink -e, DCGM",)
    if cause is Cause.OOM_KILLED:
        return (
            f"compare the memory of the processes on {where} with the limit of their cgroup: raise it, or use less",
        )
    if cause in LINK_CAUSES:
        port = f", {device}" if device else ""
        return (f"look at the cable, the transceiver and the switch port of {where}{port}",)
    return ()
