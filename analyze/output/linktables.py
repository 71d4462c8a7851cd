"""The tables of `roundk links`: throughput, counters that moved, connections, and what was quiet or not to be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import polars as pl

from roundk.analyze import flows
from roundk.analyze.links import names
from roundk.analyze.links.counted import per_s
from roundk.analyze.links.view import Links, moved, traffic
from roundk.analyze.output.columns import columns, paragraph, some
from roundk.analyze.output.linkrates import bad_rounds, clock
from roundk.analyze.phrases import duration, number_of

MOST_ROWS: Final = {names.Weight.TELLS: 8, names.Weight.HINTS: 4}
"""Lines of one counter, by how much it says."""

FEW: Final = 10
"""Below so many a rate tells less than the count; and a counter that moves in healthy runs too tells nothing."""

APART: Final = 4
"""A counter that moves in healthy runs too stands out where it moved so many times as much as is usual."""

USUAL: Final = 0.25
"""Quantile of the hosts that stands for what is usual: both ends of an edge, and those behind it, may be bad."""

AGAIN_SHARE: Final = 0.001
AGAIN_SHARE_INSIDE: Final = 0.01
"""Shares of segments sent again that stand out, of a run and of its bad rounds, in which little is sent at all. In the
runs of our lab without loss up to 0.04 % are sent again, and with 3 % of loss 2 %."""

MOST_PEERS: Final = 8
_MOST_NAMES: Final = 6
_LEAST_COUNT: Final = 0.5
_US: Final = 1_000
_SENT: Final = "OutSegs"
_AGAIN: Final = "RetransSegs"

_Row = Mapping[str, Any]


def counters(links: Links, width: int) -> list[str]:
    """The counters of trouble that moved: those that stand out with the hosts and ports, the others in a line."""
    table = moved(links)
    if links.counters.filter(pl.col("samples") > 1).is_empty():
        return paragraph("No counter was read twice: which of them moved in the run is not told.", width)
    if table.is_empty():
        return ["No counter of errors, drops or retransmissions moved."]
    by_name = {name: list(table.filter(pl.col("counter") == name).iter_rows(named=True)) for name in _names(table)}
    apart = {name: found for name, found in by_name.items() if _stands_out(links, found)}
    usual = [_usual(links, found) for name, found in by_name.items() if name not in apart]
    beside = "As on other hosts, or a few" if apart else "Of errors, drops and retransmissions none stands out"
    last = paragraph(f"{beside}: {', '.join(usual)}.", width, following="  ") if usual else []
    if not apart:
        return last
    sent = {row["host"]: row for row in links.counters.filter(pl.col("counter") == _SENT).iter_rows(named=True)}
    inside = f"in {bad_rounds(links.windows)} rounds" if links.windows else ""
    rows: list[tuple[str, ...]] = [("", "", "over the run", inside)]
    for found in apart.values():
        rows += _counter(links, found, sent)
    title = "Counters that moved: errors, drops, retransmissions [count, per second]"
    return [title, *columns(rows, width, right=(2, 3)), *_meanings(list(apart), width), *last]


def _names(table: pl.DataFrame) -> list[str]:
    return list(dict.fromkeys(table["counter"].to_list()))


def _usual(links: Links, found: Sequence[_Row]) -> str:
    """A counter that does not stand out: `RetransSegs 58 to 119`, `TCPSACKReorder 3 to 5 (2 of 4 hosts)`."""
    still = len(_still_at(links, found))
    where = f" ({len(found)} of {number_of(len(found) + still, _noun(found))})" if still else ""
    return f"{found[0]['counter']} {_spread([row['moved'] for row in found])}{where}"


def _counter(links: Links, found: Sequence[_Row], sent: Mapping[str, _Row]) -> list[tuple[str, ...]]:
    """The lines of one counter: the hosts where it moved most, and in a line the others."""
    most = MOST_ROWS[names.Weight(found[0]["weight"])]
    # A single line that says how many more there are is no shorter than one more.
    shown = found if len(found) <= most + 1 else found[:most]
    bad = bool(links.windows)
    rows: list[tuple[str, ...]] = []
    for number, row in enumerate(shown):
        of = sent.get(row["host"]) if row["counter"] == _AGAIN else None
        rows.append(
            (
                row["counter"] if not number else "",
                _where(row),
                _count(row["moved"], row["run_ns"], None if of is None else of["moved"]),
                _inside(_by_events(links, row), None if of is None else of["inside"]) if bad else "",
            )
        )
    rest = found[len(shown) :]
    if rest:
        rows.append(("", f"{len(rest):,} more", _spread([row["moved"] for row in rest]), ""))
    quiet = _quiet(links, found)
    return [*rows, ("", quiet, "0", "")] if quiet else rows


def _by_events(links: Links, row: _Row) -> _Row:
    """A counter of outages with those of its port within bad rounds, where their times are told: no share of one."""
    known = [one for one in links.events if one.is_down and one.before_ns is None and one.time_ns is not None]
    mine = [one for one in known if one.port_key == (row["host"] or "", row["device"], row["port"])]
    if row["counter"] not in names.DOWNS[:-1] or not mine:
        return row
    within = sum(window.begin_ns <= (one.time_ns or 0) <= window.end_ns for one in mine for window in links.windows)
    return {**row, "inside": float(within)}


def _stands_out(links: Links, found: Sequence[_Row]) -> bool:
    """Whether it is worth more than a line: it tells of a fault, or moved more at one place than at most others."""
    if found[0]["weight"] == names.Weight.TELLS:
        return True
    if found[0]["counter"] == _AGAIN and (shares := _shares(links, found)):
        return any(whole >= AGAIN_SHARE or inside >= AGAIN_SHARE_INSIDE for whole, inside in shares)
    is_same = (pl.col("counter") == found[0]["counter"]) & (pl.col("samples") > 1) & (pl.col("device") != "lo")
    every = links.counters.filter(is_same)
    for count, time in (("moved", "run_ns"), ("inside", "covered_ns")):
        rates = every.select(pl.col(count), per_ns=pl.col(count) / pl.col(time)).filter(pl.col("per_ns").is_finite())
        usual = rates["per_ns"].quantile(USUAL, "lower")
        if usual is not None and rates.filter(pl.col("per_ns") > APART * usual, pl.col(count) >= FEW).height:
            return True
    return every["run_ns"].null_count() > 0 and max(row["moved"] for row in found) >= FEW


def _shares(links: Links, found: Sequence[_Row]) -> list[tuple[float, float]]:
    """Of the hosts' segments the shares that were sent again, in all and in bad rounds; none where it is not told."""
    sent = {row["host"]: row for row in links.counters.filter(pl.col("counter") == _SENT).iter_rows(named=True)}
    return [
        (row["moved"] / of["moved"], row["inside"] / of["inside"] if of["inside"] and row["inside"] >= FEW else 0.0)
        for row in found
        if (of := sent.get(row["host"])) is not None and of["moved"]
    ]


