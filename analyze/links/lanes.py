"""What a chart of a job's links shows: which ports, which stretch of time, and how much went through them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl

from roundk.analyze.links import names
from roundk.analyze.links.events import Event
from roundk.analyze.links.view import Links, Port
from roundk.analyze.phrases import NS_PER_S

MOST_LANES: Final = 16
"""Ports with a lane of their own; of more, those to which something happened, and the others share one."""

FEW_LANES: Final = 8
"""Of more ports so many have one in any case: to see what is usual."""

BINS: Final = 480
"""Steps of time across the chart, about two pixels each."""

_AROUND: Final = 0.5
"""Share of the length of the bad rounds that is shown before and after them, where the run is longer."""
_AROUND_NS: Final = 5 * NS_PER_S

Rates = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Lane:
    """One port in the chart.

    Attributes:
        out, into: Bytes per second in each step of time; NaN where it was not read.
        events: What happened to it in that time.
        ticks: When a counter that tells of a fault went up, Unix ns.
    """

    port: Port
    out: Rates
    into: Rates
    events: tuple[Event, ...]
    ticks: tuple[int, ...]


@dataclass(frozen=True)
class Chart:
    """What is shown.

    Attributes:
        edges: The steps of time, Unix ns.
        zero: The time from which the axis counts, and `since`, what that is.
        lanes: Ports with a lane of their own.
        others: Ports that share one: theirs is the spread over them.
        left_out: Ports that the job does not use and to which nothing happened.
    """

    edges: np.ndarray[Any, np.dtype[np.int64]]
    zero: int
    since: str
    lanes: tuple[Lane, ...]
    others: tuple[Lane, ...]
    left_out: int


def chart(links: Links) -> Chart | None:
    """What to show; None where no port's throughput was read twice."""
    rows = links.steps.filter(pl.col("counter").is_in(list(names.BYTES)), pl.col("step").is_not_null())
    rows = rows.filter(pl.col("time_ns").is_not_null())
    if rows.is_empty() or links.begin_ns is None or links.end_ns is None:
        return None
    left, right = _stretch(links, links.begin_ns, links.end_ns)
    edges = np.linspace(left, right, BINS + 1).astype(np.int64)
    series = _series(rows, edges)
    ticks = _ticks(links, left, right)
    first = _first_ports(links)
    lanes = [
        Lane(
            port=port,
            out=series.get((port.key, "out"), np.full(BINS, np.nan)),
            into=series.get((port.key, "in"), np.full(BINS, np.nan)),
            events=tuple(one for one in links.events if _is_of(one, port) and left <= (one.time_ns or 0) <= right),
            ticks=(*ticks.get(port.key, ()), *(ticks.get((port.host, "tcp", "", None), ()) if port in first else ())),
        )
        for port in links.ports
        if port.device != "lo"
    ]
    known = any(lane.port.use == "used" for lane in lanes)
    wanted = [lane for lane in lanes if lane.events or lane.port.use == "used" or (not known and _moves(lane))]
    chosen = _chosen(wanted) if len(wanted) > MOST_LANES else wanted
    own = {lane.port.key for lane in chosen}
    return Chart(
        edges=edges,
        zero=links.windows[0].begin_ns if links.windows else links.begin_ns,
        since="after the first of these rounds began" if links.windows else "after the first sample",
        lanes=tuple(lane for lane in wanted if lane.port.key in own),
        others=tuple(lane for lane in wanted if lane.port.key not in own),
        left_out=len(lanes) - len(wanted),
    )


def _stretch(links: Links, begin: int, end: int) -> tuple[int, int]:
    """The run, or the part of it around the rounds that were slow or stuck."""
    if not links.windows:
        return begin, end
    first, last = links.windows[0].begin_ns, links.windows[-1].end_ns
    around = max(_AROUND_NS, round((last - first) * _AROUND))
    left, right = max(begin, first - around), min(end, last + around)
    return (left, right) if right > left else (begin, end)


def _series(rows: pl.DataFrame, edges: np.ndarray[Any, np.dtype[np.int64]]) -> Mapping[Any, Rates]:
    """Bytes per second in each step of time, by port and direction."""
    found = {}
    seconds = np.diff(edges) / NS_PER_S
    for key, part in rows.partition_by("host", "kind", "device", "port", "counter", as_dict=True).items():
        host, kind, device, port, counter = key
        way, factor = names.BYTES[str(counter)]
        begin = part["before_ns"].fill_null(part["time_ns"])[0]
        times = np.concatenate([[begin], part["time_ns"].to_numpy()]).astype(np.int64)
        sums = np.concatenate([[0.0], np.cumsum(np.maximum(part["step"].to_numpy(), 0))]) * factor
        # Small numbers: those of a Unix time in ns are coarser than a float can tell apart.
        until = np.interp((edges - times[0]).astype(float), (times - times[0]).astype(float), sums)
        until[(edges < times[0]) | (edges > times[-1])] = np.nan
        found[(host or "", kind, device, port), way] = np.diff(until) / seconds
    return found


def _ticks(links: Links, left: int, right: int) -> dict[tuple[str, str, str, int | None], tuple[int, ...]]:
    """When counters that tell of a fault went up, by port; a host's TCP is a port of no device."""
    rows = links.steps.filter(
        pl.col("counter").is_in(list(names.TELLS)), pl.col("step") > 0, pl.col("time_ns").is_between(left, right)
    )
    found: dict[tuple[str, str, str, int | None], list[int]] = {}
    for host, kind, device, port, time_ns in rows.select("host", "kind", "device", "port", "time_ns").iter_rows():
        found.setdefault((host or "", kind, device, port), []).append(time_ns)
    return {key: tuple(sorted(set(times))) for key, times in found.items()}


def _first_ports(links: Links) -> set[Port]:
    """The first port of each host: the one that stands for its TCP."""
    found: dict[str, Port] = {}
    for port in links.ports:
        if port.kind == "netdev" and port.device != "lo":
            found.setdefault(port.host, port)
    return set(found.values())


def _is_of(one: Event, port: Port) -> bool:
    return (one.host, one.device) == (port.host, port.device) and one.port in (None, port.port)


def _moves(lane: Lane) -> bool:
    return bool(np.nansum(lane.out) or np.nansum(lane.into))


def _chosen(lanes: list[Lane]) -> list[Lane]:
    """Of many ports those with a lane of their own."""
    found = sorted(lanes, key=_matters)
    hit = sum(bool(lane.events or lane.ticks) for lane in found)
    return found[: min(max(hit, FEW_LANES), MOST_LANES)]


def _matters(lane: Lane) -> tuple[int, int, float]:
    """What happened to it first, then what told of faults, then who moved least."""
    return -len(lane.events), -len(lane.ticks), float(np.nansum(lane.out) + np.nansum(lane.into))
