"""From the files of the hosts' link samplers to `COUNTERS` and `FACTS`.

Facts of these files: `netdev_event` (device, is_up, is_admin_up, is_gone, changes: ups and downs that it stands for,
error_ns), `ib_port_event` (device, port, state, is_up, error_ns), `port_used` (kind, device, port, by), `host_address`
(address, is_used), `sampler_gap` (for_ms), `links_unreadable` (what, why), `xid` and `sxid` (bus_id, xid),
`sampler_off` (why).
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roundk.tracer import read_calls, schema, template, words

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_Line = dict[str, Any]
_Numbers = np.ndarray[Any, Any]


class Sampler(NamedTuple):
    """One sampler's files: its side file's name in the run directory and its lines, its segments in order.

    The lines are those that `side_lines.sorted_out` has found good.
    """

    source: str
    host: str
    lines: list[_Line]
    segments: list[str]

    def of(self, kind: str) -> list[_Line]:
        """The lines of one kind."""
        return [line for line in self.lines if line.get("kind") == kind]


class _Rows(NamedTuple):
    """Rows of segments, those that are not written left out."""

    begin_ns: _Numbers
    end_ns: _Numbers
    value: _Numbers
    counter: _Numbers
    state: _Numbers


class _Samples(NamedTuple):
    """Samples of one sampler by counter, then time; `counter`: index into its counters in the order of `COUNTERS`."""

    time_ns: _Numbers
    error_ns: _Numbers
    counter: _Numbers
    value: _Numbers
    state: _Numbers


def counters_of(samplers: Iterable[Sampler]) -> tuple[pa.Table, list[tuple[str, str]]]:
    """`COUNTERS` of all samplers, and the segments that are not whole, with why.

    What was looked at and had not changed has a row at the last look before each change, and at the last of all: what
    has none was not looked at. The time of such a row is the beginning of that look, and its error is none.
    """
    tables, cut = [schema.COUNTERS.empty_table()], []
    for sampler in sorted(samplers, key=lambda one: (one.host, one.source)):
        rows, broken = _read(sampler.segments)
        cut += broken
        tables.append(_table(sampler, rows))
    table = pa.concat_tables(tables)
    names = [one["host"][0].as_py() for one in tables if len(one)]
    if len(names) > len(set(names)):  # the port apart, since nulls come first
        table = table.append_column("no_null", pc.fill_null(table["port"], -1))
        keys = ("host", "device", "no_null", "counter", "time_ns")
        table = table.sort_by([(key, "ascending") for key in keys]).drop_columns("no_null")
    return table, cut


def _read(paths: Sequence[str]) -> tuple[_Rows, list[tuple[str, str]]]:
    parts, cut = read_calls.gathered(paths, _read_segment)
    nothing = np.zeros(0, dtype=np.int64)
    return _Rows(*(np.concatenate([nothing, *column]) for column in zip(*parts, strict=True))) if parts else _Rows(
        *[nothing] * 5
    ), cut


def _read_segment(path: str) -> tuple[_Rows, int]:
    """The rows of a segment, and how many bytes are missing."""
    table, missing = read_calls.table_of(path, template.LINK_SEGMENTS)
    written = np.flatnonzero(table["state"].to_numpy() > 0)
    return _Rows(*(table[name].to_numpy()[written] for name in schema.LINK_RING.names)), missing


class _Counter(NamedTuple):
    id: int
    kind: str
    device: str
    port: int | None
    name: str
    lag_ns: int

    @property
    def order(self) -> tuple[str, int, str, str]:
        return self.device, -1 if self.port is None else self.port, self.name, self.kind


def _counters(sampler: Sampler) -> list[_Counter]:
    """The counters in the order of `COUNTERS`."""
    found = [
        _Counter(number, line["of"], line["device"], line.get("port"), name, line["lag_ms"] * 1_000_000)
        for line in sampler.of("counters")
        for number, name in enumerate(line["names"], start=line["id"])
    ]
    return sorted(found, key=lambda counter: counter.order)


def _table(sampler: Sampler, rows: _Rows) -> pa.Table:
    counters = _counters(sampler)
    samples = _samples(sampler, rows, counters)
    index = pa.array(samples.counter.astype(np.int32))
    said = dict(sorted((line["id"], line["text"]) for line in sampler.of("word")))
    ids = np.array(list(said), dtype=np.int64)
    is_word = (samples.state == words.WORD) & np.isin(samples.value, ids)
    texts = pa.array(said.values(), pa.utf8())
    number = np.where(is_word, np.searchsorted(ids, samples.value), 0).astype(np.int32)
    host = next((line["host"] for line in sampler.of("start") if line.get("host")), sampler.host)
    everywhere = pa.array(np.zeros(len(index), dtype=np.int32))

    def by_counter(values: list[Any], kind: pa.DataType) -> pa.Array:
        return pa.array(values, kind).take(index)

    columns = {
        "time_ns": pa.array(samples.time_ns),
        "error_ns": pa.array(samples.error_ns),
        "host": pa.array([host]).take(everywhere),
        "kind": by_counter([counter.kind for counter in counters], pa.utf8()),
        "device": by_counter([counter.device for counter in counters], pa.utf8()),
        "port": by_counter([counter.port for counter in counters], pa.int32()),
        "counter": by_counter([counter.name for counter in counters], pa.utf8()),
        "value": pa.array(samples.value, mask=samples.state != words.VALUE),
        "word": texts.take(pa.array(number, mask=~is_word)),
        "is_read": pa.array(samples.state != words.UNREADABLE),
        "source": pa.array([sampler.source]).take(everywhere),
    }
    return pa.table([columns[name] for name in schema.COUNTERS.names], schema=schema.COUNTERS)


def _samples(sampler: Sampler, rows: _Rows, counters: list[_Counter]) -> _Samples:
    most = max([0, *(counter.id for counter in counters)])
    place = np.full(most + 1, -1, dtype=np.int64)
    place[[counter.id for counter in counters]] = np.arange(len(counters))
    known = (rows.state != words.LOOKED) & (rows.counter > 0) & (rows.counter <= most)
    at = np.flatnonzero(known)
    at = at[place[rows.counter[at]] >= 0]
    of = place[rows.counter[at]]
    kind = np.uint16 if len(counters) < 2**16 else np.int64  # numpy sorts 16 bits in linear time
    order = np.argsort(of.astype(kind), kind="stable")
    at, of = at[order], of[order]
    lag_ns = np.array([counter.lag_ns for counter in counters], dtype=np.int64)[of] if counters else of
    begin, end = rows.begin_ns[at], rows.end_ns[at]
    half = (end - begin + 1) // 2
    found = _Samples(begin + half, half + lag_ns, of, rows.value[at], rows.state[at])
    return _with_looks(found, at, _looks(sampler, rows, counters), rows)


def _looks(sampler: Sampler, rows: _Rows, counters: list[_Counter]) -> list[tuple[_Numbers, _Numbers]]:
    """For each set of counters that the same looks cover: which counters, and the rows of those looks."""
    covering: dict[int, list[int]] = defaultdict(list)
    for line in sampler.of("look"):
        for first, count in line["counters"]:
            for number in range(first, first + count):
                covering[number].append(line["id"])
    sets: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for index, counter in enumerate(counters):
        sets[tuple(covering[counter.id])].append(index)
    looked = np.flatnonzero(rows.state == words.LOOKED)
    return [
        (np.array(members), looked[np.isin(rows.value[looked], np.array(looks, dtype=np.int64))])
        for looks, members in sets.items()
    ]


def _with_looks(found: _Samples, at: _Numbers, looks: list[tuple[_Numbers, _Numbers]], rows: _Rows) -> _Samples:
    """The samples with a row for each last look before the counter was found changed, and for the last look of all."""
    if not len(at):
        return found
    is_last = np.append(found.counter[1:] != found.counter[:-1], True)
    until = np.append(at[1:], 0)
    until[is_last] = np.iinfo(np.int64).max
    seen_ns = np.zeros(len(at), dtype=np.int64)
    for members, looked in looks:
        if len(looked):
            mine = np.flatnonzero(np.isin(found.counter, members))
            last = np.searchsorted(looked, until[mine]) - 1
            ends_ns = np.maximum.accumulate(rows.end_ns[looked])  # a row is extended while others come behind it
            seen_ns[mine] = np.where(last >= 0, ends_ns[last], 0)
    unchanged = np.flatnonzero(seen_ns > found.time_ns + found.error_ns)
    behind = unchanged + 1
    return _Samples(
        np.insert(found.time_ns, behind, seen_ns[unchanged]),
        np.insert(found.error_ns, behind, 0),
        *(np.insert(column, behind, column[unchanged]) for column in found[2:]),
    )


def facts_of(samplers: Iterable[Sampler]) -> list[_Line]:
    """Rows of `FACTS`."""
    return [_fact(sampler, line) for sampler in samplers for line in sampler.lines if line.get("kind") in _FACTS]


class _Form(NamedTuple):
    """How a line becomes a fact: kind, text, and which of its keys are fields."""

    kind: str
    text: str
    fields: str


_FACTS: Final = {
    "netdev": _Form("netdev_event", "{device} {went}", "device is_up is_admin_up is_gone changes error_ns"),
    "ib_port": _Form("ib_port_event", "port {port} of {device} became {state}", "device port is_up state error_ns"),
    "used": _Form("port_used", "{device} is used by the job, by {by}", "device port by"),
    "address": _Form("host_address", "this host has the address {address}", "address is_used"),
    "gap": _Form("sampler_gap", "link counters were not read for {for_ms} ms", "for_ms"),
    "unreadable": _Form("links_unreadable", "{what} cannot be read: {why}", "what why"),
    "xid": _Form("xid", "{text}", "bus_id xid"),
    "off": _Form("sampler_off", "the sampler of links stopped: {why}", "why"),
}


def _fact(sampler: Sampler, line: _Line) -> _Line:
    form = _FACTS[line["kind"]]
    fields = {name: line[name] for name in form.fields.split() if line.get(name) is not None}
    if line["kind"] == "used":
        fields["kind"] = line["of"]
    told = defaultdict(lambda: "?", {**line, "went": _went(line)})
    return {
        "time_ns": line.get("time_ns"),
        "host": sampler.host,
        "rank": None,
        "kind": "sxid" if line.get("is_switch") else form.kind,
        "text": form.text.format_map(told),
        "fields": json.dumps(fields),
        "source": f"{sampler.source}:{line['at']}",
    }


def _went(line: _Line) -> str:
    if line.get("is_gone"):
        return "is gone"
    if line.get("is_up"):
        return "has a carrier"
    return "has no carrier" if line.get("is_admin_up") else "is switched off"
