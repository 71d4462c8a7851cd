"""Where traces come from: one module per form of input, found by content and not by name."""

from __future__ import annotations

import pathlib
import re
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType
from typing import Final

import polars as pl

from roundk.analyze.phrases import number_of
from roundk.analyze.sources import (
    flight_recorder,
    host,
    inputs,
    inspector,
    joblog,
    nccl_tests,
    ncclx,
    ras,
    rundir,
    table,
)
from roundk.analyze.sources.inputs import Found, Hints, Input
from roundk.analyze.sources.merge import merge
from roundk.analyze.sources.part import Part
from roundk.analyze.trace import Trace, Unreadable
from roundk.tracer.errors import RunError

SOURCES: Final[tuple[ModuleType, ...]] = (
    flight_recorder,
    ncclx,
    ras,
    inspector,
    host,
    nccl_tests,
    table,
    joblog,  # any text: after all that have a form of their own
)
"""The sources beside our own run directories, in the order in which they are asked."""

_WITHIN_LOGS: Final = (host, nccl_tests)
_SHOWN: Final = 5
_EARLIEST_NS: Final = 10**9 * 10**9
"""September 2001: smaller times count from something else than 1970."""
_NO_DUMP: Final = "by its name it is a Flight Recorder dump, but what is in it is none: damaged, or written over"
_NO_COMM_DUMP: Final = "its peers are comm dumps, but what is in it is none: damaged, or written over"
_EMPTY: Final = "it is empty, where its peers are comm dumps"
_DUMP: Final = re.compile(r"(?:nccl|comm_lib|gloo)_trace_rank_?\d+$")
"""How torch names the dumps of a rank."""


def load(names: Sequence[str], hints: Hints | None = None) -> tuple[Trace, list[Part]]:
    """Read what the user named.

    Args:
        names: Paths, globs, prefixes of paths, or `-` for standard input.
        hints: What the user says about the inputs.

    Returns:
        The job's tables, and what each source gave to them.

    Raises:
        RunError: Nothing there can be read, or there is more than one run.
    """
    with tempfile.TemporaryDirectory(prefix="roundk-") as scratch:
        found = inputs.find(names, pathlib.Path(scratch))
        if len(found.runs) > 1:
            listed = ", ".join(place.path for place in list(found.runs.values())[:_SHOWN])
            more = ", ..." if len(found.runs) > _SHOWN else ""
            what = "unpack and name one" if any(place.is_packed for place in found.runs.values()) else "name one"
            raise RunError(f"{len(found.runs)} runs are here and one is analyzed at a time: {listed}{more}; {what}")
        run = _run(found)
        parts = _parts(found, hints or Hints(), run)
        if run is None and not any(part.read for part in parts):
            raise RunError(_nothing(names, found, parts))
    return merge(parts, run, found.root, found.unreadable), parts


def _run(found: Found) -> Trace | None:
    """The recording that is here; what else is here may tell enough where it cannot be read."""
    for path, place in found.runs.items():
        try:
            return rundir.load(path, place.below)
        except RunError as error:
            found.unreadable.append(Unreadable(place.name, str(error).removeprefix(f"{path}: ")))
    return None


def _parts(found: Found, hints: Hints, run: Trace | None) -> list[Part]:
    """What each source reads of the inputs; logs last, whose lines may have no year but that of the others."""
    by_source: dict[ModuleType, list[Input]] = {}
    unknown: list[Input] = []
    for item in found.inputs:
        try:
            takers = _takers(item)
        except inputs.DAMAGED as error:
            found.unreadable.append(Unreadable(item.name, str(error) or type(error).__name__))
            continue
        for source in takers:
            by_source.setdefault(source, []).append(item)
        if not takers:
            unknown.append(item)
    dumps = by_source.get(flight_recorder, [])
    alike = _named_alike(unknown, dumps)
    dumps += [item for item in alike if not item.start]
    found.unreadable += [Unreadable(item.name, _NO_DUMP) for item in alike if item.start]
    others = _named_alike([item for item in unknown if item not in alike], by_source.get(ncclx, []))
    found.unreadable += [Unreadable(item.name, _NO_COMM_DUMP if item.start else _EMPTY) for item in others]
    logs = by_source.pop(joblog, [])
    parts = [source.load(items, hints) for source, items in by_source.items()]
    if logs:
        calls = [one.calls for one in (*([] if run is None else [run]), *parts)]
        parts.append(joblog.load(logs, replace(hints, near_ns=_latest_ns(calls))))
    return parts


def _latest_ns(calls: Sequence[pl.DataFrame]) -> int | None:
    """When the last call of a job was made; None where no source tells it in Unix time."""
    times = (table["enter_ns"].max() for table in calls)
    return max((at for at in times if isinstance(at, int) and at > _EARLIEST_NS), default=None)


def _takers(item: Input) -> list[ModuleType]:
    """The sources that an input is for: one, or none; text of a tool's may have a log's lines in between."""
    if not item.start:
        return [host] if host.recognises(item) else []
    first = next((source for source in SOURCES if source.recognises(item)), None)
    if first is None:
        return []
    return [first, joblog] if first in _WITHIN_LOGS and joblog.recognises(item) else [first]


def _named_alike(unknown: list[Input], dumps: list[Input]) -> list[Input]:
    """The files that are a rank's dump by their name: where its peers left one, that it is empty is evidence.

    Folders may be named by hosts, and so differ from rank to rank too.
    """
    names = {_without_number(item.basename) for item in dumps}
    return [
        item
        for item in unknown
        if _without_number(item.basename) in names or (item.start and _DUMP.search(item.basename) is not None)
    ]


def _without_number(name: str) -> str:
    return re.sub(r"\d+(?=\D*$)", "#", name)


def _nothing(names: Sequence[str], found: Found, parts: list[Part]) -> str:
    what = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN:,} more" if names[_SHOWN:] else "")
    refused = [*found.unreadable, *(one for part in parts for one in part.unreadable)]
    if len(names) == len(refused) == 1 and pathlib.Path(refused[0].path) == pathlib.Path(names[0]):
        return f"{what}: {refused[0].why}"
    if refused:
        listed = "; ".join(f"{one.path}: {one.why}" for one in refused[:_SHOWN])
        return f"{what}: nothing here can be read: {listed}" + (f"; {len(refused)} in all" if refused[_SHOWN:] else "")
    count = len(found.inputs)
    if not count:
        why = "there is no file here"
    elif all(item.size == 0 for item in found.inputs):
        files = number_of(count, "file is", "files are")
        why = f"{files} here and empty: the writer was ended too early, or the disk full"
    else:
        why = f"{number_of(count, 'file is', 'files are')} here, and none is anything that roundk reads"
    return f"{what}: {why}; name a run directory, Flight Recorder dumps, or a job's log (docs/inputs.md)"
