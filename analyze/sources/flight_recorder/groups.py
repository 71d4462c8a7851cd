"""Which group an entry or a counter of a Flight Recorder dump is about: names and ids differ by rank, members decide.

Entries name their group (since torch 2.4); counters have only the number under which the process made its group. The
numbers are taken from entries, else from the group names where both count the same, else from what peers' entries say.

Source: `record_pg_ranks` and `all_pg_status_` of FlightRecorderDetail.hpp, torch 2.8 to 2.14: the status of a group is
there once it has made a call, its members once it is made. gloo of 2.13 leaves names and members empty, that of 2.14
puts the members of all groups under one empty name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from roundk.analyze.sources import ops
from roundk.analyze.sources.flight_recorder.dump import Dump
from roundk.analyze.sources.flight_recorder.entries import NONE, Vocabulary, distinct, number
from roundk.tracer import words as contract

MOST_RANK: Final = 1 << 24
"""A rank beyond this is a damaged number: no job is that large."""
DEFAULT: Final = "default_pg"
_MOST_GAPS: Final = 1024
"""Ranks without a dump for each one with: more say that a number in a file's name is no rank."""
_NUMBER: Final = re.compile(r"\d+")
_MIRROR: Final = "c10d"
"""Backend of entries that torch 2.14's `FlightRecorderHook` adds beside the backend's own."""


class Config(NamedTuple):
    """A group as a dump's head tells it; no ranks: they are not told."""

    name: str
    desc: str
    ranks: tuple[int, ...]


class Status(NamedTuple):
    """Counters of a group, as the dump has them; `NONE`: none was."""

    enqueued: int
    started: int
    completed: int


class Group(NamedTuple):
    """A group of the job; its place in the list is its key."""

    name: str
    desc: str
    ranks: tuple[int, ...]


