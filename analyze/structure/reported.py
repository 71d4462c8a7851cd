"""No call to line up: which error was reported first, by whom, and about whom?

A completion error of NCCL's transport is printed by the victim; the peer that it names is the suspect. What a flush, a
closed connection or a watchdog prints is an echo of what happened before. A link that reports itself down, a GPU that
reports an Xid and a process that the kernel kills say so where they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from roundk.analyze import cause
from roundk.analyze.case import Case
from roundk.analyze.finding import Evidence, Finding, Reason
from roundk.analyze.lost_connections import Lost, completion_errors, first_lost, peer_host, slack_ns
from roundk.analyze.names import Cause, Confidence, Structure
from roundk.analyze.onpath import lowered
from roundk.analyze.phrases import NS_PER_MS, capital, duration
from roundk.analyze.structure import first_error, rendezvous, settings, stated
from roundk.analyze.told import Told, told
from roundk.analyze.troubles import GPU_CAUSES, LINK_CAUSES, Trouble

_WAITS: Final = ("gloo_timeout", "collective_timeout", "gloo_connect_timeout", "tc_timeout", "monitored_barrier_error")
_ECHOES: Final = (*first_error.ECHO_KINDS, "watchdog_abort")
_FAMILIES: Final = (LINK_CAUSES, GPU_CAUSES, frozenset({Cause.OOM_KILLED}), frozenset({Cause.PROCESS_KILLED}))
"""Kinds of faults; where no times tell, a link comes before what else breaks when it does."""
_SHOWN: Final = 3

_First = tuple[int | None, Finding]


def reported(case: Case) -> list[Finding]:
    """What the facts alone name: a setting, the first local error in time, or who waited."""
    if mislaunched := settings.mislaunched(case):
        return mislaunched
    candidates = [*_errors(case), *((finding.onset_ns, finding) for finding in settings.refused(case))]
    if candidates:
        first = min(candidates, key=lambda pair: (pair[0] is None, pair[0] or 0))
        return [] if _raised_before(case, *first) else [first[1]]
    setting = settings.inferred(case)
    if setting and not settings.is_slow(setting[0]):
        return setting
    if first_error.own_errors(case):
        return []  # it tells more than all who waited or lost a connection
    found = stated.stated(case) or rendezvous.stuck(case) or _waited(case)
    return setting or ([] if found is None else [found])


def instead(case: Case, findings: list[Finding]) -> list[Finding]:
    """The findings of the rounds or, where these say nothing, what the facts tell all the same.

    Args:
        case: The case.
        findings: As the rounds gave them.
    """
    if findings[0].structure is not Structure.INSUFFICIENT_EVIDENCE or not case.trace.is_post_mortem:
        return findings
    told_here = [f for f in reported(case) if f.structure is not Structure.INSUFFICIENT_EVIDENCE]
    return told_here or findings


def _errors(case: Case) -> list[_First]:
    """The first error of each kind, in this order: who says so of itself, before what its peers say of it."""
    every, slack = case.troubles, slack_ns(case.trace)
    lost = first_lost(completion_errors(case.trace), slack)
    found: list[_First] = []
    for family in _FAMILIES:
        alike = [one for one in every if one.cause in family]
        # What a device says of itself tells more than the error that CUDA makes of it on some rank.
        hard = [one for one in alike if one.sure is not Confidence.LOW]
        if family is LINK_CAUSES and alike:
            found.append(_link(alike, lost, slack))
            if lost is not None and lost.suspect in (None, alike[0].host):
                lost = None  # the link explains it, whichever line came out first
        elif alike:
            found.append(_local(hard or alike, slack))
    return [*found, *([] if lost is None else [_lost(lost)])]


def _raised_before(case: Case, at_ns: int | None, finding: Finding) -> bool:
    """A rank had raised an error of its own before that: its end tells more.

    A lost connection is what its peers see of such an end, so without times too the error comes first.
    """
    slack = slack_ns(case.trace)
    is_lost = finding.reason is not None and finding.reason.cause is Cause.TRANSPORT_ERROR
    for end in first_error.own_errors(case):
        if at_ns is None or end.at_ns is None:
            if is_lost:
                return True
        elif end.at_ns < at_ns + (slack if is_lost else -slack):
            return True
    return False


def _close(one: Trouble, first: Trouble, slack: int) -> bool:
    """Too close to the first for the order of two hosts' clocks to count."""
    return one.time_ns is None or first.time_ns is None or one.time_ns - first.time_ns < slack


def _link(links: Sequence[Trouble], lost: Lost | None, slack: int) -> _First:
    """A link that reported itself down; a flap where it came back."""
    first = links[0]
    if lost is not None:  # the victims' word decides between ports that went down together
        first = next((one for one in links if one.host == lost.suspect and _close(one, first, slack)), first)
    rivals = sorted({one.host for one in links if one.host and one.host != first.host and _close(one, first, slack)})
    later = sorted({one.host for one in links if one.host} - {first.host, *rivals})
    errors = [f for f in (lost.close if lost else ()) if f.host != first.host]
    naming = [f for f in errors if peer_host(f) == first.host and first.host is not None]
    clear = not rivals or bool(naming)
    doubts = [f"{host} reported a port down too" for host in (*rivals, *later)[:_SHOWN]]
    victims = sorted({f.host for f in errors if f.host} - set(rivals))
    echo = f"; {', '.join(victims)} reported the lost connection" if victims else ""
    sure = Confidence.HIGH if naming and not first.is_counted else lowered(first.sure)
    together = "" if clear else f", and so did one of {', '.join(rivals[:_SHOWN])}: which was first is not told"
    finding = Finding(
        structure=Structure.ERROR_REPORTED,
        summary=f"{capital(first.what)}{together}{echo}; no round tells more.",
        culprits=(first.rank,) if first.rank is not None and clear else (),
        hosts=(first.host,) if first.host and clear else (),
        victim_hosts=tuple(victims),
        links=((first.host, first.device, first.port),) if first.host and first.device and clear else (),
        onset_ns=first.time_ns,
        reason=Reason(first.cause, sure, "", first.shown),
        doubts=tuple(doubts),
        evidence=(*first.shown, *(e for one in links[1:_SHOWN] for e in one.shown[:1]), *_evidence(naming[:1])),
        next_steps=(
            f"look at cable, transceiver and switch port of {first.host or f'the host of rank {first.rank}'}"
            + (f", {first.device}" if first.device else ""),
            "compare link_downed of its ports with those of its peers: /sys/class/infiniband/*/ports/*/counters",
        ),
    )
    return first.time_ns, finding


