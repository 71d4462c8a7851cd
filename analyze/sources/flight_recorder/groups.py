"""Which group an entry or a counter of a Flight Recorder dump is about: names and ids differ by rank, members decide.

Entries name their group (since torch 2.4); counters have only the number under which the process made its group. The
numbers are taken from entries, else from the group names where both count the same, else from what peers' entries say.

Source: `record_pg_ranks` and `all_pg_status_` of FlightRecorderDetail.hpp, torch 2.8 to 2.14: the status of a group is
there once it has made a call, its members once it is made. gloo of 2.13 leaves names and members empty, that of 2.14
puts the members of all groups under one empty name.
"""

from __future__ import annotations

import functools
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
        self._descs: dict[str, str] = {}
        for name, desc in words.names:
            self._descs.setdefault(name, desc)
        self._members = _Members()
        self._config = {rank: dict(self._configs(dump)) for rank, dump in dumps.items()}
        self._uses = {rank: distinct(dump.rows, "pg_id", "name", "op", "is_p2p") for rank, dump in dumps.items()}
        self._present = {rank: sorted({name for _, name, _, _ in uses}) for rank, uses in self._uses.items()}
        self._named = {rank: _names_by_id(uses) for rank, uses in self._uses.items()}
        self._status = {rank: _statuses(dump) for rank, dump in dumps.items()}
        self.all: list[Group] = []
        self.guessed: set[int] = set()
        self._keys: dict[tuple[str, int], int] = {}
        self._peers = self._told()
        self._ids = {rank: self._ids_of(rank) for rank in dumps}
        self._by_peers = self._peer_names()
        self._users = self._using()
        self._guesses: dict[tuple[str, str], tuple[int, ...]] = {}
        # gloo of torch 2.14 tells members without a name; a rank without a dump is among them.
        nameless = [max(group.ranks) for config in self._config.values() for group in config.values() if group.ranks]
        self._highest = max([*dumps, *nameless], default=0)
        self._by_name = {
            rank: {code: self._key(rank, *self._names[code]) for code in present}
            for rank, present in self._present.items()
        }
        self.unplaced: Counter[int] = Counter()
        self._counters = {rank: dict(self._placed(rank)) for rank in dumps}
        for rank, config in self._config.items():
            for group in config.values():
                if group.ranks and group.name:
                    self._key(rank, group.name, group.desc)
        self.backends, self.with_p2p = self._used(words)
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

    def enqueued(self, rank: int) -> int:
        """Calls that a rank has made in all groups, by its counters, those of groups not told included."""
        return sum(max(status.enqueued, 0) for status in self._status[rank].values())

    def is_stranger(self, rank: int) -> bool:
        """Whether a rank is no member of the default group that its own dump tells: its number is wrong."""
        worlds = [group.ranks for group in self._config[rank].values() if group.desc == DEFAULT and group.ranks]
        return bool(worlds) and not any(self._members.has(ranks, rank) for ranks in worlds)

    def _configs(self, dump: Dump) -> Iterator[tuple[str, Config]]:
        config = (dump.head or {}).get("pg_config")
        for key, group in config.items() if isinstance(config, dict) else ():
            if isinstance(group, dict):
                name, desc = group.get("name", key), group.get("desc", "")
                ranks = self._members.read(group.get("ranks"))
                if isinstance(name, str):
                    yield name, Config(name, desc if isinstance(desc, str) and desc != "undefined" else "", ranks)
            elif isinstance(group, list):  # torch 2.3
                yield str(key), Config(str(key), DEFAULT if number(key) == 0 else "", self._members.read(group))

    def _told(self) -> dict[str, list[tuple[int, ...]]]:
        """The member lists that dumps tell of a group, by its name."""
        found: dict[str, dict[int, tuple[int, ...]]] = {}
        for config in self._config.values():
            for group in config.values():
                if group.ranks and group.name:
                    found.setdefault(group.name, {})[id(group.ranks)] = group.ranks
        return {name: list(lists.values()) for name, lists in found.items()}

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
        for rank, present in self._present.items():
            for code in present:
                users.setdefault(self._names[code], set()).add(rank)
        if not self._peers:  # gloo: numbers are all that is left to a rank without entries
            for pg_id, codes in self._by_peers.items():
                if len(codes) == 1:
                    with_it = (rank for rank, status in self._status.items() if pg_id in status)
                    users[self._names[next(iter(codes))]].update(with_it)
        return users

    def _peer_names(self) -> dict[int, set[int]]:
        """Codes of the names that entries of any rank give to the group of a number."""
        found: dict[int, set[int]] = {}
        for named in self._named.values():
            for pg_id, code in named.items():
                found.setdefault(pg_id, set()).add(code)
        return found

    def _placed(self, rank: int) -> Iterator[tuple[int, Status]]:
        for pg_id, status in self._status[rank].items():
            name = self._ids[rank].get(pg_id)
            if name is None:
                name = self._by_desc(rank, pg_id)
            if name is None:
                self.unplaced[rank] += 1
                continue
            yield self._key(rank, name, self._descs.get(name, "")), status

    @functools.cached_property
    def _desc_by_peers(self) -> dict[int, str]:
        """What all peers alike call the group of a number."""
        descs = {pg_id: {self._names[code][1] for code in codes} for pg_id, codes in self._by_peers.items()}
        return {pg_id: next(iter(told)) for pg_id, told in descs.items() if len(told) == 1}

    def _by_desc(self, rank: int, pg_id: int) -> str | None:
        """A group of this rank's by what its peers call the group of that number."""
        desc, peers = self._desc_by_peers.get(pg_id), self._by_peers.get(pg_id, ())
        own = [name for name, group in self._config[rank].items() if group.name and group.desc == desc]
        if len(own) == 1:
            return own[0]
        return self._names[next(iter(peers))][0] if len(peers) == 1 and not self._peers else None

    def _key(self, rank: int, name: str, desc: str) -> int:
        own = self._config[rank].get(name)
        if own is None or not own.ranks or not name:
            told = [ranks for ranks in self._peers.get(name, ()) if self._members.has(ranks, rank)]
            own = Config(name, desc, told[0]) if len(told) == 1 else None
        is_guessed = own is None
        if own is None:
            own = Config(name, desc, self._guess(rank, name, desc))
        key = self._keys.get((name, id(own.ranks)))  # there is one list of the same members
        if key is None:
            key = self._keys[name, id(own.ranks)] = len(self.all)
            self.all.append(Group(name, own.desc or desc, own.ranks))
            if is_guessed:
                self.guessed.add(key)
        return key

    def _guess(self, rank: int, name: str, desc: str) -> tuple[int, ...]:
        users = self._users.get((name, desc), set())
        is_of_all = desc == DEFAULT and self._highest <= _MOST_GAPS * len(self._dumps)
        if rank not in users and not is_of_all:
            return self._members.one(tuple(sorted(users | {rank})))
        if (name, desc) not in self._guesses:
            # The default group is of all ranks, and they are numbered from 0.
            guess = tuple(range(self._highest + 1)) if is_of_all else tuple(sorted(users))
            self._guesses[name, desc] = self._members.one(guess)
        return self._guesses[name, desc]

    def _used(self, words: Vocabulary) -> tuple[list[str], set[int]]:
        spelled = [ops.spelled(name) for name in words.ops]
        backends = [""] * len(self.all)
        with_p2p: set[int] = set()
        for rank, uses in self._uses.items():
            for _, name, op, is_p2p in uses:
                key = self._by_name[rank][name]
                if spelled[op].backend != _MIRROR:
                    backends[key] = backends[key] or spelled[op].backend
                if is_p2p or spelled[op].op in contract.P2P:
                    with_p2p.add(key)
        seen = set(backends) - {""}
        only = next(iter(seen)) if len(seen) == 1 else ""
        return [backend or only for backend in backends], with_p2p


