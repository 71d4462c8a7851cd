"""One run in, the rows of the table out."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from roundk.analyze import diagnose, sources
from roundk.analyze.batch import places, remote
from roundk.analyze.batch.run import Run
from roundk.analyze.batch.table import CATEGORIES, INTERRUPTED, RUNS
from roundk.analyze.case import Case, build
from roundk.analyze.phrases import NS_PER_S
from roundk.analyze.verdict import Report, Verdict
from roundk.tracer.errors import RunError

ERROR: Final = "error"
"""Status of a run that could not be judged."""

_NS_PER_US: Final = 1000
_NS_PER_H: Final = 3600 * NS_PER_S
_EARLIEST_NS: Final = 10**9 * NS_PER_S
_LATEST_NS: Final = 4 * 10**9 * NS_PER_S
"""2001 and 2096: smaller times count from something else than 1970, larger ones come from damaged files."""
_LONGEST_NS: Final = 400 * 24 * _NS_PER_H
"""No job takes longer than a year; one that seems to has a damaged time in its files, and it can't be said which."""
_SHOWN: Final = 3
"""Problems of one run that its row tells."""
_OF_JOB: Final = r"^(slurm|elastic|mpirun)_"
"""Kinds of facts that tell of the whole job, and not of what its hosts did before and after it."""


@dataclass(frozen=True)
class Result:
    """What came of a run.

    Attributes:
        rows: Its rows of `table.RUNS`: values that JSON can hold, times in µs.
        is_final: The same files would give the same again; False for what may have been an accident of this try (a
            limit, a lost worker, an object that could not be fetched) and for a job that still ran.
    """

    rows: tuple[dict[str, Any], ...]
    is_final: bool


def version() -> str:
    """The version of roundk."""
    return importlib.metadata.version("roundk")


def judged(run: Run, *, now_ns: int, scratch: pathlib.Path) -> Result:
    """Judge a run.

    Args:
        run: What to judge.
        now_ns: The time of the batch, Unix ns: tells a job that runs from one that ended without a word.
        scratch: An empty folder for what must be fetched; its path is left out of what is told.
    """
    if gone := [path for path in run.paths if not remote.is_url(path) and not os.path.lexists(path)]:
        why = f"{gone[0]}: it is not there any more, or not on the machine that judged it"
        return _unjudged(run, _told([why], run, (), scratch), is_final=False)
    try:
        fetched = places.fetched(run, scratch)
    except RunError as error:  # a package is missing
        return _unjudged(run, str(error), is_final=False)
    problems, paths = fetched.problems, fetched.paths
    if not paths:
        return _unjudged(run, _told(problems, run, paths, scratch), is_final=False)
    try:
        trace, _ = sources.load(paths)
    except RunError as error:
        return _unjudged(run, _told([*problems, str(error)], run, paths, scratch), is_final=not problems)
    case = build(trace, now_ns=now_ns, stall_ns=diagnose.STALL_NS)
    report = diagnose.report(case)
    damaged = [f"{one.path}: {one.why}" for one in report.coverage.unreadable]
    problem = _told([*problems, *damaged], run, paths, scratch) or None
    rows = [_row({**row, "problem": problem}) for row in _rows(run, case, report)]
    return Result(tuple(rows), is_final=not problems and not case.alive)


def failed(run: Run, problem: str) -> dict[str, Any]:
    """The row of a run that could not be judged."""
    return _row({**_blank(run), "status": ERROR, "problem": problem})


def _blank(run: Run) -> dict[str, Any]:
    """A row of which only the run is known."""
    lists: dict[str, list[Any]] = {field.name: [] for field in RUNS if str(field.type).startswith("list")}
    return {
        **dict.fromkeys(RUNS.names),
        **lists,
        "run": run.name,
        "root": run.root,
        "job": run.job,
        "attempt": run.attempt,
        "verdict": 0,
        "fingerprint": run.fingerprint,
        "roundk_version": version(),
    }


def _rows(run: Run, case: Case, report: Report) -> Iterator[dict[str, Any]]:
    started, ended = _span(case)
    coverage = report.coverage
    # Of a log of a few ranks, the highest of them says nothing of how many there are.
    size = coverage.world_size if case.trace.is_size_told else None
    common = {
        **_blank(run),
        "started_at": _us(started),
        "ended_at": _us(ended),
        "world_size": size,
        "hosts": sorted(set(case.trace.ranks["host"].drop_nulls().to_list())),
        "status": report.status.value,
        "gpu_hours": _gpu_hours(size, started, ended),
        "ranks_seen": coverage.ranks_seen,
        "ranks_missing": len(coverage.ranks_missing),
        "ranks_empty": len(coverage.ranks_empty),
        "ranks_truncated": len(coverage.truncated),
        "unreadable": len(coverage.unreadable),
        "sources": sorted(coverage.sources),
        "clock_error_ns": coverage.clock_error_ns,
    }
    for number, verdict in enumerate(report.verdicts):
        is_lost = number == 0 and report.status in INTERRUPTED
        onset = verdict.onset_ns if _is_time(verdict.onset_ns) else None
        yield {
            **common,
            **_verdict(verdict),
            "verdict": number,
            "onset_at": _us(onset),
            "gpu_hours_lost": _gpu_hours(size, onset, ended) if is_lost else None,
        }