def _local(alike: Sequence[Trouble], slack: int) -> _First:
    """What a rank or host says of itself; the first of several alike, where their order is told."""
    first = alike[0]
    places = {(one.host, one.rank) for one in alike if _close(one, first, slack)}
    others = [one for one in alike[1:] if one.host != first.host and _close(one, first, slack)]
    doubts = ["no round shows who waited for whom"]
    if others:
        doubts.append(f"{others[0].what}, and which was first is not told")
    clear = not others or len({host for host, _ in places}) == 1
    finding = Finding(
        structure=Structure.ERROR_REPORTED,
        summary=f"{capital(first.what).rstrip('.')}; "
        + ("no earlier error is told." if clear else f"so did {others[0].host or 'another host'} at the same time."),
        culprits=(first.rank,) if first.rank is not None and clear else (),
        hosts=(first.host,) if first.host and clear else (),
        onset_ns=first.time_ns,
        reason=Reason(first.cause, first.sure, "", first.shown),
        doubts=tuple(doubts),
        evidence=tuple(e for one in alike[:_SHOWN] for e in one.shown),
        next_steps=_steps(first),
    )
    return first.time_ns, finding


def _steps(first: Trouble) -> tuple[str, ...]:
    if first.sure is Confidence.LOW:
        return ("look at the kernel logs of all hosts for Xid lines",)
    return cause.steps(first.cause, first.sure, first.host or "that host", first.device)


def _lost(lost: Lost) -> _First:
    """The first transport error that is no flush: its printer is the victim, the peer that it names the suspect."""
    first, suspect = lost.first, lost.suspect
    whom = suspect or ", ".join(lost.named[:_SHOWN]) or "a peer"
    finding = Finding(
        structure=Structure.ERROR_REPORTED,
        summary=f"{first.where or 'A process'} lost the connection to {whom} (completion status "
        f"{first.number_of('status')}); nothing else here says whose link it was.",
        hosts=(suspect,) if suspect else (),
        victim_hosts=lost.victims,
        onset_ns=first.time_ns,
        reason=Reason(Cause.TRANSPORT_ERROR, Confidence.MEDIUM, "", _evidence([first])),
        doubts=("only the victims' side is heard", *(() if suspect else (_unnamed(lost),))),
        evidence=_evidence(lost.close[: _SHOWN + 1]),
        next_steps=(f"look at the links of {whom}, then at those between the two",),
    )
    return first.time_ns, finding


def _unnamed(lost: Lost) -> str:
    if not lost.named:
        return "no peer is named"
    if len(lost.named) > 1:
        return "several peers are named"
    return f"of which host {lost.named[0]} is an address is not told"


def _waited(case: Case) -> Finding | None:
    """Somebody waited and gave up, and nothing says for whom."""
    waits = told(case.trace, _WAITS)
    if not waits:
        return None
    first = next((f for f in waits if f.time_ns is not None), waits[0])
    waited_ms = first.number_of("ran_for_ms") or first.number_of("timeout_ms")
    long = f" for {duration(waited_ms * NS_PER_MS)}" if waited_ms else ""
    onset = None if first.time_ns is None or not waited_ms else first.time_ns - round(waited_ms * NS_PER_MS)
    echoes = told(case.trace, _ECHOES)
    after = f" What {_who(echoes[0])} reported ({echoes[0].text}) may be an echo of that." if echoes else ""
    return Finding(
        structure=Structure.INSUFFICIENT_EVIDENCE,
        summary=f"{capital(_who(first))} was the first to give up: it waited{long} and nothing says for whom.{after}",
        waiting=tuple(sorted({f.rank for f in waits if f.rank is not None})),
        victim_hosts=tuple(sorted({f.host for f in waits if f.host})),
        onset_ns=onset,
        reason=cause.UNDETERMINED,
        evidence=_evidence([*waits[:_SHOWN], *echoes[:1]]),
        next_steps=(
            "next time: put `roundk run --` in front of the command, or set TORCH_NCCL_TRACE_BUFFER_SIZE=2000",
            "name the logs of all ranks here: the one that never waited is the one to look at",
        ),
    )


def _who(fact: Told) -> str:
    local = fact.fields.get("local_rank")
    where = f" on {fact.host}" if fact.host else ""
    if fact.rank is not None:
        return f"rank {fact.rank}{where}"
    return f"local rank {local}{where}" if local is not None else fact.host or "a process"


def _evidence(facts: Sequence[Told]) -> tuple[Evidence, ...]:
    return tuple(fact.evidence for fact in facts)
