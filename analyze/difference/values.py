"""Who in a run has which value of a setting, a version, an MTU: one value, or one with exceptions, or one per rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from roundk.analyze.phrases import fold, number_of

_MOST_VALUES: Final = 3
"""Values shown with who has them; the rest are counted."""
_MOST_HOSTS: Final = 3
_MOST_BY_RANK: Final = 4
NOT_SET: Final = "not set"


@dataclass(frozen=True)
class Values:
    """Who has which value.

    Attributes:
        by: Who has it, by value: ranks, or names of hosts. None: it is not set there.
        hosts: Host of each rank, where known.
    """

    by: Mapping[str | None, frozenset[int | str]]
    hosts: Mapping[int, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.by)

    @classmethod
    def of(cls, pairs: Iterable[tuple[str | None, int | str]], hosts: Mapping[int, str] | None = None) -> Values:
        """From pairs of a value and who has it."""
        found: dict[str | None, set[int | str]] = {}
        for value, who in pairs:
            found.setdefault(value, set()).add(who)
        return cls({value: frozenset(of) for value, of in found.items()}, hosts or {})

    @cached_property
    def _sets(self) -> dict[str, frozenset[str | None]]:
        """The values of each host."""
        found: dict[str, set[str | None]] = {}
        for value, members in self.by.items():
            for who in members:
                host = who if isinstance(who, str) else self.hosts.get(who)
                if host is not None:
                    found.setdefault(host, set()).add(value)
        return {host: frozenset(values) for host, values in found.items()}

    @property
    def _size(self) -> int:
        return sum(map(len, self.by.values()))

    @property
    def is_by_rank(self) -> bool:
        """Each rank of a host has its own, in the same way on all hosts, as CUDA_VISIBLE_DEVICES may have."""
        kinds = set(self._sets.values())
        if len(self.by) < 2 or len(kinds) != 1:
            return False
        return len(self._sets) > 1 or all(len(members) == 1 for members in self.by.values())

    @property
    def usual(self) -> str | None:
        """The value that most have; of several the first by its text."""
        return min(self.by, key=lambda value: (-len(self.by[value]), value or ""))

    @property
    def is_mixed(self) -> bool:
        """Some hosts or ranks have another value than the rest, and not by plan."""
        return len(self.by) > 1 and not self.is_by_rank

    @property
    def odd_hosts(self) -> frozenset[str]:
        """Hosts that have another value than most."""
        if not self.is_mixed:
            return frozenset()
        return frozenset(host for host, values in self._sets.items() if values != {self.usual})

    def is_as(self, other: Values) -> bool:
        """The same values; as many of each where the runs are as large, else the same one as the usual one."""
        if set(self.by) != set(other.by):
            return False
        if self.is_by_rank and other.is_by_rank:
            return True
        if self._size == other._size:
            return all(len(members) == len(other.by[value]) for value, members in self.by.items())
        return self.usual == other.usual

    def among(self, other: Values) -> Values:
        """The values of those of whom the other run tells too."""
        there = frozenset().union(*other.by.values())
        kept = {value: members & there for value, members in self.by.items() if members & there}
        return Values(kept, self.hosts)

    @property
    def text(self) -> str:
        """`22`; `22 on 31 hosts, 18 on host7`; `0, 1, 2, 3, ... by rank`."""
        if len(self.by) == 1:
            return _word(next(iter(self.by)))
        if self.is_by_rank and self._size > _MOST_VALUES:
            words = sorted((_word(value) for value in self.by), key=lambda word: (len(word), word))
            more = ", ..." if len(words) > _MOST_BY_RANK else ""
            return f"{', '.join(words[:_MOST_BY_RANK])}{more} by rank"
        by = self._by_host() or {value: sorted(members, key=str) for value, members in self.by.items()}
        ordered = sorted(by, key=lambda value: (-len(by[value]), value or ""))
        pieces = [
            f"{_word(value)} on {_members(by[value], is_first=not at)}"
            for at, value in enumerate(ordered[:_MOST_VALUES])
        ]
        left = len(ordered) - _MOST_VALUES
        return ", ".join(pieces) + (f" and {number_of(left, 'more value')}" if left > 0 else "")

    def _by_host(self) -> dict[str | None, list[int | str]] | None:
        """Hosts by value; None where ranks of one host differ, or where it is not known who is where."""
        if len(self._sets) < 2 or any(len(values) > 1 for values in self._sets.values()):
            return None
        found: dict[str | None, list[int | str]] = {}
        for host, values in sorted(self._sets.items()):
            found.setdefault(next(iter(values)), []).append(host)
        return found if len(found) == len(self.by) else None


def _word(value: str | None) -> str:
    return NOT_SET if value is None else value or "''"


def _members(members: list[int | str], *, is_first: bool) -> str:
    hosts = [who for who in members if isinstance(who, str)]
    if not hosts:
        ranks = [who for who in members if isinstance(who, int)]
        if is_first and len(ranks) > 1:
            return number_of(len(ranks), "rank")
        return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {fold(ranks, limit=4)}"
    if len(hosts) > (1 if is_first else _MOST_HOSTS):
        return number_of(len(hosts), "host")
    return ", ".join(hosts)
