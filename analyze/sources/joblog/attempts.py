"""Attempts of a job in one set of logs: a launcher that starts the ranks again goes on in the same files.

What an earlier attempt said is no evidence of the last one: its counters are those of other processes. An attempt
began between two lines of a rank where the first is of a process that has ended: the counter of calls went back in a
group, a call that timed out was made after the rank had timed out before, the process id is another one; or where
torchrun's agent says that it starts the workers again. Where exactly, the longest silence between the two tells.

What hosts say of themselves stays: a port that went down in the first attempt may be down in the second.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final

from roundk.analyze.phrases import NS_PER_MS, NS_PER_S
from roundk.analyze.sources.inputs import Input
from roundk.analyze.sources.joblog.book import HOST_WIDE, Fact

RESTART: Final = "elastic_restart"
_LASTING: Final = HOST_WIDE | {
    "xid",
    "sxid",
    "link_down",
    "link_up",
    "port_module",
    "nic_error",
    "pcie_error",
    "net_async_event",
    "net_gid_changed",
    "slurm_node_failure",
    "nccl_duplicate_gpu",
    "nccl_version_mismatch",
    "nccl_no_interface",
}
"""Facts of hosts and settings, which outlive a process."""
_STATUS: Final = frozenset({"watchdog_status", "dump_signal"})
_ATTEMPT: Final = re.compile(r"^(?P<of>.*?)(?:^|[/!])attempt_(?P<number>\d{1,6})[/!]")

Told = Sequence[tuple[Fact, int | None]]
"""Facts, each with the rank that it is about."""


@dataclass(frozen=True)
class Last:
    """The last attempt.

    Attributes:
        begin_ns: It had not begun before this time.
        lines: Of each file the last line that is of an earlier attempt.
    """

    begin_ns: int
    lines: dict[int, int]

    @property
    def note(self) -> str:
        """What the reader has to know."""
        at = datetime.fromtimestamp(self.begin_ns // NS_PER_S, tz=UTC).strftime("%Y-%m-%d %H:%M:%S")
        return f"logs: the ranks were started again; what processes said before {at} is of an earlier attempt, left out"

    def kept(self, fact: Fact) -> bool:
        """Whether a fact is of this attempt, or of none; the first such line of several equal ones is then the last."""
        if fact.event.kind in _LASTING:
            return True
        latest = fact.last_ns if fact.last_ns is not None else fact.time_ns
        if latest is None:
            is_later = (fact.last_line or fact.line) > self.lines.get(fact.origin.file, 0)
        else:
            is_later = latest >= self.begin_ns
        if is_later and (fact.time_ns is not None and fact.time_ns < self.begin_ns):
            fact.time_ns, fact.last_ns, fact.count = latest, None, 1
            fact.line = fact.last_line or fact.line
        return is_later


def last(told: Told) -> Last | None:
    """The last attempt; None where nothing shows that there are several.

    Args:
        told: The facts of all logs.
    """
    gaps = [*_restarted(told)]
    if not gaps:
        return None
    ended = max(before for before, _ in gaps)
    begun = min(after for _, after in gaps if after > ended)
    begun = min([begun, *(at for fact, _ in told if (at := onset_ns(fact)) is not None and at > ended)])
    begin = _between(told, ended, begun)
    lines: dict[int, int] = {}
    for fact, _ in told:
        if fact.event.kind not in _LASTING and fact.time_ns is not None and fact.time_ns < begin:
            lines[fact.origin.file] = max(lines.get(fact.origin.file, 0), fact.line)
    return Last(begin, lines)


def last_files(inputs: Sequence[Input]) -> tuple[list[Input], str | None]:
    """The logs without those in torchrun's folders of earlier attempts, and what the reader has to know of that.

    Args:
        inputs: All logs; torchrun writes `RUN/attempt_0/3/stderr.log`.
    """
    attempts = {item.name: found for item in inputs if (found := _ATTEMPT.match(item.name)) is not None}
    newest: dict[str, int] = {}
    for found in attempts.values():
        newest[found["of"]] = max(newest.get(found["of"], 0), int(found["number"]))
    kept = [
        item
        for item in inputs
        if (found := attempts.get(item.name)) is None or int(found["number"]) == newest[found["of"]]
    ]
    left = len(inputs) - len(kept)
    return kept, f"logs: {left} files of attempts before the last one are left out" if left else None


def onset_ns(fact: Fact) -> int | None:
    """When a call that timed out was made: the watchdog says how long ago."""
    ran = fact.event.fields.get("ran_for_ms")
    onset = fact.time_ns - ran * NS_PER_MS if isinstance(ran, int) and fact.time_ns is not None else None
    return onset if onset is not None and onset > 0 else None


def _restarted(told: Told) -> Iterator[tuple[int, int]]:
    """Pairs of times of which the first is of a process that has ended, and the second of one that followed it."""
    by_rank: dict[int, list[tuple[int, Fact]]] = defaultdict(list)
    for fact, rank in told:
        if fact.time_ns is None or fact.event.kind in _LASTING:
            continue
        if fact.event.kind == RESTART:
            yield fact.time_ns - 1, fact.time_ns
        elif rank is not None and not fact.event.is_about_other:
            by_rank[rank].append((fact.time_ns, fact))
    for facts in by_rank.values():
        facts.sort(key=lambda pair: pair[0])
        yield from _counted_back(facts)
        yield from _timed_out_again(facts)
        yield from _other_process(facts)


def _counted_back(facts: Sequence[tuple[int, Fact]]) -> Iterator[tuple[int, int]]:
    """A process's counter of the calls of a group only grows."""
    counted: dict[object, list[tuple[int, int]]] = defaultdict(list)
    for at, fact in facts:
        enqueued = fact.event.fields.get("enqueued")
        if fact.event.kind in _STATUS and isinstance(enqueued, int) and fact.event.group is not None:
            counted[fact.event.group].append((at, enqueued))
    for one in counted.values():
        yield from ((before, after) for (before, high), (after, low) in pairwise(one) if low < high and before < after)


