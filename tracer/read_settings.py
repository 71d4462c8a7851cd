"""From what processes tell of their settings and versions to `FACTS`: one fact per distinct value, not one per rank.

Facts: `setting` (name; value, null: it is not set there; ranks: `[first, last]` of each run of them) and `version`
(name, value; ranks, or of what a whole host shares: hosts). Names of settings are variables, and the recorder's own
options with their dashes: where these are told, so are all variables that `environment.PREFIXES` lets through. Older
recordings tell only the variables by which ports are chosen.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from roundk.tracer.read_tables import Process

_Line = dict[str, Any]

_MOST_VALUES: Final = 256
"""Of one name that are kept apart: more are a number of its own on every rank, such as a port or a file."""
_OTHERS: Final = "(other values)"
_OF_HEADER: Final = ("python", "torch")
_MASTER: Final = "MASTER_ADDR"
"""Says where the job runs, not how."""


def facts_of(processes: Collection[Process], launchers: Iterable[tuple[str, Sequence[_Line]]]) -> list[_Line]:
    """Rows of `FACTS`.

    Args:
        processes: The ranks' processes.
        launchers: Name and lines of each launcher's file.
    """
    settings, versions, sources = _Told(), _Told(), {}
    complete = []
    for process in processes:
        line = next(iter(process.of("environment")), None)
        sources[process.rank] = f"{process.source}:{(line or process.header).get('at', 1)}"
        for name in _OF_HEADER:
            versions.add(name, process.header.get(name), process.rank)
        if line is None:
            told = process.header.get("network") or {}
            settings.add_all({name: value for name, value in told.items() if name != _MASTER}, process.rank)
        else:
            complete.append(process.rank)
            settings.add_all(line.get("settings") or {}, process.rank)
            settings.add_all(line.get("recorder") or {}, process.rank)
            versions.add_all(line.get("versions") or {}, process.rank)
    settings.complete(complete)
    rows = [_of_ranks("setting", name, value, ranks, sources) for name, value, ranks in settings.rows()]
    rows += [_of_ranks("version", name, value, ranks, sources) for name, value, ranks in versions.rows()]
    return rows + _of_hosts(launchers)


class _Told:
    """Values by name, and which ranks have them."""

    def __init__(self) -> None:
        self._ranks: dict[str, dict[str | None, list[int]]] = defaultdict(lambda: defaultdict(list))

    def add(self, name: str, value: object, rank: int) -> None:
        """Take in what a rank has."""
        if value is None:
            return
        values = self._ranks[name]
        text = str(value)
        values[text if text in values or len(values) < _MOST_VALUES else _OTHERS].append(rank)

    def add_all(self, told: dict[str, Any], rank: int) -> None:
        """The same of many names."""
        for name, value in told.items():
            self.add(name, value, rank)

    def complete(self, ranks: list[int]) -> None:
        """These ranks tell all that they have: what only others have is not set on them."""
        for values in self._ranks.values():
            lacking = set(ranks).difference(*values.values())
            if lacking:
                values[None] = sorted(lacking)

    def rows(self) -> Iterable[tuple[str, str | None, list[int]]]:
        """Name, value and ranks, by name."""
        return ((name, value, ranks) for name, values in sorted(self._ranks.items()) for value, ranks in values.items())


def _of_ranks(kind: str, name: str, value: str | None, ranks: list[int], sources: dict[int, str]) -> _Line:
    fields = {"name": name, "value": value, "ranks": _runs(sorted(ranks))}
    return _fact(kind, fields, f"{len(ranks)} rank{'s' * (len(ranks) > 1)}", sources[min(ranks)])


def _of_hosts(launchers: Iterable[tuple[str, Sequence[_Line]]]) -> list[_Line]:
    hosts: dict[tuple[str, str], set[str]] = defaultdict(set)
    sources: dict[tuple[str, str], str] = {}
    for source, lines in launchers:
        for line in lines:
            for name, value in (line.get("versions") or {}).items() if line.get("kind") == "start" else ():
                hosts[name, str(value)].add(source.split("/")[0])
                sources.setdefault((name, str(value)), f"{source}:{line['at']}")
    return [
        _fact(
            "version",
            {"name": name, "value": value, "hosts": sorted(of)},
            f"{len(of)} host{'s' * (len(of) > 1)}",
            sources[name, value],
        )
        for (name, value), of in sorted(hosts.items())
    ]


def _fact(kind: str, fields: _Line, where: str, source: str) -> _Line:
    said = "is not set" if fields["value"] is None else f"is {fields['value']}"
    return {
        "time_ns": None,
        "host": None,
        "rank": None,
        "kind": kind,
        # A side file may hold what was no UTF-8, which no table takes.
        "text": f"{fields['name']} {said} on {where}".encode(errors="backslashreplace").decode(),
        "fields": json.dumps(fields),
        "source": source,
    }


def _runs(ranks: list[int]) -> list[list[int]]:
    """Sorted ranks as `[first, last]` of each run."""
    found: list[list[int]] = []
    for rank in ranks:
        if found and found[-1][1] + 1 == rank:
            found[-1][1] = rank
        else:
            found.append([rank, rank])
    return found