class Groups:
    """The groups of a job, put together from its dumps.

    Attributes:
        all: The groups, by key.
        backends: Backend by key; '' where it is not known.
        with_p2p: Keys of the groups that carry sends and receives.
        guessed: Keys of the groups whose members are those that have entries of them, as no dump tells.
        world_size: Number of ranks; None where nothing tells.
        unplaced: Counters whose group is not known, by rank.
    """

    def __init__(self, dumps: Mapping[int, Dump], words: Vocabulary) -> None:
        self._dumps = dumps
        self._names = list(words.names)
        self._parse = _Members()
        self._config = {rank: dict(self._configs(dump)) for rank, dump in dumps.items()}
        self._named = {rank: _names_by_id(dump) for rank, dump in dumps.items()}
        self._status = {rank: _statuses(dump) for rank, dump in dumps.items()}
        self.all: list[Group] = []
        self.guessed: set[int] = set()
        self._keys: dict[tuple[str, tuple[int, ...]], int] = {}
        self._peers = self._told()
        self._ids = {rank: self._ids_of(rank) for rank in dumps}
        self._users = self._using()
        self._by_name = {
            rank: {code: self._key(rank, *self._names[code]) for code in _present(dump)} for rank, dump in dumps.items()
        }
        self.unplaced: Counter[int] = Counter()
        self._counters = {rank: dict(self._placed(rank)) for rank in dumps}
        for rank, config in self._config.items():
            for group in config.values():
                if group.ranks and group.name:
                    self._key(rank, group.name, group.desc)
        self.backends, self.with_p2p = self._uses(words)
        worlds = [len(group.ranks) for group in self.all if group.desc == DEFAULT]
        self.world_size = max(worlds, default=None)

    def of(self, rank: int) -> np.ndarray[Any, Any]:
        """Keys by code of the name, for the entries of a rank."""
        keys = np.full(max(len(self._names), 1), NONE, np.int32)
        for code, key in self._by_name[rank].items():
            keys[code] = key
        return keys

    def counters(self, rank: int) -> dict[int, Status]:
        """The counters that a rank's dump has, by key of the group."""
        return self._counters[rank]

    def is_stranger(self, rank: int) -> bool:
        """Whether a rank is no member of the default group that its own dump tells: its number is wrong."""
        worlds = [group.ranks for group in self._config[rank].values() if group.desc == DEFAULT and group.ranks]
        return bool(worlds) and all(rank not in ranks for ranks in worlds)

    def _configs(self, dump: Dump) -> Iterator[tuple[str, Config]]:
        config = (dump.head or {}).get("pg_config")
        for key, group in config.items() if isinstance(config, dict) else ():
            if isinstance(group, dict):
                name, desc = group.get("name", key), group.get("desc", "")
                ranks = self._parse(group.get("ranks"))
                if isinstance(name, str):
                    yield name, Config(name, desc if isinstance(desc, str) and desc != "undefined" else "", ranks)
            elif isinstance(group, list):  # torch 2.3
                yield str(key), Config(str(key), DEFAULT if number(key) == 0 else "", self._parse(group))

    def _told(self) -> dict[str, set[Config]]:
        """The groups that any dump tells the members of, by name."""
        found: dict[str, set[Config]] = {}
        for config in self._config.values():
            for group in config.values():
                if group.ranks and group.name:
                    found.setdefault(group.name, set()).add(group)
        return found

    def _ids_of(self, rank: int) -> dict[int, str]:
        """Group names by the number of the group in the process."""
        by_entries = {pg_id: self._names[code][0] for pg_id, code in self._named[rank].items()}
        numbers, names = sorted(self._status[rank]), list(self._config[rank])
        worlds = [name for name, of in self._config[rank].items() if of.desc == DEFAULT and name]
        if len(worlds) == 1:
            by_entries.setdefault(0, worlds[0])  # a process makes the default group first
        if len(numbers) != len(names) or not all(name.isascii() and name.isdigit() for name in names):
            return by_entries
        zipped = dict(zip(numbers, sorted(names, key=lambda name: (len(name), name)), strict=True))
        if any(zipped.get(pg_id, name) != name for pg_id, name in by_entries.items()):
            return by_entries
        return zipped | by_entries

    def _using(self) -> dict[tuple[str, str], set[int]]:
        """The ranks that have entries of a group, or counters of it by a peer's numbers."""
        users: dict[tuple[str, str], set[int]] = {}
        for rank, dump in self._dumps.items():
            for code in _present(dump):
                users.setdefault(self._names[code], set()).add(rank)
        if not self._peers:  # gloo: numbers are all that is left to a rank without entries
            for pg_id, codes in self._peer_names().items():
                if len(codes) == 1:
                    with_it = (rank for rank, status in self._status.items() if pg_id in status)
                    users[self._names[next(iter(codes))]].update(with_it)
        return users

    def _peer_names(self) -> dict[int, set[int]]:
        found: dict[int, set[int]] = {}
        for named in self._named.values():
            for pg_id, code in named.items():
                found.setdefault(pg_id, set()).add(code)
        return found

    def _placed(self, rank: int) -> Iterator[tuple[int, Status]]:
        by_peers = self._peer_names()
        for pg_id, status in self._status[rank].items():
            name = self._ids[rank].get(pg_id)
            if name is None:
                name = self._by_desc(rank, {self._names[code] for code in by_peers.get(pg_id, ())})
            if name is None:
                self.unplaced[rank] += 1
                continue
            desc = next((desc for one, desc in self._names if one == name), "")
            yield self._key(rank, name, desc), status

    def _by_desc(self, rank: int, peers: set[tuple[str, str]]) -> str | None:
        """A group of this rank's by what its peers call the group of that number."""
        descs = {desc for _, desc in peers}
        own = [name for name, group in self._config[rank].items() if group.name and group.desc in descs]
        if len(descs) == 1 and len(own) == 1:
            return own[0]
        return next(iter(peers))[0] if len(peers) == 1 and not self._peers else None

    def _key(self, rank: int, name: str, desc: str) -> int:
        own = self._config[rank].get(name)
        if own is None or not own.ranks or not name:
            told = [group for group in self._peers.get(name, ()) if rank in group.ranks]
            own = told[0] if len({group.ranks for group in told}) == 1 else None
        is_guessed = own is None
        if own is None:
            own = Config(name, desc, self._guess(rank, name, desc))
        key = self._keys.get((name, own.ranks))
        if key is None:
            key = self._keys[name, own.ranks] = len(self.all)
            self.all.append(Group(name, own.desc or desc, own.ranks))
            if is_guessed:
                self.guessed.add(key)
        return key

    def _guess(self, rank: int, name: str, desc: str) -> tuple[int, ...]:
        users = self._users.get((name, desc), set()) | {rank}
        highest = max(self._dumps)
        if desc == DEFAULT and highest <= _MOST_GAPS * len(self._dumps):
            return tuple(range(highest + 1))  # it is of all ranks, and they are numbered from 0
        return tuple(sorted(users))

    def _uses(self, words: Vocabulary) -> tuple[list[str], set[int]]:
        spelled = [ops.spelled(name) for name in words.ops]
        backends = [""] * len(self.all)
        with_p2p: set[int] = set()
        for rank, dump in self._dumps.items():
            for name, op, is_p2p in distinct(dump.rows, "name", "op", "is_p2p"):
                key = self._by_name[rank][name]
                if spelled[op].backend != _MIRROR:
                    backends[key] = backends[key] or spelled[op].backend
                if is_p2p or spelled[op].op in contract.P2P:
                    with_p2p.add(key)
        seen = set(backends) - {""}
        only = next(iter(seen)) if len(seen) == 1 else ""
        return [backend or only for backend in backends], with_p2p


class _Members:
    """Reads member lists; those of a job are many and alike, and long."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, ...]] = {}

    def __call__(self, value: Any) -> tuple[int, ...]:
        if isinstance(value, str):
            if value not in self._known:
                self._known[value] = _checked([int(digits) for digits in _NUMBER.findall(value) if len(digits) < 10])
            return self._known[value]
        return _checked([number(one) for one in value]) if isinstance(value, list) else ()


def _checked(ranks: list[int]) -> tuple[int, ...]:
    return tuple(ranks) if all(0 <= rank <= MOST_RANK for rank in ranks) and len(set(ranks)) == len(ranks) else ()


def _present(dump: Dump) -> list[int]:
    return [code for (code,) in distinct(dump.rows, "name")]


def _names_by_id(dump: Dump) -> dict[int, int]:
    """Codes of the group names by the number of the group in the process, where each has one."""
    pairs = distinct(dump.rows, "pg_id", "name")
    counts = Counter(pg_id for pg_id, _ in pairs)
    return {pg_id: code for pg_id, code in pairs if counts[pg_id] == 1 and pg_id != NONE}


def _statuses(dump: Dump) -> dict[int, Status]:
    status = (dump.head or {}).get("pg_status")
    found = {}
    for key, counters in status.items() if isinstance(status, dict) else ():
        if (group := number(key)) != NONE and isinstance(counters, dict):
            found[group] = Status(*(number(counters.get(f"last_{what}_collective")) for what in Status._fields))
    return found
