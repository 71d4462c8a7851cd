"""The words that all forms of a report share: its head, the facts beside the sentence, evidence told once, times."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from roundk.analyze.control import DESTROY
from roundk.analyze.finding import Evidence
from roundk.analyze.names import Confidence, Status, Structure
from roundk.analyze.phrases import NS_PER_S, duration, fold, group_text, number_of, port_text, ranks_text
from roundk.analyze.picture import Picture, Wait
from roundk.analyze.verdict import Coverage, Report, Verdict

WALL_CLOCK_NS: Final = 10**17
"""Times below this (March 1973) are no Unix times: the trace counts from a beginning of its own."""

_MOST_HOSTS: Final = 4
_MOST_SOURCES: Final = 3
_SAYS_NO_MORE: Final = frozenset({Structure.HEALTHY, Structure.IN_PROGRESS})
_UNSURE: Final = _SAYS_NO_MORE | {Structure.INSUFFICIENT_EVIDENCE, Structure.METHODS_DISAGREE}
_LINE: Final = re.compile(r"(.+):(\d+)")
_PLURAL: Final = {"was": "were", "is": "are", "has": "have", "does": "do"}


@dataclass(frozen=True)
class Piece:
    """Evidence as it is shown: what is the same for several ranks, or stands in several lines, is told once."""

    what: str
    offset: str
    source: str


def clock(time_ns: int) -> str:
    """A time of day, `2026-11-29 10:42:17.101 UTC`; of a trace with its own beginning, `9.490 s of the trace`."""
    if abs(time_ns) < WALL_CLOCK_NS:
        return f"{time_ns / NS_PER_S:.3f} s of the trace"
    when = dt.datetime.fromtimestamp(time_ns // NS_PER_S, tz=dt.UTC)
    return f"{when:%Y-%m-%d %H:%M:%S}.{time_ns % NS_PER_S // 1_000_000:03d} UTC"


def offset(time_ns: int | None, onset_ns: int | None) -> str:
    """A time as its distance from the onset, `+10.7 s`; empty where either is not known."""
    if time_ns is None or onset_ns is None:
        return ""
    after = time_ns - onset_ns
    return f"{'-' if after < 0 else '+'}{duration(abs(after))}"


def name(verdict: Verdict) -> str:
    """`RANK_NOT_ENTERED (BUSY)`."""
    return verdict.structure.value + (f" ({verdict.detail.value})" if verdict.detail else "")


def head(verdict: Verdict, status: Status) -> str:
    """What stands behind the status of a run, empty where it would say the same again."""
    return "" if name(verdict) == status.value.upper() else name(verdict)


def facts(verdict: Verdict) -> list[tuple[str, str]]:
    """Label and text of what an operator looks for beside the sentence."""
    made: list[tuple[str, str]] = []
    if verdict.cause is not None:
        made.append(("cause", verdict.cause.value + _sure(verdict.cause_confidence)))
    blamed = _blamed(verdict)
    if blamed:
        # A host or link alone is blamed by the cause: the structure names the round.
        sure = verdict.structure_confidence if verdict.culprit_ranks else verdict.cause_confidence
        made.append(("culprit", blamed + _sure(sure)))
    elif verdict.structure not in _UNSURE:
        made.append(("finding", f"{verdict.structure_confidence.value} confidence; no rank is blamed"))
    if verdict.culprit_links:
        links = [f"{one.host} {port_text(one.device, one.port)}" for one in verdict.culprit_links]
        made.append(("link", _some(links, _MOST_HOSTS)))
    if verdict.group is not None and verdict.seq is not None:
        made.append(("where", f"{where(verdict)} ({number_of(verdict.group.size, 'rank')})"))
    if verdict.onset_ns is not None:
        made.append(("onset", clock(verdict.onset_ns)))
    return made


def where(verdict: Verdict) -> str:
    """`all_reduce #5 of group tp`; empty where a verdict is about no round."""
    if verdict.group is None or verdict.seq is None:
        return ""
    group = group_text(verdict.group.name, verdict.group.desc, destroying=verdict.op == DESTROY)
    return f"{verdict.op or 'call'} #{verdict.seq} of {group}"


def inside(wait: Wait) -> str:
    """Who waits where: `ranks 0, 2-7 in all_reduce #5 of group dp`."""
    return f"{ranks_text(wait.ranks)} {place(wait)}"


def place(wait: Wait) -> str:
    """Where somebody waits: `in all_reduce #5 of group dp, and 2 later rounds`."""
    later = f", and {number_of(wait.later, 'later round')}" if wait.later else ""
    return f"in {wait.where}{later}"


def on(wait: Wait) -> str:
    """For whom ranks wait, and what those do: `rank 1 (not entered)`."""
    return f"{ranks_text(wait.on)} ({wait.state})" if wait.on else wait.state


def further(picture: Picture) -> str:
    """Who is held up through other groups, in one line; empty where nobody is."""
    if not picture.behind:
        return ""
    count, groups = len(picture.behind), picture.groups
    who = f"{ranks_text(picture.through)} wait" if picture.through else "the same ranks wait"
    if len(picture.through) == 1:
        who += "s"
    return f"{who} for these, in {number_of(count, 'more round')} of {number_of(groups, 'group')}"


def waiting(verdict: Verdict, picture: Picture) -> str:
    """Who waits, directly and through other groups; empty where nobody does."""
    direct = verdict.waiting_ranks or picture.direct
    more = verdict.victims.ranks - len(direct)
    through = f"; {more:,} more through other groups" if more > 0 and direct else ""
    return f"{ranks_text(direct)}{through}" if direct else ""


def pieces(verdict: Verdict) -> list[Piece]:
    """The evidence, what several ranks or lines say alike told once."""
    alike: dict[str, list[Evidence]] = {}
    for piece in verdict.evidence:
        alike.setdefault(_pattern(piece), []).append(piece)
    return [_piece(pattern, group, verdict.onset_ns) for pattern, group in alike.items()]


def coverage(have: Coverage) -> list[tuple[str, str]]:
    """Label and text of what the analysis had before it."""
    made = [("Read", _read(have))]
    for label, ranks in (
        ("missing", have.ranks_missing),
        ("without calls", have.ranks_empty),
        ("cut short", have.truncated),
    ):
        if ranks:
            made.append((label, fold(ranks)))
    if have.unreadable:
        made.append(("unreadable", _some([one.path for one in have.unreadable], _MOST_SOURCES)))
    return made


def unchecked(report: Report) -> list[str]:
    """What was not looked at, without the notes of the sources."""
    told = set(report.notes)
    return [text for text in dict.fromkeys(report.verdicts[0].not_checked) if text not in told]


def explained(report: Report) -> str:
    """The names of a report that are worth an explanation, as arguments of `roundk explain`."""
    verdict = report.verdicts[0]
    return "" if verdict.structure in _SAYS_NO_MORE else verdict.structure.value


def _sure(confidence: Confidence) -> str:
    return "" if confidence is Confidence.NONE else f", {confidence.value} confidence"


def _blamed(verdict: Verdict) -> str:
    hosts = _some(list(verdict.culprit_hosts), _MOST_HOSTS)
    if verdict.culprit_ranks:
        return ranks_text(verdict.culprit_ranks) + (f" on {hosts}" if hosts else "")
    return hosts


def _pattern(piece: Evidence) -> str:
    """The text with its own rank taken out."""
    return piece.what if piece.rank is None else re.sub(rf"\brank {piece.rank}\b", "\0", piece.what)


def _piece(pattern: str, alike: list[Evidence], onset_ns: int | None) -> Piece:
    ranks = sorted({piece.rank for piece in alike if piece.rank is not None})
    if len(ranks) > 1:
        pattern = re.sub("\0 (was|is|has|does)\\b", lambda match: f"\0 {_PLURAL[match[1]]}", pattern)
    times = [piece.time_ns for piece in alike if piece.time_ns is not None]
    return Piece(
        pattern.replace("\0", ranks_text(ranks)),
        offset(min(times, default=None), onset_ns),
        _sources(piece.source for piece in alike),
    )


def _sources(names: Iterable[str]) -> str:
    """Files with their lines, each file once: `job.log:1, 3, 5`."""
    lines: dict[str, list[str]] = {}
    for one in dict.fromkeys(names):
        match = _LINE.fullmatch(one)
        file, line = (match[1], match[2]) if match else (one, "")
        lines.setdefault(file, []).append(line)
    told = [f"{file}:{_some(found, _MOST_SOURCES)}" if any(found) else file for file, found in lines.items() if file]
    return _some(told, _MOST_SOURCES)


def _some(texts: list[str], limit: int) -> str:
    return ", ".join(texts[:limit]) + (f" and {len(texts) - limit:,} more" if len(texts) > limit else "")


def _read(have: Coverage) -> str:
    if have.world_size is not None:
        return f"{have.ranks_seen:,} of {number_of(have.world_size, 'rank')}"
    seen = have.ranks_seen
    read = "no rank's calls" if not seen else f"the calls of {number_of(seen, 'rank')}"
    return f"{read}; how many ranks there are is not told"
