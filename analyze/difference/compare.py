"""All of it: two runs in, what differs out, that which most likely matters first."""

from __future__ import annotations

from dataclasses import replace

from roundk.analyze.difference import calls, members, settings, steps, transports
from roundk.analyze.difference.found import NOTHING, Found, Row, Topic
from roundk.analyze.difference.lost import topics
from roundk.analyze.difference.run import Run
from roundk.analyze.phrases import duration, number_of

_QUESTIONS = (
    transports.compare,
    settings.versions,
    settings.compare,
    transports.links,
    members.groups,
    calls.compare,
    steps.compare,
    members.hosts,
    members.command,
)


def compare(a: Run, b: Run) -> Found:
    """Compare two runs.

    First come rows that tell of a host that the verdict on a run names, then the rest by topic.

    Args:
        a: One run.
        b: The other one.
    """
    found = Found(lost=(topics(a), topics(b)))
    for question in _QUESTIONS:
        question(a, b, found)
    blamed = {
        host: f"the verdict on {side} names {host}" for side, run in (("A", a), ("B", b)) for host in run.blamed_hosts
    }
    most = len({*a.hosts.values(), *b.hosts.values()}) / 2
    order = list(Topic)
    rows = [_touching(row, blamed, most) for row in found.rows]
    found.rows = sorted(rows, key=lambda row: (not row.touches, order.index(row.topic)))
    found.told = [*_ends(a, b), *found.told]
    return found


def _touching(row: Row, blamed: dict[str, str], most: float) -> Row:
    """The row, with the verdicts that name a host of it; one that tells of most of the hosts singles none out."""
    if len(row.hosts) > most or len(blamed) > most:
        return row
    return replace(row, touches=tuple(sorted({blamed[host] for host in row.hosts & blamed.keys()})))


def _ends(a: Run, b: Run) -> list[Row]:
    """How far the runs came."""
    rows = []
    for name, tell in (("time", _time), ("steps", _steps), ("calls of a rank", _calls)):
        in_a, in_b = tell(a), tell(b)
        if in_a or in_b:
            rows.append(Row(Topic.COURSE, name, in_a or NOTHING, in_b or NOTHING))
    return rows


def _time(run: Run) -> str:
    trace = run.trace
    begin = trace.started_ns if trace.started_ns is not None else trace.calls["enter_ns"].min()
    end = trace.ended_ns if trace.ended_ns is not None else trace.last_alive_ns
    if end is None:
        end = next((at for at in [trace.calls["end_ns"].max()] if isinstance(at, int)), None)
    return duration(end - begin) if isinstance(begin, int) and end is not None and end > begin else ""


def _steps(run: Run) -> str:
    if run.trace.steps.is_empty():
        return ""
    last = run.trace.steps["step"].max()
    return number_of(last + 1, "step") if isinstance(last, int) else ""


def _calls(run: Run) -> str:
    if run.calls.is_empty():
        return ""
    counts = run.calls.group_by("rank").len()["len"].to_list()
    least, most = min(counts), max(counts)
    return f"{most:,}" if least == most else f"{least:,} to {most:,}"
