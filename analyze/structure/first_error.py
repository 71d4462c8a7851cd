"""No round tells more: of the errors that ranks ended with, which is the first that is nobody's echo?

An error of a rank's own (out of memory, a wrong value, a missing file) comes before all that its peers print when it is
gone, whatever stands first in the file. Where all that is told is of lost connections, nobody who tells it is to blame.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Final

import polars as pl

from roundk.analyze import cause, echoes
from roundk.analyze.case import Case
from roundk.analyze.endings import Ending, How
from roundk.analyze.finding import Evidence, Finding, Reason
from roundk.analyze.names import Cause, Confidence, Structure
from roundk.analyze.phrases import NS_PER_S, capital, number_of, ranks_text, verb
from roundk.analyze.structure import blame
from roundk.analyze.structure.last_seen import last_call
from roundk.analyze.told import Told, told

TOGETHER_NS: Final = NS_PER_S
"""Errors within a second of each other may have come in either order."""

ECHO_KINDS: Final = (
    "net_closed",
    "gloo_closed",
    "gloo_io_error",
    "gloo_pair_closed",
    "net_socket_error",
    "store_error",
)
"""Facts of logs that tell of a connection which the other side ended."""

_SHOWN: Final = 3
COLLECT: Final = (
    "name the logs of all ranks and hosts here: the one with an error of its own, or that ends early, is where to look",
    "look for oom-kill and Xid lines in the kernel logs of the hosts (dmesg), for ended tasks in the scheduler's",
    "next time: put `roundk run --` in front of the command, or set TORCH_NCCL_TRACE_BUFFER_SIZE=2000",
)


def own_errors(case: Case) -> list[Ending]:
    """Ranks that raised an error which no peer's end brings about."""
    return [
        e
        for e in case.endings.values()
        if e.how is How.EXCEPTION and not e.from_outside and not _is_echo(case, e) and not _is_unsure(e)
    ]


def finding(case: Case, errors: list[Ending]) -> Finding:
    """The first error of a rank's own, or what the echoes of it say.

    Args:
        case: The case.
        errors: Ends that nobody brought about from outside; one at least.
    """
    own = [e for e in errors if not _is_echo(case, e)]
    # What came before all that it could be an echo of is none.
    began = min((at for e in own if (at := _at(e)) is not None), default=None)
    if own and began is not None and all(_is_bare(e) for e in own):
        own += [e for e in errors if e not in own and _is_bare(e) and (at := _at(e)) is not None and at < began]
    return _own(case, own, errors) if own else _only_echoes(case, errors)


def closed_connections(case: Case) -> list[Told]:
    """What the logs tell of connections that the other side ended, by time."""
    return told(case.trace, ECHO_KINDS)


def _is_echo(case: Case, ending: Ending) -> bool:
    if ending.rank in case.failed_ranks:
        return True
    if ending.how is How.EXCEPTION:
        return echoes.is_echo(ending.exception_type, ending.exception_message)
    return blame.may_be_echo(case, ending)


def _is_unsure(ending: Ending) -> bool:
    """NCCL's own words for it leave open whether the host or a peer is at fault; or nothing but a code is told."""
    if ending.how is How.EXCEPTION:
        return echoes.may_be_echo(ending.exception_type, ending.exception_message)
    return ending.how is How.EXIT_CODE


def _own(case: Case, own: list[Ending], errors: list[Ending]) -> Finding:
    first = _first(case, own)
    alike = [e for e in own if e is first or _is_same(e, first)]
    others = [e for e in own if e not in alike]
    rivals = [e for e in others if _is_rival(e, first)]
    heard = [e for e in errors if e not in own]
    ranks = tuple(sorted(e.rank for e in alike))
    why = cause.ended(case, first)
    return Finding(
        structure=Structure.ERROR_REPORTED,
        summary=_undecided(alike, rivals) if rivals else _summary(case, first, ranks, heard),
        culprits=() if rivals else ranks,
        sides=tuple(sorted({*ranks, *(e.rank for e in rivals)})) if rivals else (),
        victim_ranks=tuple(sorted(e.rank for e in heard)),
        onset_ns=first.at_ns,
        reason=why,
        doubts=("no round shows who waited for whom", *_doubts(first, others)),
        evidence=(
            *why.evidence,
            *(e for one in others[:_SHOWN] for e in cause.end_evidence(case, one)[:1]),
            *_told_of(case, heard[:_SHOWN], " (an echo)"),
            *(() if case.calls.is_empty() else (last_call(case, first.rank),)),
        ),
        next_steps=tuple(step for one in (first, *rivals[:_SHOWN]) for step in _steps(one)),
    )


def _first(case: Case, own: Sequence[Ending]) -> Ending:
    """The first in time; where times are missing, what is surely a rank's own before what need not be."""
    if all(_at(e) is not None for e in own):
        seen = {fact.rank for fact in told(case.trace, ("elastic_failure",)) if fact.fields.get("is_first_observed")}
        return min(own, key=lambda e: (_at(e) or 0, e.rank not in seen, e.rank))
    return min(own, key=lambda e: (_is_unsure(e), _at(e) is None, _at(e) or 0, _place(e)))


def _at(ending: Ending) -> int | None:
    return ending.at_ns if ending.at_ns is not None else ending.seen_ns


def _place(ending: Ending) -> tuple[str, int, int]:
    file, _, line = ending.source.rpartition(":")
    return file, int(line) if line.isdecimal() else 0, ending.rank


def _is_same(one: Ending, first: Ending) -> bool:
    """Ranks that fail alike, at one place in the code and at one time, fail for one reason."""
    if one.how is not How.EXCEPTION or first.how is not How.EXCEPTION or first.exception_site is None:
        return False
    same = (one.exception_type, one.exception_site) == (first.exception_type, first.exception_site)
    return same and _is_close(one, first)