def _timed_out_again(facts: Sequence[tuple[int, Fact]]) -> Iterator[tuple[int, int]]:
    """A process that timed out is taken down, so it makes no call afterwards."""
    timeouts = [(at, fact) for at, fact in facts if fact.event.kind == "collective_timeout"]
    for (before, _), (_, fact) in pairwise(timeouts):
        onset = onset_ns(fact)
        if onset is not None and onset > before:
            yield before, onset


def _other_process(facts: Sequence[tuple[int, Fact]]) -> Iterator[tuple[int, int]]:
    """One process of a rank follows the other; two at once are helpers, and tell nothing."""
    spans: dict[tuple[str | None, int], tuple[int, int]] = {}
    for at, fact in facts:
        if fact.origin.pid is not None:
            who = fact.origin.host, fact.origin.pid
            first, _ = spans.get(who, (at, at))
            spans[who] = first, max(at, fact.last_ns or at)
    ordered = sorted(spans.values())
    if all(one[1] < other[0] for one, other in pairwise(ordered)):
        yield from ((one[1], other[0]) for one, other in pairwise(ordered))


def _between(told: Told, ended: int, begun: int) -> int:
    """Where an attempt begins that had not begun at one time, and had at another."""
    inside: Iterable[int] = (
        fact.time_ns
        for fact, _ in told
        if fact.time_ns is not None and ended < fact.time_ns < begun and fact.event.kind not in _LASTING
    )
    times = [ended, *sorted(inside), begun]
    said = [
        fact.time_ns
        for fact, _ in told
        if fact.event.kind == RESTART and fact.time_ns is not None and ended < fact.time_ns <= begun
    ]
    if said:
        return max(said)
    return max(pairwise(times), key=lambda pair: pair[1] - pair[0])[1]
