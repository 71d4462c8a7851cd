"""How far counters moved: over the run, and while rounds were slow or stuck."""

from __future__ import annotations

from typing import Final

import polars as pl

from roundk.analyze import flows
from roundk.analyze.links import names
from roundk.analyze.links.windows import Cover
from roundk.analyze.phrases import NS_PER_S
from roundk.analyze.steps import step
from roundk.analyze.told import short_host
from roundk.analyze.trace import Trace

KEYS: Final = ["host", "kind", "device", "port", "counter"]

_PEER: Final = "peer"
_TRIP: Final = "rtt_us"


def stepped(trace: Trace, cover: Cover) -> pl.DataFrame:
    """The samples of counters, each with what happened since the sample before.

    Args:
        trace: What the sources found.
        cover: The times of slow and stuck rounds.

    Returns:
        One row per sample of a counter that could be read, sorted by `KEYS` and time; of a counter that has samples
        with a time and without, only the former.

        Columns beside those of `schema.COUNTERS`:
            step (int64, nullable): How far it went up; negative: its device was made anew; null: the first sample.
            before_ns (int64, nullable): Time of the sample before.
            covered_ns (int64): How much of the time since the sample before was within slow or stuck rounds.
    """
    rows = trace.counters.filter(pl.col("value").is_not_null(), pl.col("is_read"))
    rows = rows.with_columns(pl.col("host").replace(_short(rows["host"])))
    rows = rows.filter(pl.col("time_ns").is_not_null() | pl.col("time_ns").is_null().all().over(KEYS))
    rows = rows.sort(*KEYS, "time_ns", maintain_order=True)
    until = pl.Series("until", cover.until(rows["time_ns"].fill_null(0).to_numpy()))
    return (
        rows.with_columns(until)
        .with_columns(
            step=step(KEYS),
            before_ns=pl.col("time_ns").shift(1).over(KEYS),
            covered_ns=(pl.col("until") - pl.col("until").shift(1).over(KEYS)).fill_null(0),
        )
        .drop("until")
    )


def counted(steps: pl.DataFrame) -> pl.DataFrame:
    """How far each counter moved.

    What was counted between two samples is spread evenly over the time between them. Of bytes, which flow until the
    moment in which a round hangs, only pairs of samples that lie within slow or stuck rounds count there, where these
    make up half of the time or more.

    Args:
        steps: As `stepped` makes them.

    Returns:
        One row per counter with at least one sample, sorted by `KEYS`, without gauges and connections.

        Columns:
            host, kind, device (str), port (int32, nullable), counter (str): Which.
            samples (uint32): Samples that could be read.
            run_ns (int64, nullable): Time from the first to the last sample; null: their times are not told.
            moved (int64): How far it went up in that time.
            covered_ns (int64): How much of that time was within slow or stuck rounds, as far as `inside` is of it.
            inside (float64): How far it went up there.
            resets (uint32): How often it went back.
            last (int64): Its last value.
            error_ns (int64, nullable): How far off the time of a sample may be, the largest.
            source (str): File of the last sample.
    """
    rows = steps.filter(pl.col("kind") != _PEER, ~pl.col("counter").is_in(list(names.GAUGES)))
    ups = pl.col("step").filter(pl.col("step") > 0)
    share = (pl.col("covered_ns") / (pl.col("time_ns") - pl.col("before_ns"))).fill_nan(0.0)
    is_untimed = pl.col("time_ns").first().is_null()
    is_whole = pl.col("covered_ns") == pl.col("time_ns") - pl.col("before_ns")
    whole_ns = pl.col("covered_ns").filter(is_whole).sum()
    is_bytes = pl.col("counter").first().is_in(list(names.BYTES)) & (whole_ns > 0)
    by_whole = is_bytes & (2 * whole_ns >= pl.col("covered_ns").sum())
    inside = (pl.col("step") * share).filter(pl.col("step") > 0).sum()
    inside_whole = pl.col("step").filter(pl.col("step") > 0, is_whole).sum().cast(pl.Float64)
    return rows.group_by(KEYS, maintain_order=True).agg(
        samples=pl.len(),
        run_ns=pl.col("time_ns").max() - pl.col("time_ns").min(),
        # The order of samples without times is not known, and counters only go up.
        moved=pl.when(is_untimed).then(pl.col("value").max() - pl.col("value").min()).otherwise(ups.sum()),
        covered_ns=pl.when(by_whole).then(whole_ns).otherwise(pl.col("covered_ns").sum()),
        inside=pl.when(by_whole).then(inside_whole).otherwise(inside),
        resets=pl.when(is_untimed).then(0).otherwise((pl.col("step") < 0).sum()).cast(pl.UInt32),
        last=pl.col("value").last(),
        error_ns=pl.col("error_ns").max(),
        source=pl.col("source").last(),
    )


def per_s(moved: float | None, ns: int | None) -> float | None:
    """A rate; None where the time is not known."""
    return None if moved is None or not ns else moved * NS_PER_S / ns


def peers(trace: Trace, steps: pl.DataFrame) -> pl.DataFrame:
    """What TCP told of the connections from each host to each other.

    Args:
        trace: What the sources found.
        steps: As `stepped` makes them.

    Returns:
        One row per direction, sorted by host and peer.

        Columns:
            host (str): Who sends.
            peer (str): To whom: a host, or an address where no host has that.
            address (str): Its address.
            run_ns, covered_ns (int64): As in `counted`.
            moved (int64), inside (float64): Segments sent again, in all and within slow or stuck rounds.
            backoff (int64): Most timeouts in a row of one connection; `backoff_inside` within slow or stuck rounds.
            rtt_us, rtt_inside_us (float64, nullable): Median round trip outside of them, and within.
    """
    rows = steps.filter(pl.col("kind") == _PEER)
    inside = pl.col("covered_ns") > 0
    share = pl.col("covered_ns") / (pl.col("time_ns") - pl.col("before_ns"))
    again, backoff, trip = (pl.col("counter") == name for name in ("retrans_total", "backoff", _TRIP))
    addresses = flows.addresses(trace)
    return (
        rows.group_by("host", "device", maintain_order=True)
        .agg(
            run_ns=pl.col("time_ns").max() - pl.col("time_ns").min(),
            covered_ns=pl.col("covered_ns").filter(again).sum(),
            moved=pl.col("step").filter(again, pl.col("step") > 0).sum(),
            inside=(pl.col("step") * share).filter(again, pl.col("step") > 0).sum(),
            backoff=pl.col("value").filter(backoff).max().fill_null(0),
            backoff_inside=pl.col("value").filter(backoff, inside).max().fill_null(0),
            rtt_us=pl.col("value").filter(trip, ~inside).median(),
            rtt_inside_us=pl.col("value").filter(trip, inside).median(),
        )
        .with_columns(peer=pl.col("device").replace(addresses))
        .rename({"device": "address"})
    )


def _short(hosts: pl.Series) -> dict[str, str]:
    return {host: short_host(host) or host for host in hosts.unique().drop_nulls().to_list()}
