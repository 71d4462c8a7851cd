"""What the counters of InfiniBand and RoCE ports say of a time: which port works badly, or that all is congested.

Only how fast a counter goes up says something, and only beside what it did on this port before and does on the ports of
the other hosts in the same time: symbol errors are normal on fast lanes, reordering is with adaptive routing. What goes
up alike on many hosts is of none of them.

Source of thresholds: NVSentinel's defaults for InfiniBand ports (per second or per minute) where nothing else is said.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import polars as pl

from roundk.analyze.finding import Evidence
from roundk.analyze.phrases import NS_PER_S, port_text
from roundk.analyze.steps import step
from roundk.analyze.told import short_host
from roundk.analyze.trace import Trace

PORT_PER_S: Final = {
    "symbol_error": 10.0,
    "port_rcv_errors": 10.0,
    "link_error_recovery": 5 / 60,
    # Any is fatal.
    "local_link_integrity_errors": 0.0,
    "excessive_buffer_overrun_errors": 0.0,
}
"""Errors on the link between this port and its neighbour, by the rate from which on they count.

`port_rcv_remote_physical_errors` is not among them: the fault behind it lies beyond the neighbour.
"""

WAIT_PER_S: Final = {
    "port_xmit_wait": 10_000.0,
    "port_xmit_discards": 100.0,
    "roce_slow_restart": 10.0,
    # No threshold is published for these: some come in healthy runs as well, so that the own past decides.
    "np_cnp_sent": 10.0,
    "np_ecn_marked_roce_packets": 10.0,
    "rp_cnp_handled": 10.0,
}
"""Data that wait for credits, are dropped from full queues, or are marked on the way and sent more slowly."""

LOST_PER_S: Final = {
    "local_ack_timeout_err": 1.0,
    "packet_seq_err": 1.0,
    "roce_adp_retrans": 1.0,
    "roce_adp_retrans_to": 1.0,
}
"""What a sender counts when packets did not arrive. It suffers; whose link lost them is not told."""

ORDER_PER_S: Final = {"out_of_sequence": 100.0}
"""What a receiver counts when packets come in another order: by design with adaptive routing, so never alone a sign."""

TIMES: Final = 5
"""A rate that counts is so many times the port's own before, and the others' in the same time.

