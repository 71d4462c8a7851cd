"""From a finding to a verdict: how sure, who is held up, and what was not looked at."""

from __future__ import annotations

from typing import Final

import polars as pl

from roundk.analyze.case import Case
from roundk.analyze.finding import Finding
from roundk.analyze.lost_connections import completion_errors
from roundk.analyze.names import Cause, Confidence, Detail, Structure
from roundk.analyze.phrases import ranks_text
from roundk.analyze.troubles import GPU_CAUSES, LINK_CAUSES
from roundk.analyze.verdict import UNSAID, Coverage, GroupRef, Link, Verdict, Victims
from roundk.analyze.waitfor import UNTOLD_OP

_LEVELS: Final = (Confidence.HIGH, Confidence.MEDIUM, Confidence.LOW)
_OPEN_ROUND: Final = frozenset(
    {Structure.ALL_ENTERED_NONE_COMPLETED, Structure.PARTIAL_COMPLETION, Structure.STUCK_IN_INIT}
)
_QUIET: Final = frozenset({Structure.HEALTHY, Structure.IN_PROGRESS})
_OF_GPUS: Final = ("xid", "sxid")


def verdict(case: Case, finding: Finding) -> Verdict:
    """The verdict that a finding amounts to."""
    quiet = finding.structure in _QUIET
    reason = finding.reason
    doubts = () if quiet else (*finding.doubts, *(() if reason is None else reason.against))
    contradictions = (*finding.contradictions, *doubts)
    sure = _confidence(finding)
    cause_sure = Confidence.NONE if reason is None else reason.confidence
    if cause_sure is not Confidence.NONE and _LEVELS.index(cause_sure) < _LEVELS.index(sure):
        cause_sure = sure  # No cause is surer than the place it explains.
    if not finding.culprits and (finding.hosts or finding.links) and cause_sure is not Confidence.NONE:
        sure = cause_sure  # Of the members of a round nobody is blamed but by the cause.
    return Verdict(
        structure=finding.structure,
        detail=finding.detail,
        structure_confidence=sure,
        cause=None if quiet else (reason.cause if reason is not None else Cause.UNDETERMINED),
        cause_confidence=cause_sure,
        culprit_ranks=finding.culprits,
        culprit_hosts=tuple(sorted({*_hosts(case, finding.culprits), *finding.hosts})),
        culprit_links=tuple(Link(*link) for link in finding.links),
        group=_group(case, finding.group),
        seq=finding.seq,
        op=None if finding.op == UNTOLD_OP else finding.op,
        onset_ns=finding.onset_ns,
        waiting_ranks=finding.waiting,
        victims=Victims(
            len(finding.victim_ranks),
            len(finding.victim_groups),
            tuple(sorted({*_hosts(case, finding.victim_ranks), *finding.victim_hosts})),
        ),
        summary=finding.summary,
        occurrences=finding.occurrences,
        evidence=finding.evidence,
        contradictions=contradictions,
        not_checked=(*case.trace.notes, *finding.not_checked, *(() if quiet else _not_checked(case, finding))),
        next_steps=finding.next_steps,
    )


def coverage(case: Case) -> Coverage:
    """What the analysis had before it."""
    by_data = {row["data"]: row["rank"] for row in case.trace.ranks.group_by("data").agg("rank").iter_rows(named=True)}
    seen = [rank for data in ("present", "truncated") for rank in by_data.get(data, [])]
    return Coverage(
        world_size=case.trace.world_size,
        ranks_seen=len(seen),
        ranks_missing=tuple(sorted(by_data.get("missing", []))),
        ranks_empty=tuple(sorted(by_data.get("empty", []))),
        truncated=tuple(sorted({*case.trace.truncated, *by_data.get("truncated", [])})),
        unreadable=case.trace.unreadable,
        clock_error_ns=case.trace.clock_error_ns,
        sources=dict(case.trace.sources),
    )


def _confidence(finding: Finding) -> Confidence:
    if finding.structure in UNSAID:
        return Confidence.LOW
    return _LEVELS[min(len(finding.doubts) + len(finding.contradictions), len(_LEVELS) - 1)]


def _hosts(case: Case, ranks: tuple[int, ...]) -> tuple[str, ...]:
    hosts = {case.endings[rank].host for rank in ranks if rank in case.endings}
    return tuple(sorted(host for host in hosts if host))


def _group(case: Case, key: int | None) -> GroupRef | None:
    if key is None or key not in case.groups:
        return None
    group = case.groups[key]
    return GroupRef(group.name, group.desc, len(group.ranks))


def _without_stack(case: Case, finding: Finding) -> str:
    """Whose stack would have told more, in words; empty where none is missed."""
    if finding.detail in (Detail.IDLE, Detail.SILENT):
        return ranks_text(finding.culprits) if finding.culprits else "those that did not come"
    nobody = not finding.culprits and finding.structure in _OPEN_ROUND
    return "the ranks" if nobody and case.trace.stacks.is_empty() else ""


def _network(case: Case) -> str:
    """What is not known of the network, whatever is."""
    if not case.trace.counters.is_empty():
        return "That a counter did not move clears neither the fabric nor NVLink: switches are not seen from hosts."
    if any(one.cause in LINK_CAUSES for one in case.troubles) or completion_errors(case.trace):
        return "Of the network only what the logs tell was looked at: this run has no link counters."
    return "The network was not looked at: this run has no link counters."


def _gpus(case: Case) -> str:
    """What is not known of the GPUs; empty where their counters were read."""
    if "gpu" in case.trace.counters["kind"]:
        return ""
    if any(one.cause in GPU_CAUSES for one in case.troubles) or case.trace.facts["kind"].is_in(_OF_GPUS).any():
        return "Of the GPUs only what the logs tell was looked at."
    return "Whether the GPUs worked was not looked at."


def _not_checked(case: Case, finding: Finding) -> list[str]:
    missed = [_network(case)]
    unseen = _without_stack(case, finding)
    if unseen:
        missed.append(f"What {unseen} did outside of calls is not known: no Python stack was taken there and then.")
    if any("nccl" in group.backend for group in case.groups.values()) and (unread := _gpus(case)):
        missed.append(unread)
    hosts = case.trace.ranks.filter(pl.col("host").is_not_null())["host"].n_unique()
    if hosts > 1 and case.trace.clock_error_ns is None:
        missed.append(f"The clocks of the {hosts} hosts were not compared: times across hosts may be off.")
    return missed
