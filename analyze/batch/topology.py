"""Where hosts and their network ports stand: a file of host, device, rack, rail, plane, as the user keeps it."""

from __future__ import annotations

import csv
import enum
import functools
import os
import pathlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import polars as pl

from roundk.analyze.batch import hostnames
from roundk.tracer.errors import RoundkError


class Kind(enum.StrEnum):
    """What units share a fate; the smaller first."""

    PORT = "port"
    HOST = "host"
    RACK = "rack"
    RAIL = "rail"
    PLANE = "plane"


PLACES: Final = (Kind.RACK, Kind.RAIL, Kind.PLANE)

_COLUMNS: Final = ("host", "device", *PLACES)
_PARQUET: Final = b"PAR1"
_PARQUETS: Final = (".parquet", ".pq")
"""A damaged file is none that begins as it should."""


class TopologyError(RoundkError):
    """A topology file that cannot be used."""


@dataclass(frozen=True)
class Entry:
    """A row of the file.

    Attributes:
        host: As written.
        device: Its network device; None: this is said of the whole host.
        port: Number of the device's port, where told (`mlx5_3/1`).
        places: Rack, rail and plane, those told.
        line: Where it stands, for messages.
    """

    host: str
    device: str | None
    port: int | None
    places: Mapping[Kind, str]
    line: int


@dataclass(frozen=True)
class Topology:
    """What a file says of hosts and their devices."""

    source: str
    entries: tuple[Entry, ...]

    @functools.cached_property
    def by_host(self) -> Mapping[str, tuple[Entry, ...]]:
        """Entries of each host."""
        made: dict[str, list[Entry]] = {}
        for entry in self.entries:
            made.setdefault(entry.host, []).append(entry)
        return {host: tuple(entries) for host, entries in made.items()}