def _spread(counts: Sequence[int]) -> str:
    least, largest = min(counts), max(counts)
    return f"{least:,}" if least == largest else f"{least:,} to {largest:,}"


def _noun(found: Sequence[_Row]) -> str:
    return "host" if found[0]["kind"] == "tcp" else "port"


def _where(row: _Row) -> str:
    host = row["host"] or "a host"
    return host if row["kind"] == "tcp" else f"{host} {names.label(row['kind'], row['device'], row['port'])}"


def _quiet(links: Links, found: Sequence[_Row]) -> str:
    """Where the same counter did not move: that is what makes the others stand out."""
    still = _still_at(links, found)
    if len(still) <= 2:
        return ", ".join(_where(row) for row in still)
    return number_of(len(still), f"other {_noun(found)}")


def _still_at(links: Links, found: Sequence[_Row]) -> list[_Row]:
    rows = links.counters.filter(
        pl.col("counter") == found[0]["counter"], pl.col("samples") > 1, pl.col("moved") == 0, pl.col("device") != "lo"
    )
    return list(rows.iter_rows(named=True))


def _count(count: float, ns: int | None, of: float | None) -> str:
    """`5,548 (139/s, 2.3 %)`: how many, per second, and their share of something."""
    rate = per_s(count, ns)
    parts = [] if rate is None or count < FEW else [f"{_short(rate)}/s"]
    if of and count >= 1:
        parts.append(f"{_short(100 * count / of)} %")
    number = "<1" if 0 < count < _LEAST_COUNT else f"{count:,.0f}"
    return f"{number} ({', '.join(parts)})" if parts else number