Source: 5 to 10 times the median of the peers is the rule of thumb for congestion notifications.
"""

SHARE: Final = 3
"""What more than one in so many hosts show alike is of none of them; of one host it may always be."""

LEAST_S: Final = 5.0
"""A shorter burst counts as if it had taken so long. Source: NVSentinel reads the counters every 5 s."""

_LEAST_S: Final = {"link_error_recovery": 60.0}
"""The same of a counter whose threshold is one of a minute."""

RATE: Final = "rate"
"""Width and speed of a port, as in `400 Gb/sec (4X NDR)`."""

_KEYS: Final = ["host", "device", "port", "counter"]
_SHOWN: Final = 4
_GBPS: Final = r"^([\d.]+) Gb/sec"


@dataclass(frozen=True)
class Rise:
    """A counter of a port that went up faster in a time than it did before.

    Attributes:
        delta: How far it went up in the time.
        per_s: The same per second of the time in which it did.
        usual_per_s: How fast it went up before; None: it was not looked at before.
        time_ns: When it was first found higher in the time.
        source: The file that tells it.
    """

    host: str
    device: str
    port: int | None
    counter: str
    delta: int
    per_s: float
    usual_per_s: float | None
    time_ns: int
    source: str

    @property
    def place(self) -> tuple[str, str, int | None]:
        """Its port."""
        return self.host, self.device, self.port

    @property
    def evidence(self) -> Evidence:
        """The rise as it stands in a report."""
        usual = "" if self.usual_per_s is None else f" ({_rate(self.usual_per_s)} before)"
        rate = f"that is {_rate(self.per_s)}{usual}"
        what = f"{self.host}: {self.counter} of {named(self.place)} went up by {self.delta:,}, {rate}"
        return Evidence(what, self.source, None, self.time_ns)


@dataclass(frozen=True)
class Narrow:
    """A port whose rate fell, below that of the others."""

    host: str
    device: str
    port: int | None
    now: str
    before: str
    time_ns: int
    source: str

    @property
    def place(self) -> tuple[str, str, int | None]:
        """The port."""
        return self.host, self.device, self.port

    @property
    def evidence(self) -> Evidence:
        """The fall as it stands in a report."""
        what = f"{self.host}: the rate of {named(self.place)} is {self.now} and was {self.before}"
        return Evidence(what, self.source, None, self.time_ns)


@dataclass(frozen=True)
class Fabric:
    """What was wrong with the ports in a time.

    Attributes:
        bad: Rises of errors that stand out on few ports, the fastest by its threshold first.
        narrow: Ports whose rate fell.
        alike: Rises of errors that many hosts show.
        waits, lost, disordered: Rises of what tells of congestion, of lost packets, and of another order.
        hosts: Hosts whose ports were looked at in the time.
    """

    bad: tuple[Rise, ...] = ()
    narrow: tuple[Narrow, ...] = ()
    alike: tuple[Rise, ...] = ()
    waits: tuple[Rise, ...] = ()
    lost: tuple[Rise, ...] = ()
    disordered: tuple[Rise, ...] = ()
    hosts: frozenset[str] = frozenset()


def fabric(trace: Trace, begin_ns: int, end_ns: int | None, is_of: Callable[[str, str, int | None], bool]) -> Fabric:
    """What the ports' counters say of a time.

    Args:
        trace: What the sources found.
        begin_ns: Begin of the time, Unix ns.
        end_ns: Its end; None: the end of the recording.
        is_of: Whether a port, by host, device and port, is to be looked at.
    """
    every = _rows(trace, begin_ns, is_of)
    # What did not change has its next row where it does, or at the last look of all: maybe behind the time.
    rows = every if end_ns is None else every.filter(pl.col("time_ns") <= end_ns)
    if rows.is_empty():
        return Fabric()
    hosts = frozenset(every.filter("inside")["host"].unique().to_list()) & frozenset(rows["host"].unique().to_list())
    rises = _rises(rows, begin_ns)
    bad, alike = _apart(_over(rises, PORT_PER_S), rises, len(hosts))
    return Fabric(
        bad=bad,
        narrow=_narrowed(rows, begin_ns),
        alike=alike,
        waits=_over(rises, WAIT_PER_S),
        lost=_over(rises, LOST_PER_S),
        disordered=_over(rises, ORDER_PER_S),
        hosts=hosts,
    )


def named(place: tuple[str, str, int | None]) -> str:
    """What to call the port of a place."""
    _, device, port = place
    return port_text(device, port)


def shown(found: Iterable[Rise | Narrow]) -> tuple[Evidence, ...]:
    """The first of some findings for a report, of each host and counter one before there are two of any."""
    by_host: defaultdict[tuple[str, str], list[Evidence]] = defaultdict(list)
    for one in found:
        by_host[one.host, one.counter if isinstance(one, Rise) else RATE].append(one.evidence)
    return tuple(evidence for each in by_host.values() for evidence in each[:1])[:_SHOWN]


def hosts_of(found: Iterable[Rise]) -> list[str]:
    """Their hosts, each once."""
    return sorted({one.host for one in found})


def _rows(trace: Trace, begin_ns: int, is_of: Callable[[str, str, int | None], bool]) -> pl.DataFrame:
    """Samples of the ports in question, with how far each went up since the one before."""
    rows = trace.counters.filter(pl.col("kind") == "ib", pl.col("time_ns").is_not_null(), pl.col("is_read"))
    places = rows.select("host", "device", "port").unique()
    asked = [
        (host, device, port) for host, device, port in places.iter_rows() if is_of(short_host(host) or "", device, port)
    ]
    own = pl.DataFrame(asked, schema=places.schema, orient="row")
    return (
        rows.join(own, on=["host", "device", "port"], how="semi", nulls_equal=True)
        .sort(*_KEYS, "time_ns", nulls_last=False)
        .with_columns(
            pl.col("host").fill_null("").replace({host: short_host(host) or "" for host, _, _ in asked if host}),
            step=step(_KEYS),
            before_ns=pl.col("time_ns").shift(1).over(_KEYS),
            inside=pl.col("time_ns") >= begin_ns,
        )
    )


def _rises(rows: pl.DataFrame, begin_ns: int) -> list[Rise]:
    """How fast each counter went up in the time and before; those that did not go up in it are left out."""
    up = pl.when(pl.col("step") > 0).then("step").otherwise(0)
    span = (pl.col("time_ns") - pl.col("before_ns")) / NS_PER_S
    inside, outside = pl.col("inside"), ~pl.col("inside")
    # What stood still from before the time into it did so before it.
    still = pl.when(inside & (pl.col("step") == 0)).then((begin_ns - pl.col("before_ns")).clip(0) / NS_PER_S)
    before = pl.when(outside).then(span).otherwise(still).sum()
    table = (
        rows.filter(pl.col("step").is_not_null())
        .group_by(_KEYS, maintain_order=True)
        .agg(
            delta=up.filter(inside).sum(),
            seconds=span.filter(inside, pl.col("step") > 0).sum(),
            usual=pl.when(before > 0).then(up.filter(outside).sum() / before),
            time_ns=pl.col("time_ns").filter(inside, pl.col("step") > 0).first(),
            source=pl.col("source").last(),
        )
        .filter(pl.col("delta") > 0)
    )
    return [
        Rise(
            host=row["host"],
            device=row["device"],
            port=row["port"],
            counter=row["counter"],
            delta=int(row["delta"]),
            per_s=row["delta"] / max(row["seconds"], _LEAST_S.get(row["counter"], LEAST_S)),
            usual_per_s=row["usual"],
            time_ns=row["time_ns"],
            source=row["source"],
        )
        for row in table.iter_rows(named=True)
    ]


def _over(rises: list[Rise], thresholds: dict[str, float]) -> tuple[Rise, ...]:
    """Rises above their threshold and above what the port did before, the fastest of each host first."""
    found = [
        one
        for one in rises
        if one.counter in thresholds
        and one.per_s > thresholds[one.counter]
        and one.per_s >= TIMES * (one.usual_per_s or 0.0)
    ]
    return tuple(sorted(found, key=lambda one: (-one.per_s / (thresholds[one.counter] or 1e-3), one.place)))


def _apart(found: tuple[Rise, ...], rises: list[Rise], hosts: int) -> tuple[tuple[Rise, ...], tuple[Rise, ...]]:
    """Those of few hosts, and those that many hosts have, though perhaps more slowly or all along."""
    bad: list[Rise] = []
    alike: list[Rise] = []
    for one in found:
        same = {
            other.host
            for other in rises
            if other.counter == one.counter and other.host != one.host and TIMES * other.per_s > one.per_s
        }
        (alike if same and SHARE * (len(same) + 1) > hosts else bad).append(one)
    return tuple(bad), tuple(alike)


def _narrowed(rows: pl.DataFrame, begin_ns: int) -> tuple[Narrow, ...]:
    """Ports whose rate fell since some time before the trouble, and is now below that of most ports."""
    rates = (
        rows.filter(pl.col("counter") == RATE, pl.col("word").is_not_null())
        .with_columns(gbps=pl.col("word").str.extract(_GBPS).cast(pl.Float64, strict=False))
        .filter(pl.col("gbps").is_not_null())
    )
    last = (
        rates.group_by(_KEYS, maintain_order=True)
        .agg(
            now=pl.col("word").last(),
            gbps=pl.col("gbps").last(),
            # What it was, and when it was first seen to be what it is now.
            before=pl.col("word").filter(pl.col("gbps") > pl.col("gbps").last()).last(),
            fell_ns=pl.col("time_ns").filter(pl.col("gbps") == pl.col("gbps").last()).first(),
            source=pl.col("source").last(),
        )
        .with_columns(usual=pl.col("gbps").median())
        .filter(pl.col("before").is_not_null(), pl.col("gbps") < pl.col("usual"), pl.col("fell_ns") >= begin_ns)
    )
    return tuple(
        Narrow(row["host"], row["device"], row["port"], row["now"], row["before"], row["fell_ns"], row["source"])
        for row in last.iter_rows(named=True)
    )


def _rate(per_s: float) -> str:
    """`12 a second`, `4 a minute`."""
    if per_s >= 1 or per_s == 0:
        return f"{per_s:,.0f} a second"
    return f"{60 * per_s:,.1f} a minute"
