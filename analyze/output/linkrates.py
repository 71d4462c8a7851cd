"""What went through the ports of a job, for `roundk links`; and what a job's times and ports are called there."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import polars as pl

from roundk.analyze.links import names
from roundk.analyze.links.counted import per_s
from roundk.analyze.links.view import Links, Port
from roundk.analyze.links.windows import Window
from roundk.analyze.output import words
from roundk.analyze.output.columns import columns, paragraph, some
from roundk.analyze.phrases import NS_PER_S, number_of

MOST_PORTS: Final = 16
FEW_PORTS: Final = 8
"""Lines of throughput; of more ports, a few of the slowest in slow or stuck rounds are shown."""

SHARE: Final = 0.01
"""A port that is not known to be in use is worth a line from so much of the least throughput of those that are on."""

_UNITS: Final = ((10**9, "GB/s"), (10**6, "MB/s"), (10**3, "kB/s"))

_MOST_NAMES: Final = 6

_Row = Mapping[str, Any]


def clock(time_ns: int) -> str:
    """A time of day to the millisecond; of a trace with its own beginning, seconds."""
    if time_ns < words.WALL_CLOCK_NS:
        return f"{time_ns / NS_PER_S:.3f} s"
    return words.clock(time_ns).removesuffix(" UTC").rpartition(" ")[2]


def bad_rounds(found: Sequence[Window]) -> str:
    """What the rounds in the windows were: slow, stuck, or both."""
    kinds = {"stuck" if one.is_stuck else "slow" for one in found}
    return " or ".join(sorted(kinds))


def throughput(links: Links, width: int) -> list[str]:
    """What went through each port that the job uses, in all and while rounds were slow or stuck."""
    ports, others = _shown_ports(links)
    if not ports:
        return []
    rates = _rates(links)
    lines = {port: rates.get(port.key, {}) for port in ports}
    if all(row["samples"] == 1 for ways in lines.values() for row in ways.values()):
        return []
    shown = _slowest(links, ports, lines) if len(ports) > MOST_PORTS else ports
    bad = bool(links.windows)
    inside = f"in {bad_rounds(links.windows)} rounds"
    rows = [(port.host, port.label, _settings(port), *_rate_cells(lines[port], bad=bad)) for port in shown]
    heads = ("host", "port", "", "in", "out", *(("in", _wide_enough(rows, inside)) if bad else ()))
    known = ports[0].use == "used"
    title = "Throughput of the ports in use" if known else "Throughput (which ports the job uses is not told)"
    made = columns([heads, *rows], width, right=(3, 4, 5, 6))
    made = _over(made, heads, rows, inside) if bad else made
    rest = [lines[port] for port in ports if port not in shown]
    if rest:
        made.append(f"  {_alike(rest, bad=bad)}")
    least = SHARE * min(_bytes_moved(lines[port]) for port in ports)
    busy = [one for one in others if _bytes_moved(rates.get(one.key, {})) > least]
    if busy:
        text = f"Not known to be in use, and moved data as well: {_places(busy)}."
        made += paragraph(text, width, first="  ", following="    ")
    return [title, *made]


def _shown_ports(links: Links) -> tuple[list[Port], list[Port]]:
    """The ports in use, or all where that is not told, and the others; the loopback is of no interest."""
    real = [one for one in links.ports if one.device != "lo"]
    used = [one for one in real if one.use == "used"]
    shown = used or [one for one in real if one.use != "unused"]
    return shown, [one for one in real if one not in shown]


def _rates(links: Links) -> dict[tuple[str, str, str, int | None], dict[str, _Row]]:
    """Rows of the counters of bytes by port and direction."""
    rows = links.counters.filter(pl.col("counter").is_in(list(names.BYTES)))
    found: dict[tuple[str, str, str, int | None], dict[str, _Row]] = {}
    for row in rows.iter_rows(named=True):
        way, _ = names.BYTES[row["counter"]]
        found.setdefault((row["host"] or "", row["kind"], row["device"], row["port"]), {})[way] = row
    return found


def _busy(ways: Mapping[str, _Row]) -> float:
    """How much a port moved in the bad rounds, or in all."""
    return _bytes_moved(ways, "inside") if any(row["covered_ns"] for row in ways.values()) else _bytes_moved(ways)


def _bytes_moved(ways: Mapping[str, _Row], column: str = "moved") -> float:
    return float(sum(names.BYTES[row["counter"]][1] * row[column] for row in ways.values()))


def _rate_cells(ways: Mapping[str, _Row], *, bad: bool) -> list[str]:
    cells = [_rate(ways.get(way), inside=False) for way in ("in", "out")]
    return cells + ([_rate(ways.get(way), inside=True) for way in ("in", "out")] if bad else [])


def _rate(row: _Row | None, *, inside: bool) -> str:
    value = None if row is None else bytes_per_s(row, inside=inside)
    return "not read" if value is None else _bytes(value)


def bytes_per_s(row: _Row, *, inside: bool) -> float | None:
    """The throughput that a counter of bytes shows; None: it was not read in that time."""
    factor = names.BYTES[row["counter"]][1]
    found = per_s(row["inside"], row["covered_ns"]) if inside else per_s(row["moved"], row["run_ns"])
    return None if found is None else found * factor


def _bytes(value: float) -> str:
    size, unit = next(((size, unit) for size, unit in _UNITS if value >= size), (1, "B/s"))
    return f"{_digits(value / size)} {unit}" if value else "0"


def _digits(value: float) -> str:
    """A number with three digits, or as many as it has before its point."""
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def _settings(port: Port) -> str:
    told = port.settings
    speed = told.get("rate") or _speed(told.get("speed"))
    mtu = f"mtu {told['mtu']}" if "mtu" in told else ""
    state = told.get("state", "").rpartition(":")[2].strip()
    if told.get("operstate") in ("down", "lowerlayerdown"):
        state = told["operstate"]
    return ", ".join(part for part in (speed, mtu, "" if state == "ACTIVE" else state) if part)


def _speed(megabits: str | None) -> str:
    if megabits is None or not megabits.isdecimal():
        return megabits or ""
    return f"{int(megabits) / 1000:g} Gb/s" if int(megabits) >= 1000 else f"{megabits} Mb/s"


def _slowest(links: Links, ports: Sequence[Port], lines: Mapping[Port, Mapping[str, _Row]]) -> list[Port]:
    """Of many ports those to which something happened, then those that moved least in the bad rounds."""
    hit = {one.port_key for one in links.events}
    found = sorted(ports, key=lambda one: ((one.host, one.device, one.port) not in hit, _busy(lines[one])))
    return found[:FEW_PORTS]


def _wide_enough(rows: Sequence[Sequence[str]], title: str) -> str:
    """The head of the last column, so wide that a title has room above the last two."""
    wide = [max(len(row[at]) for row in rows) for at in (-1, -2)]
    return "out".rjust(max(3, len(title) - wide[1]) if sum(wide) < len(title) else 3)


def _over(lines: list[str], heads: Sequence[str], rows: Sequence[Sequence[str]], inside: str) -> list[str]:
    """The table with a line above its heads: which columns are of the whole run, and which of the bad rounds."""
    wide = [max(len(row[at]) for row in (heads, *rows)) for at in (-1, -2)]
    end = len(lines[0])
    middle = end - sum(wide) - 4
    return [f"{'over the run'.rjust(middle)}{inside.rjust(end - middle)}", *lines]


def _alike(rows: Sequence[Mapping[str, _Row]], *, bad: bool) -> str:
    """What the ports that are not shown have in common."""
    told = []
    for inside in (False, True) if bad else (False,):
        found = [
            value for ways in rows for row in ways.values() if (value := bytes_per_s(row, inside=inside)) is not None
        ]
        if found:
            least, most = _bytes(min(found)), _bytes(max(found))
            where = "in those rounds" if inside else "over the run"
            told.append(f"{least} to {most} {where}" if least != most else f"{least} {where}")
    return f"and {number_of(len(rows), 'more port')}: {', '.join(told)}"


def _places(ports: Iterable[Port]) -> str:
    by_label: dict[str, list[str]] = {}
    for one in ports:
        by_label.setdefault(one.label, []).append(one.host)
    return some([f"{label} of {some(hosts, 3)}" for label, hosts in by_label.items()], 3)


def used(ports: Collection[Port]) -> str:
    """Which ports the job uses, and what tells so: `eth0 of h0, h1 (GLOO_SOCKET_IFNAME)`."""
    by_host: dict[str, list[Port]] = {}
    for one in ports:
        if one.use == "used":
            by_host.setdefault(one.host, []).append(one)
    alike: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for host, own in by_host.items():
        why = tuple(dict.fromkeys(one.by for one in own if one.by))
        alike.setdefault((tuple(one.label for one in own), why), []).append(host)
    return some(
        [
            f"{some(labels, 8)} of {', '.join(hosts) if len(hosts) <= _MOST_NAMES else number_of(len(hosts), 'host')}"
            + (f" ({', '.join(why)})" if why else "")
            for (labels, why), hosts in alike.items()
        ],
        4,
    )