class _Members:
    """Member lists; those of a job are many and alike, and long: of each there is one, and its identity tells it."""

    def __init__(self) -> None:
        self._by_text: dict[str, tuple[int, ...]] = {}
        self._lists: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._sets: dict[int, frozenset[int]] = {}

    def read(self, value: Any) -> tuple[int, ...]:
        """The members that a dump tells, as text or as a list; none where they make no sense."""
        if isinstance(value, str):
            if value not in self._by_text:
                numbers = [int(digits) for digits in _NUMBER.findall(value) if len(digits) < 10]
                self._by_text[value] = self.one(_checked(numbers))
            return self._by_text[value]
        return self.one(_checked([number(one) for one in value])) if isinstance(value, list) else ()

    def one(self, ranks: tuple[int, ...]) -> tuple[int, ...]:
        """The one list of these members."""
        return self._lists.setdefault(ranks, ranks)

    def has(self, ranks: tuple[int, ...], rank: int) -> bool:
        """Whether a rank is in one of these lists."""
        if id(ranks) not in self._sets:
            self._sets[id(ranks)] = frozenset(ranks)
        return rank in self._sets[id(ranks)]


def _checked(ranks: list[int]) -> tuple[int, ...]:
    return tuple(ranks) if all(0 <= rank <= MOST_RANK for rank in ranks) and len(set(ranks)) == len(ranks) else ()


def _names_by_id(uses: list[tuple[int, ...]]) -> dict[int, int]:
    """Codes of the group names by the number of the group in the process, where each has one."""
    pairs = {(pg_id, name) for pg_id, name, _, _ in uses}
    counts = Counter(pg_id for pg_id, _ in pairs)
    return {pg_id: code for pg_id, code in sorted(pairs) if counts[pg_id] == 1 and pg_id != NONE}


def _statuses(dump: Dump) -> dict[int, Status]:
    status = (dump.head or {}).get("pg_status")
    found = {}
    for key, counters in status.items() if isinstance(status, dict) else ():
        if (group := number(key)) != NONE and isinstance(counters, dict):
            found[group] = Status(*(number(counters.get(f"last_{what}_collective")) for what in Status._fields))
    return found