def _short(value: float) -> str:
    """A number with two digits, or as many as it has before its point."""
    return f"{value:,.0f}" if value >= FEW else f"{value:.2g}"


def _inside(row: _Row, of: float | None) -> str:
    return _count(row["inside"], row["covered_ns"], of) if row["covered_ns"] else "not read"


def _meanings(counters: Sequence[str], width: int) -> list[str]:
    """What the counters that moved say."""
    told = [(name, names.meaning(name)) for name in counters if names.meaning(name)]
    return ["  What they say", *columns([("", ""), *told], width, indent=4)[1:]] if told else []


def connections(links: Links, width: int) -> list[str]:
    """The directions between hosts in which TCP had to send again, waited, or became slow."""
    rows = list(links.peers.iter_rows(named=True))
    if not rows:
        return []
    losing = _losing(links)
    bad = sorted(
        (row for row in rows if _is_bad(row, losing)),
        key=lambda row: (-row["backoff"], not _is_slow(row), -row["inside"], -row["moved"]),
    )
    others = [row["moved"] for row in rows if not _is_bad(row, losing)]
    few = f"at most {max(others):,} segments sent again in each" if others and max(others) else "nothing sent again"
    quiet = f"{number_of(len(others), 'direction')} without trouble ({few})"
    if not bad:
        return paragraph(f"TCP between hosts: {quiet}.", width)
    with_windows = bool(links.windows)
    kind = bad_rounds(links.windows)
    heads = ("from", "to", "sent again", f"in {kind} rounds" if with_windows else "", "timeouts", "round trip (usual)")
    cells = [
        (
            row["host"] or "",
            row["peer"],
            _count(row["moved"], row["run_ns"], None),
            _inside(row, None) if with_windows else "",
            f"{row['backoff']}" if row["backoff"] else "",
            _trip(row),
        )
        for row in bad[:MOST_PEERS]
    ]
    lines = [
        "TCP between hosts, as its sender saw it (timeouts: most in a row)",
        *columns([heads, *cells], width, right=(2, 3, 4)),
    ]
    if len(bad) > MOST_PEERS:
        lines.append(f"  and {number_of(len(bad) - MOST_PEERS, 'more direction')} with fewer (--format json has all)")
    return [*lines, *([f"  {quiet}"] if others else [])]


def _is_bad(row: _Row, losing: set[str | None]) -> bool:
    is_lossy = row["moved"] >= flows.LOSSY and row["host"] in losing
    return bool(is_lossy or row["backoff"] or _is_slow(row))


def _losing(links: Links) -> set[str | None]:
    """Hosts whose TCP tells of loss, or of nothing: without it, segments are sent again in every run."""
    told = links.counters.filter(pl.col("counter").is_in(["TCPTimeouts", "TCPLostRetransmit"]), pl.col("samples") > 1)
    silent = set(links.peers["host"].to_list()) - set(told["host"].to_list())
    return silent | set(told.filter(pl.col("moved") > 0)["host"].to_list())


def _is_slow(row: _Row) -> bool:
    usual, inside = row["rtt_us"], row["rtt_inside_us"]
    if usual is None or inside is None:
        return False
    return bool(inside >= flows.SLOWER * usual and (inside - usual) * _US >= flows.SLOW_NS)


def _trip(row: _Row) -> str:
    """The round trip in bad rounds, and in brackets the usual one."""
    usual, inside = ("" if row[name] is None else duration(row[name] * _US) for name in ("rtt_us", "rtt_inside_us"))
    return f"{inside} ({usual})" if usual and inside else inside or (usual and f"({usual})")


