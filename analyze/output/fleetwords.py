"""The sentences that all forms of a fleet report share."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable
from typing import Final

from roundk.analyze.batch import llama3, shares
from roundk.analyze.batch.fleet import Between, Counted, Fleet, States
from roundk.analyze.batch.offenders import Answer, Finding, called
from roundk.analyze.batch.planes import Part, Shared
from roundk.analyze.batch.repeats import Repeat
from roundk.analyze.batch.table import Category
from roundk.analyze.batch.topology import Kind
from roundk.analyze.names import Confidence
from roundk.analyze.phrases import NS_PER_S, capital, duration, number_of

NAMES: Final = {
    Category.NETWORK: "network",
    Category.HOST: "host",
    Category.GPU: "GPU",
    Category.CODE: "code",
    Category.UNDETERMINED: "undetermined",
}
_BY: Final = {
    Category.NETWORK: "the network",
    Category.HOST: "hosts",
    Category.GPU: "GPUs",
    Category.CODE: "code",
}
_ADVICE: Final = {
    Kind.PORT: "check cable and module at both ends",
    Kind.HOST: "test it before it gets another job",
    Kind.RACK: "look at what its hosts share: power, cooling, top-of-rack switch",
    Kind.RAIL: "look at its switches before any of its hosts",
    Kind.PLANE: "look at its switches before any of its hosts",
}
_HOUR_NS: Final = 3600 * NS_PER_S
_MOST_RUNS: Final = 3
_MOST_CAUSES: Final = 3


def states(of: States) -> str:
    """`300 runs: 212 interrupted, 30 slow, 40 healthy, 18 not judged`; the numbers add up."""
    told = [
        (of.interrupted, "interrupted"),
        (of.slow, "slow"),
        (of.healthy, "healthy"),
        (of.in_progress, "in progress"),
        (of.problems, "not judged"),
        (of.other, "in another state"),
    ]
    return f"{number_of(of.total, 'run')}: " + (
        ", ".join(f"{count:,} {name}" for count, name in told if count) or "nothing to report"
    )


def headline(fleet: Fleet) -> str:
    """What kills the jobs, in a sentence or three."""
    of = fleet.states
    if not of.interrupted:
        empty = "could be judged" if of.problems == of.total else "was interrupted"
        return f"{_none(of.total)} {empty}." if of.total else "No runs."
    known = [one for one in fleet.categories if one.category in _BY and one.count]
    unknown = next(one for one in fleet.categories if one.category is Category.UNDETERMINED)
    verb = "was" if of.interrupted == 1 else "were"
    begin = f"{of.interrupted:,} of {number_of(of.total, 'run')} {verb} interrupted"
    if not known:
        return f"{begin}; of none the cause could be told."
    first, *rest = known
    tied = [one for one in rest if one.count == first.count]
    lead = _leading(fleet, first)
    rest = [one for one in rest if one.count < first.count]
    share = f"{first.count:,}, {shares.text(first.count, of.interrupted)}"
    each = f"{first.count:,} each" if tied else ", ".join(filter(None, (share, lead)))
    most = f"most by {_and([_BY[one.category] for one in (first, *tied)])} ({each})"
    if unknown.count == 0 and not tied and not rest:
        most = f"all by {_BY[first.category]}" if of.interrupted > 1 else f"by {_BY[first.category]}"
        most += f" ({lead})" if lead else ""
    then = f", then {_and([f'{_BY[one.category]} ({one.count:,})' for one in rest])}" if rest else ""
    if unknown.count > first.count:
        return (
            f"{begin}; of {unknown.count:,} ({shares.text(unknown.count, of.interrupted)}) the cause could not be "
            f"told. Of the others, {most}{then}."
        )
    untold = f"; of {unknown.count:,} the cause could not be told" if unknown.count else ""
    return f"{begin}, {most}{then}{untold}."


def _leading(fleet: Fleet, category: Counted) -> str:
    """The cause that is most frequent in a category: `PROCESS_STOPPED 3`; two that are: `A and B 2 each`."""
    causes = [one for one in fleet.causes if one.category is category.category]
    most = [one for one in causes if one.count == max(other.count for other in causes)]
    if len(causes) == 1:
        return most[0].name
    if len(most) == 1:
        return f"{most[0].name} {most[0].count:,}"
    return f"{most[0].name} and {most[1].name} {most[0].count:,} each" if len(most) == 2 else ""


def offenders(fleet: Fleet) -> list[tuple[Answer, str]]:
    """Both questions, each with what it asks."""
    return [
        (fleet.blame, "Named as culprit more often than an even spread of the blame allows"),
        (fleet.presence, "In more interrupted jobs than chance allows"),
    ]


def comes_back(fleet: Fleet) -> str:
    """What comes back, in a sentence for the top of a report; empty where nothing does."""
    found = list(dict.fromkeys(one.unit.text for answer, _ in offenders(fleet) for one in answer.findings))
    if not found:
        return ""
    more = f" and {len(found) - _MOST_RUNS:,} more" if len(found) > _MOST_RUNS else ""
    told = _and(found[:_MOST_RUNS]) if not more else ", ".join(found[:_MOST_RUNS]) + more
    return f"{capital(told)} {'comes' if len(found) == 1 else 'come'} back more often than chance allows."


def found(one: Finding, *, named: bool) -> str:
    """How often a unit came back: `named in 10 of 27 jobs that used it; chance gives 1.2 (p = 2e-09, corrected)`."""
    if named:
        what = f"named in {one.jobs:,} of {number_of(one.used_in, 'job')} that used it"
    else:
        what = f"in {number_of(one.jobs, 'interrupted job')}"
    return f"{what}; chance gives {one.expected:.1f} (p = {chance(one.log_corrected)}, corrected)"


def advice(one: Finding) -> str:
    """What to do about it."""
    return _ADVICE[one.unit.kind]


def causes(one: Finding) -> str:
    """What the verdicts of its runs say, most frequent first: `LINK_FLAP 8, CONGESTION 2`."""
    listed = [f"{cause} {count:,}" for cause, count in one.causes[:_MOST_CAUSES]]
    more = len(one.causes) - _MOST_CAUSES
    return ", ".join(listed) + (f" and {number_of(more, 'more cause')}" if more > 0 else "")


def chance(log_p: float) -> str:
    """A probability from its logarithm, however small: `0.027`, `2e-09`."""
    ten = log_p / math.log(10)
    if ten > -3:
        return f"{10**ten:.2g}"
    exponent = math.floor(ten)
    digit = round(10 ** (ten - exponent))
    if digit == 10:
        digit, exponent = 1, exponent + 1
    return f"{digit}e{exponent:03d}"


def tested(answer: Answer) -> str:
    """What was tested and how: `40 jobs, 240 units tested (8 rails, 120 hosts): exact ...`."""
    kinds = ", ".join(number_of(count, str(kind)) for kind, count in answer.tested)
    return f"{number_of(answer.jobs, 'job')}, {kinds} tested: {answer.test}." if answer.test else ""


def nothing(answer: Answer) -> str:
    """What to say where a question found nothing."""
    if answer.remark:
        return answer.remark
    told = ", ".join(f"{one.unit.text} ({one.jobs:,}; chance gives {one.expected:.1f})" for one in answer.most)
    return "None." + (f" Most often: {told}; not more than chance allows." if told else "")


def lost(fleet: Fleet) -> str:
    """GPU-hours lost, and of how many runs that is known."""
    if not fleet.lost.of:
        return ""
    if not fleet.lost.known:
        return "GPU-hours lost: not known of any interrupted run."
    of = "" if fleet.lost.known == fleet.lost.of else f" (known of {fleet.lost.known:,} of {fleet.lost.of:,})"
    return f"{hours(fleet.lost.gpu_hours)} GPU-hours lost between onset and end{of}."


def hours(count: float) -> str:
    """A number of hours with the digits that matter: `1,234`, `12.3`."""
    return f"{count:,.0f}" if count >= 100 or count == 0 else f"{count:,.1f}" if count >= 0.1 else f"{count:,.2g}"


def between(of: Between) -> list[str]:
    """Mean time between failures, and of which runs."""
    made = []
    if of.hours_between is not None:
        made.append(
            f"A run lasts {duration(of.hours_between * _HOUR_NS)} on average until it is interrupted "
            f"({duration(of.hours * _HOUR_NS)} of {number_of(of.runs, 'run')} over "
            f"{number_of(of.interruptions, 'interruption')})."
        )
    if of.gpu_hours_between is not None:
        made.append(
            f"One interruption per {hours(of.gpu_hours_between)} GPU-hours "
            f"({hours(of.gpu_hours)} GPU-hours of {number_of(of.gpu_runs, 'run')})."
        )
    if made and of.only_interrupted:
        made.append("No run in the table ended well, so this is the life of runs that failed: too short for all runs.")
    return made


def repeat(one: Repeat) -> str:
    """A job that fails the same way: `3 of 5 attempts: RANK_NOT_ENTERED, HOST_STALL; node17 in 3 of them`."""
    of = f"{len(one.runs):,} of {number_of(one.attempts, 'attempt')}"
    culprit = f"; {one.culprit} in {_all(one.culprit_in, len(one.runs))}" if one.culprit else "; nothing named twice"
    return f"{of}: {one.structure}{f', {one.cause}' if one.cause else ''}{culprit}"


def shared(one: Shared) -> str:
    """A run whose culprits share a place: `all 3 culprits of run a lie in plane 2, and it used 4 planes`."""
    sure = f" ({one.confidence} confidence)" if one.confidence else ""
    every = "both" if one.culprits == 2 else f"all {one.culprits:,}"
    where = called(one.kind, one.name)
    return f"{every} culprits of run {one.run} lie in {where}; the run used {one.of:,} {one.kind}s{sure}"


def part(one: Part) -> str:
    """How often a part of the network is named: `12 of 30 jobs (40.0 %); even spread 3.8`."""
    return (
        f"{one.jobs:,} of {number_of(one.of, 'job')} ({shares.text(one.jobs, one.of)}); even spread {one.expected:.1f}"
    )


def reference(fleet: Fleet) -> list[tuple[str, str, str, str, str]]:
    """Ours beside the published ones: category, our count and share, their count and share."""
    theirs = llama3.by_category()
    ours = {one.category: one for one in fleet.categories}
    total = fleet.states.interrupted
    order = sorted(Category, key=lambda one: (one is Category.UNDETERMINED, -ours[one].count, -theirs[one]))
    rows = [
        (
            NAMES[one],
            f"{ours[one].count:,}",
            shares.text(ours[one].count, total),
            f"{theirs[one]:,}",
            shares.text(theirs[one], llama3.UNEXPECTED),
        )
        for one in order
    ]
    whole = shares.text(1, 1)
    return [*rows, ("all", f"{total:,}", whole if total else "", f"{llama3.UNEXPECTED:,}", whole)]


def pace() -> str:
    """How often the published job was interrupted."""
    return (
        f"{llama3.NAME}: an unexpected interruption every {llama3.hours_between():.1f} hours "
        f"({llama3.UNEXPECTED / llama3.DAYS:.1f} a day), one per {hours(llama3.gpu_hours_between())} GPU-hours if all "
        f"GPUs were used throughout ({llama3.SOURCE})."
    )


def layout(fleet: Fleet) -> str:
    """What the topology file told, and whom it does not know."""
    if fleet.layout is None:
        return ""
    of = fleet.layout
    told = f"Topology: {of.source}, {number_of(of.hosts, 'host')}"
    if not of.missing:
        return f"{told}; it has all hosts of the runs."
    return f"{told}; not in it: {some(of.missing[:_MOST_RUNS], _MOST_RUNS, len(of.missing))}."


def sure(one: Counted) -> str:
    """`50 high, 20 medium, 5 low`; empty where no cause is determined."""
    return ", ".join(
        f"{one.sure[level]:,} {level}" for level in Confidence if level is not Confidence.NONE and one.sure[level]
    )


def day(at: dt.datetime | None) -> str:
    """A date; empty where it is not known."""
    return "" if at is None else f"{at.astimezone(dt.UTC):%Y-%m-%d}"


def minute(at: dt.datetime | None) -> str:
    """A time to the minute, UTC; empty where it is not known."""
    return "" if at is None else f"{at.astimezone(dt.UTC):%Y-%m-%d %H:%M}"


def span(one: Finding) -> str:
    """First and last day of a finding's runs: `2026-07-01 to 2026-07-20`."""
    first, last = day(one.first), day(one.last)
    return first if first == last else f"{first} to {last}"


def some(texts: Iterable[str], limit: int, total: int) -> str:
    """The first few of some words, and how many more there are."""
    return ", ".join(list(texts)[:limit]) + (f" and {total - limit:,} more" if total > limit else "")


def _all(count: int, of: int) -> str:
    return "all of them" if count == of else f"{count:,} of them"


def _and(texts: list[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def _none(total: int) -> str:
    return f"None of {number_of(total, 'run')}"