def _each_once(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """The ports of a host, each once: a row that is written twice, or with and without the port, is no other port."""
    ports: dict[tuple[str | None, int | None], Entry] = {}
    for entry in entries:
        key = (entry.device, entry.port)
        ports[key] = replace(entry, places={**ports[key].places, **entry.places}) if key in ports else entry
    made: dict[tuple[str | None, int | None], Entry] = {}
    for key, entry in ports.items():
        whole = ports.get((entry.device, None))
        # What is said of the device holds for its ports, unless a port's own row says something else.
        made[key] = entry if whole is None else replace(entry, places={**whole.places, **entry.places})
    alike = {(device, frozenset(entry.places.items())) for (device, port), entry in made.items() if port is not None}
    # In another place than each of its ports with a number, it stands for further ones.
    return tuple(
        entry
        for (device, port), entry in made.items()
        if port is not None or not any(one == device and entry.places.items() <= places for one, places in alike)
    )


class Placed:
    """A topology as seen from the hosts of a table, whatever way either writes their names."""

    def __init__(self, topology: Topology | None, hosts: Iterable[str]) -> None:
        names = set(hosts)
        entries = {} if topology is None else topology.by_host
        self._names = hostnames.match(names, entries)
        self._entries = {name: entries[other] for name, other in self._names.items()}
        self._ports = {name: _each_once(of) for name, of in self._entries.items()}
        self.missing: tuple[str, ...] = () if topology is None else tuple(sorted(names - set(self._names)))
        self.hosts = len(entries)
        self.kinds: tuple[Kind, ...] = tuple(
            kind for kind in PLACES if any(kind in entry.places for of in self._entries.values() for entry in of)
        )
        self._found: dict[tuple[Kind, str, str | None, int | None], str | None] = {}
        self._labels: dict[tuple[Kind, str], Counter[str]] = {}

    def devices(self, host: str) -> set[tuple[str, int | None]]:
        """Devices and ports of a host that the file names."""
        return {(entry.device, entry.port) for entry in self._ports.get(host, ()) if entry.device is not None}

    def label(self, kind: Kind, host: str, device: str | None = None, port: int | None = None) -> str | None:
        """The rack, rail or plane in which a port, or a whole host, lies; None: not told, or in several."""
        key = (kind, host, device, port)
        if key not in self._found:
            self._found[key] = self._label(*key)
        return self._found[key]

    def labels(self, kind: Kind, host: str) -> Counter[str]:
        """The racks, rails or planes of a host, each with how many of its devices lie there."""
        key = (kind, host)
        if key not in self._labels:
            told = [entry for entry in self._ports.get(host, ()) if kind in entry.places]
            closer = [entry for entry in told if entry.device is not None]
            if kind is Kind.RACK:
                self._labels[key] = Counter({entry.places[kind]: 1 for entry in told})
            else:
                self._labels[key] = Counter(entry.places[kind] for entry in closer or told)
        return self._labels[key]

    def _label(self, kind: Kind, host: str, device: str | None, port: int | None) -> str | None:
        told = [entry for entry in self._entries.get(host, ()) if kind in entry.places]
        if kind is not Kind.RACK and device is not None:
            own = [entry for entry in told if entry.device == device]
            exact = [entry for entry in own if entry.port == port] or [entry for entry in own if entry.port is None]
            whole = [entry for entry in told if entry.device is None]
            told = exact or (own if port is None else []) or whole or told
        found = {entry.places[kind] for entry in told}
        return found.pop() if len(found) == 1 else None


def read(path: str | os.PathLike[str]) -> Topology:
    """The topology that a file holds.

    The file is CSV or Parquet with a column `host` and any of `device`, `rack`, `rail`, `plane`. A row without a device
    is about all of its host.

    Args:
        path: The file.

    Raises:
        TopologyError: It cannot be read, says nothing of places, or contradicts itself.
    """
    where = pathlib.Path(path)
    try:
        with where.open("rb") as file:
            is_parquet = file.read(len(_PARQUET)) == _PARQUET or where.suffix.lower() in _PARQUETS
        rows = list(_parquet(where) if is_parquet else _csv(where))
    except OSError as error:
        raise TopologyError(f"{where}: cannot be read: {error.strerror or error}") from error
    except pl.exceptions.PolarsError as error:
        raise TopologyError(f"{where}: no Parquet file that can be read: {str(error).splitlines()[0]}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise TopologyError(f"{where}: no CSV text: {error}") from error
    entries = tuple(_entry(where, line, row) for line, row in rows)
    if not entries:
        raise TopologyError(f"{where}: holds no row below its head; a row per host or device is needed")
    _agree(where, entries)
    return Topology(str(where), entries)


def _csv(where: pathlib.Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with where.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, skipinitialspace=True, strict=True)
        heads = None
        for cells in reader:
            if not any(cell.strip() for cell in cells) or cells[0].startswith("#"):
                continue
            if heads is None:
                heads = [cell.strip().lower() for cell in cells]
                _heads(where, reader.line_num, heads)
                continue
            if len(cells) != len(heads):
                raise TopologyError(
                    f"{where}, line {reader.line_num}: {len(cells)} fields, and the head has {len(heads)}"
                )
            yield reader.line_num, dict(zip(heads, cells, strict=True))
    if heads is None:
        raise TopologyError(f"{where}: is empty; its first line has to name the columns: {','.join(_COLUMNS)}")


def _parquet(where: pathlib.Path) -> Iterator[tuple[int, dict[str, Any]]]:
    table = pl.read_parquet(where)
    _heads(where, 0, table.columns)
    yield from enumerate(table.iter_rows(named=True), 1)


def _heads(where: pathlib.Path, line: int, heads: list[str]) -> None:
    at = f"{where}, line {line}" if line else str(where)
    if "host" not in heads:
        raise TopologyError(f"{at}: no column `host`; the columns are: {', '.join(heads)}")
    if not set(PLACES) & set(heads):
        raise TopologyError(f"{at}: none of the columns rack, rail, plane; the columns are: {', '.join(heads)}")
    twice = [head for head, count in Counter(heads).items() if count > 1 and head in _COLUMNS]
    if twice:
        raise TopologyError(f"{at}: column `{twice[0]}` stands there twice")


def _entry(where: pathlib.Path, line: int, row: Mapping[str, Any]) -> Entry:
    cells = {name: "" if row.get(name) is None else str(row[name]).strip() for name in _COLUMNS}
    if not cells["host"]:
        raise TopologyError(f"{where}, line {line}: no host")
    device, _, port = cells["device"].partition("/")
    if port and not port.isdecimal():
        raise TopologyError(f"{where}, line {line}: device `{cells['device']}`: the port behind the / is no number")
    places = {kind: cells[kind] for kind in PLACES if cells[kind]}
    return Entry(cells["host"], device or None, int(port) if port else None, places, line)


def _agree(where: pathlib.Path, entries: Iterable[Entry]) -> None:
    seen: dict[tuple[Kind, str, str | None, int | None], Entry] = {}
    for entry in entries:
        for kind, value in entry.places.items():
            of_host = kind is Kind.RACK or entry.device is None
            key = (kind, entry.host, None, None) if of_host else (kind, entry.host, entry.device, entry.port)
            other = seen.setdefault(key, entry)
            if other.places[kind] == value:
                continue
            what = entry.host if of_host else f"{entry.host} {entry.device}"
            hint = (
                "; a column `device` tells which of its ports lies where" if of_host and kind is not Kind.RACK else ""
            )
            raise TopologyError(
                f"{where}, line {entry.line}: {what} is in {kind} {value}, and in {kind} {other.places[kind]} by line "
                f"{other.line}{hint}"
            )