def _verdict(verdict: Verdict) -> Mapping[str, Any]:
    group = verdict.group
    return {
        "structure": verdict.structure.value,
        "detail": None if verdict.detail is None else verdict.detail.value,
        "structure_confidence": verdict.structure_confidence.value,
        "cause": None if verdict.cause is None else verdict.cause.value,
        "cause_confidence": verdict.cause_confidence.value,
        "category": None if verdict.cause is None else CATEGORIES[verdict.cause].value,
        "culprit_ranks": list(verdict.culprit_ranks),
        "culprit_hosts": list(verdict.culprit_hosts),
        "culprit_links": [{"host": one.host, "device": one.device, "port": one.port} for one in verdict.culprit_links],
        "group": None if group is None else group.name,
        "group_size": None if group is None else group.size,
        "op": verdict.op,
        "seq": verdict.seq,
        "summary": verdict.summary,
    }


def _span(case: Case) -> tuple[int | None, int | None]:
    """Start and end of a job, Unix ns; None: not known.

    A launcher's own word counts first. Without it the job lasted from the first to the last thing that is known of its
    ranks: their calls, signs of life and ends, facts of a rank and of the job as a whole. What hosts report of
    themselves (a kernel's log may reach back for months) counts only where there is nothing else.
    """
    trace = case.trace
    ours = pl.col("rank").is_not_null() | pl.col("kind").str.contains(_OF_JOB)
    known = [
        *_times(trace.calls, "enter_ns", "end_ns"),
        *_times(trace.ranks, "start_ns", "last_alive_ns", "goodbye_ns", "exit_ns", "exception_ns"),
        *_times(trace.facts.filter(ours), "time_ns"),
        *_times(trace.steps, "end_ns"),
        *_times(trace.progress, "time_ns"),
    ]
    known = known or _times(trace.facts, "time_ns") or _times(trace.counters, "time_ns")
    started, ended = trace.started_ns, trace.ended_ns
    if ended is None and not trace.is_post_mortem and case.last_alive_ns:
        ended = case.last_alive_ns
    if known:
        started = min(known) if started is None else started
        ended = max(known) if ended is None else ended
    if started is None or ended is None or not 0 <= ended - started <= _LONGEST_NS:
        return None, None
    return started, ended


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as Arrow can hold it: bytes of a file's name that are no UTF-8 are written out."""
    return {name: _stored(value) for name, value in row.items()}


def _stored(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return {key: _stored(one) for key, one in value.items()}
    return [_stored(one) for one in value] if isinstance(value, list) else value


def _times(table: pl.DataFrame, *columns: str) -> list[int]:
    """The first and last of the times in some columns of a table."""
    ends: list[int] = []
    for column in columns:
        times = table[column].filter(table[column].is_between(_EARLIEST_NS, _LATEST_NS))
        ends += [time for time in (times.min(), times.max()) if isinstance(time, int)]
    return ends


def _is_time(ns: int | None) -> bool:
    return ns is not None and _EARLIEST_NS <= ns <= _LATEST_NS


def _us(ns: int | None) -> int | None:
    return None if ns is None else ns // _NS_PER_US


def _gpu_hours(ranks: int | None, since_ns: int | None, until_ns: int | None) -> float | None:
    if ranks is None or since_ns is None or until_ns is None:
        return None
    return ranks * max(until_ns - since_ns, 0) / _NS_PER_H


def _unjudged(run: Run, why: str, *, is_final: bool) -> Result:
    return Result((failed(run, why),), is_final=is_final)


def _told(problems: Sequence[str], run: Run, paths: Sequence[str], scratch: pathlib.Path) -> str:
    """Problems as one text, without the folders that depend on where the batch ran."""
    text = "; ".join(problems[:_SHOWN]) + (f"; {len(problems)} in all" if problems[_SHOWN:] else "")
    for path in paths:
        text = text.replace(path, run.name)
    return text.replace(f"{scratch}/", "").replace(f"{run.root.rstrip('/')}/", "")