def _is_close(one: Ending, first: Ending) -> bool:
    at, began = _at(one), _at(first)
    return at is None or began is None or at - began <= TOGETHER_NS


def _is_bare(ending: Ending) -> bool:
    """Nothing but a code is told of its end."""
    return ending.how is How.EXIT_CODE


def _is_rival(one: Ending, first: Ending) -> bool:
    """Both raised something of their own, and without times nothing tells which came of the other."""
    if _is_bare(one) and _is_bare(first):
        return _is_close(one, first) and _at(one) != _at(first)
    untimed = _at(one) is None or _at(first) is None
    return untimed and one.how is How.EXCEPTION and first.how is How.EXCEPTION and not _is_unsure(one)


def _undecided(alike: list[Ending], rivals: list[Ending]) -> str:
    first = alike[0]
    more = len(rivals) - _SHOWN
    said = [f"rank {e.rank} {e.text}" for e in (first, *rivals[:_SHOWN])]
    tail = f" and {number_of(more, 'more rank')} something else" if more > 0 else ""
    return f"{capital('; '.join(said))}{tail}: which of these errors came first is not told."


def _doubts(first: Ending, others: list[Ending]) -> tuple[str, ...]:
    """Other errors so close to the first that their order may be chance, and what the error itself leaves open."""
    doubts = []
    timed = [e.rank for e in others if _at(e) is not None and _at(first) is not None and _is_close(e, first)]
    untimed = [e.rank for e in others if _at(e) is None or _at(first) is None]
    if timed:
        doubts.append(f"{ranks_text(timed)} ended within a second of it")
    if untimed:
        doubts.append(f"{ranks_text(untimed)} had an error of {verb(untimed, 'its', 'their')} own too, without a time")
    if first.how is How.EXCEPTION and _is_unsure(first):
        doubts.append("NCCL says the same where a peer closes the connection")
    return tuple(doubts)


def _summary(case: Case, first: Ending, ranks: tuple[int, ...], heard: list[Ending]) -> str:
    alone = len(ranks) == 1
    who = f"rank {first.rank}: it" if alone else f"{ranks_text(ranks)}: each"
    lead = "The first error is that of" if alone else "The first errors are those of"
    if not case.calls.is_empty():
        waiting = set(case.blocked["rank"].to_list())
        outside = first.rank not in waiting and not _is_blind(case, first.rank)
        return f"{lead} {who} {first.text}{', outside any call' if outside else ''}; no round tells more."
    after = sorted(e.rank for e in heard)
    echo = f" What {ranks_text(after)} reported came of that, or of another peer's end." if after else ""
    return f"{lead} {who} {first.text}.{echo}"


def _is_blind(case: Case, rank: int) -> bool:
    """The recording of a rank stops before its end, in some group."""
    return not case.frontier.filter(pl.col("rank") == rank, ~pl.col("sure")).is_empty()


def _steps(first: Ending) -> tuple[str, ...]:
    said = f"{first.exception_type} {first.exception_message}".lower()
    if "out of memory" in said and first.how is How.EXCEPTION:
        return (
            f"lower what rank {first.rank} keeps on its GPU: batch, sequence length, activation checkpointing",
            f"compare rank {first.rank} with its peers: nvidia-smi shows whether another process has memory there",
        )
    if first.how is How.EXCEPTION and first.exception_site:
        file, _, line = first.exception_site.rpartition(":")
        where = f"{pathlib.PurePath(file).name}:{line}"
        log = f" in {first.source}" if first.source else ""
        return (f"look at {where}: the whole traceback of rank {first.rank} stands{log or ' in its log'}",)
    return (f"read the log of rank {first.rank} around its end",)


def _only_echoes(case: Case, errors: list[Ending]) -> Finding:
    """Everybody who says something lost a peer: none of them is where it began."""
    first = _first(case, errors)
    ranks = sorted(e.rank for e in errors)
    closed = closed_connections(case)
    peers = list(dict.fromkeys(peer for fact in closed if (peer := peer_of(fact)) is not None))
    whom = f" {', '.join(peers[:_SHOWN])} closed a connection before that." if peers else ""
    others = f", and so did {number_of(len(ranks) - 1, 'other rank')}" if len(ranks) > 1 else ""
    ask = (f"read the logs of {', '.join(peers[:_SHOWN])} first: the process there closed the connection",)
    return Finding(
        structure=Structure.ERROR_REPORTED,
        summary=f"Rank {first.rank} {first.text}{others}: an echo, of a peer that is gone or did not come.{whom} "
        "Nothing here says what came first.",
        victim_ranks=tuple(ranks),
        onset_ns=first.at_ns,
        reason=Reason(Cause.UNDETERMINED, Confidence.NONE),
        doubts=("no round shows who waited for whom", "only those who lost a peer are heard"),
        evidence=(
            *_told_of(case, errors[:_SHOWN], ""),
            *(fact.evidence for fact in closed[:_SHOWN]),
            *(() if case.calls.is_empty() else (last_call(case, first.rank),)),
        ),
        next_steps=(*(ask if peers else ()), *COLLECT),
    )


def peer_of(fact: Told) -> str | None:
    """The peer that a closed connection led to: its host where that is known, else its address."""
    return fact.text_of("peer_host") or fact.text_of("peer")


def _told_of(case: Case, ends: Sequence[Ending], remark: str) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(f"{capital(f'rank {e.rank} {e.text}')}{remark}", cause.end_source(case, e), e.rank, e.told_ns)
        for e in ends
    )
