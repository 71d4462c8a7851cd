"""The time line of a job's links: ports that went down and came back, and settings that changed under way."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import polars as pl

from roundk.analyze.case import Case
from roundk.analyze.links import names
from roundk.analyze.onpath import Path
from roundk.analyze.told import Told, short_host, told
from roundk.analyze.trace import Trace
from roundk.analyze.troubles import LINK_CAUSES, Trouble

_STATES: Final = ("netdev_event", "ib_port_event")
_WORDS: Final = ("state", "rate", "operstate")
_PORT_KEYS: Final = ["host", "kind", "device", "port"]
_HOST: Final = re.compile(r"^\S+: ")


@dataclass(frozen=True)
class Event:
    """Something that happened to a port.

    Attributes:
        kind: down | up | change | reset.
        time_ns: When; None: not told.
        before_ns: Not before, where only two samples tell it; None: the time is that of the event.
        until_ns: When it came back; None: not, or not told.
        device: '' for a host's TCP.
        use: Whether the job uses the port: used | unused | unknown | other (names of two kinds that do not compare).
        what: In a few words.
        count: How many of the kind it stands for.
        is_found: A port that was down when somebody looked: the time is that of the look.
    """

    kind: str
    time_ns: int | None
    before_ns: int | None
    until_ns: int | None
    host: str
    device: str
    port: int | None
    use: str
    what: str
    source: str
    count: int = 1
    is_found: bool = False

    @property
    def is_down(self) -> bool:
        """A port went down."""
        return self.kind == "down"

    @property
    def port_key(self) -> tuple[str, str, int | None]:
        """Its port."""
        return self.host, self.device, self.port


def events(case: Case, steps: pl.DataFrame, path: Path) -> tuple[Event, ...]:
    """All events, those without a time first, else by time.

    Args:
        case: The case.
        steps: As `counted.stepped` makes them.
        path: What the job uses.
    """
    lost = [one for one in case.troubles if one.cause in LINK_CAUSES and not one.is_counted]
    facts = told(case.trace, _STATES)
    looks = {fact.evidence for fact in told(case.trace, ("link_down",)) if fact.text_of("state")}
    found = [replace(_lost(one, facts), is_found=one.shown[0] in looks) for one in lost]
    found += _came_up(facts, lost)
    known = {(one.host, one.device) for one in found}
    found += [one for one in _counted(steps) if (one.host, one.device) not in known]
    found += [*_changes(case.trace, steps, known), *_resets(steps)]
    placed = [replace(one, use=path.use(one.host, one.device or None, one.port)) for one in found]
    return tuple(sorted(placed, key=lambda one: (one.time_ns is not None, one.time_ns or 0, one.port_key[:2])))


def by_port(found: Iterable[Event]) -> dict[tuple[str, str, int | None], list[Event]]:
    """Events by their port, in the order of the first."""
    made: dict[tuple[str, str, int | None], list[Event]] = {}
    for one in found:
        made.setdefault(one.port_key, []).append(one)
    return made


def _lost(one: Trouble, facts: Sequence[Told]) -> Event:
    device = one.device or ""
    said = _HOST.sub("", one.shown[0].what)
    states = [
        fact.text_of("state") or ""
        for fact in facts
        if fact.kind == "ib_port_event"
        and (fact.host, fact.text_of("device"), fact.number_of("port")) == (one.host, one.device, one.port)
        and (one.time_ns or 0) <= (fact.time_ns or 0) <= (one.until_ns or fact.time_ns or 0)
    ]
    made = _event("down", one.time_ns, one.host or "", device, _what(said, device, states), one.shown[0].source)
    return replace(made, until_ns=one.until_ns, port=one.port)


def _what(said: str, device: str, states: Sequence[str]) -> str:
    """What an event is told to be, beside that the port went down."""
    if states:
        return ", ".join(dict.fromkeys(state.rpartition(":")[2].strip() for state in states))
    short = said.removeprefix(f"{device} ").removeprefix("is ")
    return "" if short == "has no carrier" else short


def _came_up(facts: Iterable[Told], lost: Iterable[Trouble]) -> list[Event]:
    """Ports that came up and of which no line tells that they had gone down: they were down before."""
    back = {(one.host, one.device, one.until_ns) for one in lost}
    found = []
    for fact in facts:
        device = fact.text_of("device") or ""
        if fact.fields.get("is_up") is True and (fact.host, device, fact.time_ns) not in back:
            made = _event("up", fact.time_ns, fact.host or "", device, "was down before", fact.source)
            found.append(replace(made, port=fact.number_of("port")))
    # A port that passes states, or tells the same again, came up once.
    return [group[0] for group in by_port(found).values()]


def _counted(steps: pl.DataFrame) -> list[Event]:
    """Ports that went down by their counters alone, between two samples."""
    rows = steps.filter(pl.col("counter").is_in(list(names.DOWNS)), pl.col("step") > 0)
    # Of several counters of one port the first in the list counts.
    order = {name: at for at, name in enumerate(names.DOWNS)}
    rows = rows.with_columns(order=pl.col("counter").replace_strict(order, return_dtype=pl.Int32))
    rows = rows.filter(pl.col("order") == pl.col("order").min().over(_PORT_KEYS))
    return [
        replace(_of_row("down", row, f"{row['counter']} went up by {row['step']}"), count=row["step"])
        for row in rows.iter_rows(named=True)
    ]


def _changes(trace: Trace, steps: pl.DataFrame, known: set[tuple[str, str]]) -> list[Event]:
    """Settings and states that changed from one sample to the next."""
    keys = [*_PORT_KEYS, "counter"]
    numbers = steps.filter(pl.col("counter").is_in(list(names.SIZES)), pl.col("step") != 0).with_columns(
        now=pl.col("value").cast(pl.String), then=(pl.col("value") - pl.col("step")).cast(pl.String)
    )
    words = (
        trace.counters.filter(pl.col("counter").is_in(list(_WORDS)), pl.col("word").is_not_null())
        .with_columns(then=pl.col("word").shift(1).over(keys), before_ns=pl.col("time_ns").shift(1).over(keys))
        .rename({"word": "now"})
        .filter(pl.col("now") != pl.col("then"))
    )
    columns = [*keys, "time_ns", "before_ns", "now", "then", "source"]
    rows = pl.concat([numbers.select(columns), words.select(columns)])
    return [
        _of_row("change", row, f"{row['counter']} {row['then']} became {row['now']}")
        for row in rows.iter_rows(named=True)
        if row["counter"] in names.SIZES or (short_host(row["host"]) or "", row["device"]) not in known
    ]


def _resets(steps: pl.DataFrame) -> list[Event]:
    """Ports whose counters began anew: most of those that had counted anything. One that falls alone is no counter."""
    is_counter = ~pl.col("counter").is_in(list(names.GAUGES)) & (pl.col("kind") != "peer")
    fell = pl.col("step") < 0
    rows = (
        steps.filter(is_counter, pl.col("time_ns").is_not_null())
        .group_by(*_PORT_KEYS, "counter", maintain_order=True)
        .agg(
            has_counted=(pl.col("value") > 0).any(),
            times=fell.sum(),
            time_ns=pl.col("time_ns").filter(fell).first(),
            before_ns=pl.col("before_ns").filter(fell).first(),
            source=pl.col("source").first(),
        )
        .group_by(_PORT_KEYS, maintain_order=True)
        .agg(
            pl.col("time_ns", "before_ns").min(),
            pl.col("source").first(),
            times=pl.col("times").max(),
            fell=(pl.col("times") > 0).sum(),
            counted=pl.col("has_counted").sum(),
        )
        .filter(pl.col("fell") > 0, 2 * pl.col("fell") >= pl.col("counted"))
    )
    return [
        replace(_of_row("reset", row, "its counters began anew: driver or device started again"), count=row["times"])
        for row in rows.iter_rows(named=True)
    ]


def _event(kind: str, time_ns: int | None, host: str, device: str, what: str, source: str) -> Event:
    return Event(
        kind=kind,
        time_ns=time_ns,
        before_ns=None,
        until_ns=None,
        host=host,
        device=device,
        port=None,
        use="unknown",
        what=what,
        source=source,
    )


def _of_row(kind: str, row: Mapping[str, Any], what: str) -> Event:
    made = _event(kind, row["time_ns"], short_host(row["host"]) or "", row["device"], what, row["source"])
    return replace(made, port=row["port"], before_ns=row["before_ns"])