def once(links: Links, width: int) -> list[str]:
    """Counters that were read once: what they count may be years old."""
    table = links.counters.filter(pl.col("samples") == 1, pl.col("last") > 0)
    rows = [
        row for row in table.iter_rows(named=True) if names.weight(row["counter"], row["kind"]) < names.Weight.TRAFFIC
    ]
    if not rows:
        return []
    rows.sort(key=lambda row: (names.weight(row["counter"], row["kind"]), names.place(row["counter"]), -row["last"]))
    cells = []
    for name in dict.fromkeys(row["counter"] for row in rows):
        own = [row for row in rows if row["counter"] == name]
        told = [f"{_where(row)} {row['last']:,}" for row in own]
        cells.append((name, some(told, _MOST_NAMES)))
    title = "Read once, so that it is not known whether they moved in the run (they count since the driver was loaded)"
    return [*paragraph(title, width), *columns([("", ""), *cells], width)[1:]]


def silence(links: Links, width: int) -> list[str]:
    """What did not move, what says little, and what could not be read."""
    still = links.counters.filter(pl.col("samples") > 1, pl.col("moved") == 0)
    lines = [] if still.is_empty() else paragraph(_still(still), width, following="  ")
    little = traffic(links)
    if little.height:
        kinds = list(dict.fromkeys(little.filter(pl.col("device") != "lo")["counter"].to_list()))
        lines += paragraph(f"Moved too, and says little alone: {some(kinds, _MOST_NAMES)}.", width, following="  ")
    lines += _full(links, width) + _unread(links, width) + _gaps(links, width)
    return lines


def _still(still: pl.DataFrame) -> str:
    errors = sum(
        names.weight(name, kind) < names.Weight.TRAFFIC for name, kind in still.select("counter", "kind").iter_rows()
    )
    ports = still.filter(pl.col("kind") != "tcp").select("host", "device", "port").n_unique()
    hosts = still.filter(pl.col("kind") == "tcp")["host"].n_unique()
    places = [number_of(ports, "port")] if ports else []
    places += [f"TCP of {number_of(hosts, 'host')}"] if hosts else []
    text = f"Quiet: {number_of(still.height, 'counter')} of {' and '.join(places) or 'other devices'} did not move"
    of = (
        f", {'all' if errors == still.height else f'{errors:,}'} of them of errors, drops and retransmissions"
        if errors
        else ""
    )
    return f"{text}{of}. That does not clear the fabric: what a switch drops is counted there."


def _full(links: Links, width: int) -> list[str]:
    if links.full.is_empty():
        return []
    return paragraph(f"At their largest value, so that they cannot move: {_listed(links.full)}.", width, following="  ")


def _listed(rows: pl.DataFrame) -> str:
    """Counters, each with where: `speed (h0 eth0, h1 eth0 and 2 more)`."""
    found = []
    for name in _names(rows):
        own = [_where(row) for row in rows.filter(pl.col("counter") == name).iter_rows(named=True)]
        found.append(f"{name} ({some(own, 2)})")
    return some(found, _MOST_NAMES)


def _unread(links: Links, width: int) -> list[str]:
    lines = []
    rows = links.unread.filter(pl.col("device") != "lo")
    if rows.height:
        lines += paragraph(f"Not to be read, which is not zero: {_listed(rows)}.", width, following="  ")
    counted = links.counters["host"].unique().to_list()
    without = [host for host in links.hosts if host not in counted]
    if without and any(counted):
        lines += paragraph(f"Without any counter: {some(without, _MOST_NAMES)}.", width, following="  ")
    return lines


def _gaps(links: Links, width: int) -> list[str]:
    told = [
        f"{fact.host or 'a host'}: {fact.text}" + (f" ({clock(fact.time_ns)})" if fact.time_ns else "")
        for fact in links.gaps
    ]
    return paragraph(f"Not watched: {some(told, _MOST_NAMES)}.", width, following="  ") if told else []
