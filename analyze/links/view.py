"""All that is known of a job's links, put together for a report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import polars as pl

from roundk.analyze import onpath
from roundk.analyze.case import Case
from roundk.analyze.links import names
from roundk.analyze.links.counted import counted, peers, stepped
from roundk.analyze.links.events import Event, events
from roundk.analyze.links.windows import Cover, Window, windows
from roundk.analyze.onpath import Path
from roundk.analyze.told import Told, short_host, told
from roundk.analyze.verdict import Report
from roundk.tracer.errors import RoundkError

LINK_FACTS: Final = ("netdev_event", "ib_port_event", "link_down", "link_up", "net_async_event")
_OFF: Final = ("sampler_gap", "links_unreadable", "sampler_off")
_TOOLS: Final = "`ibstat`, `perfquery`, `ip -s link`, `ethtool -S`, /proc/net/netstat, `nvidia-smi nvlink -e`, DCGM"


@dataclass(frozen=True)
class Port:
    """A port whose traffic is counted.

    Attributes:
        kind: netdev | ib | nvlink.
        use: Whether the job uses it: used | unused | unknown | other.
        by: What tells so.
        settings: Its speed, MTU and state as last read, in words.
    """

    host: str
    kind: str
    device: str
    port: int | None
    use: str
    by: str
    settings: Mapping[str, str] = field(hash=False)

    @property
    def key(self) -> tuple[str, str, str, int | None]:
        """Host, kind, device and port."""
        return self.host, self.kind, self.device, self.port

    @property
    def label(self) -> str:
        """`mlx5_0:1`."""
        return names.label(self.kind, self.device, self.port)


@dataclass(frozen=True)
class Links:
    """A job's links.

    Attributes:
        windows: When rounds were slow or stuck.
        events: The time line.
        ports: Ports of network devices and HCAs: those in use first, then by host and name.
        steps: As `counted.stepped` makes them.
        counters: As `counted.counted` makes them.
        peers: As `counted.peers` makes them.
        unread: Counters that are there and could not be read: host, kind, device, port, counter.
        full: Counters that stand at their largest value from the first sample on: the same columns, and the value.
        gaps: What the samplers told of times in which, and of things that, they could not read.
        hosts: Hosts with any of these.
        begin_ns, end_ns: First and last sample; None: no sample has a time.
    """

    windows: tuple[Window, ...]
    events: tuple[Event, ...]
    ports: tuple[Port, ...]
    steps: pl.DataFrame
    counters: pl.DataFrame
    peers: pl.DataFrame
    unread: pl.DataFrame
    full: pl.DataFrame
    gaps: tuple[Told, ...]
    hosts: tuple[str, ...]
    begin_ns: int | None
    end_ns: int | None


def view(case: Case, report: Report) -> Links:
    """What is known of the links of a job.

    Args:
        case: The case.
        report: The report on it: its stuck and slow rounds are compared with.

    Raises:
        RoundkError: There are neither counters nor events of links.
    """
    trace = case.trace
    if trace.counters.is_empty() and trace.facts.filter(pl.col("kind").is_in(list(LINK_FACTS))).is_empty():
        raise RoundkError(_nothing(case))
    found = windows(case, report)
    steps = stepped(trace, Cover(found))
    path = onpath.path_of_job(case)
    table = counted(steps)
    timed = steps["time_ns"].drop_nulls()
    line = events(case, steps, path)
    hosts = {short_host(host) or "" for host in trace.counters["host"].unique().to_list()} | {one.host for one in line}
    return Links(
        windows=found,
        events=line,
        ports=_ports(case, path),
        steps=steps,
        counters=table,
        peers=peers(trace, steps),
        unread=_unread(case),
        full=_full(table),
        gaps=tuple(told(trace, _OFF)),
        hosts=tuple(sorted(hosts, key=names.natural)),
        begin_ns=int(str(timed.min())) if len(timed) else None,
        end_ns=int(str(timed.max())) if len(timed) else None,
    )


def _nothing(case: Case) -> str:
    run = "this run was recorded with --no-links, or before roundk sampled links, or its files are gone"
    why = run if "run_directory" in case.trace.sources else "nothing of what was named has any"
    return (
        f"no counters and no events of links: {why}. `roundk run` records them by default; of other runs, name the"
        f" output of {_TOOLS} or a copy of /sys/class/infiniband and /sys/class/net, best from before and after"
    )


def _ports(case: Case, path: Path) -> tuple[Port, ...]:
    """Ports with counters of traffic."""
    rows = case.trace.counters.filter(pl.col("kind").is_in(["netdev", "ib"]))
    has_bytes = pl.col("counter").is_in(list(names.BYTES)).any().over("host", "kind", "device", "port")
    keys = rows.filter(has_bytes).select("host", "kind", "device", "port").unique().iter_rows()
    settings, by = _settings(rows), _by(case)
    made = [
        Port(
            host=short_host(host) or "",
            kind=kind,
            device=device,
            port=port,
            use=path.use(short_host(host), device, port),
            by=by.get((short_host(host) or "", device), ""),
            settings=settings[host, device, port],
        )
        for host, kind, device, port in keys
    ]
    return tuple(sorted(made, key=lambda one: (one.use != "used", names.natural(one.host), names.natural(one.label))))


def _settings(rows: pl.DataFrame) -> dict[tuple[str | None, str, int | None], dict[str, str]]:
    """The settings of ports as last read."""
    found: dict[tuple[str | None, str, int | None], dict[str, str]] = defaultdict(dict)
    kept = rows.filter(pl.col("counter").is_in([*names.SIZES, "state", "operstate"]), pl.col("is_read"))
    for host, device, port, counter, value, word in kept.select(
        "host", "device", "port", "counter", "value", "word"
    ).iter_rows():
        found[host, device, port][counter] = str(value) if word is None else word
    return found


def _by(case: Case) -> dict[tuple[str, str], str]:
    facts = told(case.trace, ("port_used",))
    return {(fact.host or "", fact.text_of("device") or ""): fact.text_of("by") or "" for fact in facts}


def _unread(case: Case) -> pl.DataFrame:
    """Counters none of whose samples could be read, and those whose last one could not."""
    keys = ["host", "kind", "device", "port", "counter"]
    return (
        case.trace.counters.filter(pl.col("kind") != "peer")  # a peer without a connection has no round trip
        .group_by(keys, maintain_order=True)
        .agg(pl.col("is_read").last())
        .filter(~pl.col("is_read"))
        .drop("is_read")
    )


def _full(table: pl.DataFrame) -> pl.DataFrame:
    """Counters at their end, which do not move however much happens."""
    ends = pl.col("counter").replace_strict(names.LARGEST, default=None, return_dtype=pl.Int64)
    stuck = table.filter(pl.col("kind") == "ib", pl.col("moved") == 0, pl.col("last") == ends)
    return stuck.select("host", "kind", "device", "port", "counter", "last")


def moved(links: Links) -> pl.DataFrame:
    """The counters of trouble that moved in the run, the clearest first, each from the host where it moved most.

    Returns:
        Rows of `Links.counters`, with the column `weight` (int32).
    """
    table = _weighed(links.counters).filter(pl.col("moved") > 0, pl.col("weight") < names.Weight.TRAFFIC)
    placed = table.with_columns(
        place=pl.Series([names.place(name) for name in table["counter"]], dtype=pl.Int32),
        tells_twice=_has_better(table),
    ).filter(~pl.col("tells_twice"))
    return placed.sort(
        "weight", "place", "counter", "inside", "moved", descending=[False, False, False, True, True]
    ).drop("place", "tells_twice")


def traffic(links: Links) -> pl.DataFrame:
    """The counters that moved and tell little alone, without those of bytes."""
    table = _weighed(links.counters)
    return table.filter(
        pl.col("moved") > 0, pl.col("weight") == names.Weight.TRAFFIC, ~pl.col("counter").is_in(list(names.BYTES))
    )


def _weighed(table: pl.DataFrame) -> pl.DataFrame:
    weights: Sequence[int] = [
        names.weight(counter, kind) for counter, kind in table.select("counter", "kind").iter_rows()
    ]
    return table.with_columns(weight=pl.Series(weights, dtype=pl.Int32))


def _has_better(table: pl.DataFrame) -> pl.Series:
    """`carrier_changes` of ports of which it is told how often they went down."""
    downs = set(table.filter(pl.col("counter") == names.DOWNS[0]).select("host", "device").iter_rows())
    return pl.Series(
        [
            counter == names.DOWNS[-1] and (host, device) in downs
            for host, device, counter in table.select("host", "device", "counter").iter_rows()
        ],
        dtype=pl.Boolean,
    )
