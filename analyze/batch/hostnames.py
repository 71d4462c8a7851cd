"""Host names that mean the same host: `node1` and `node1.cluster.local`."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable


def short(name: str) -> str:
    """The name without its domain; an address is no name and stays whole."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name.partition(".")[0] or name
    return name


def alike(names: Iterable[str]) -> dict[str, str]:
    """One name for each host: the short one where only one domain goes with it, else the name as it is."""
    groups: dict[str, set[str]] = {}
    for name in names:
        groups.setdefault(short(name), set()).add(name)
    made = {}
    for stem, group in groups.items():
        whole = group - {stem}
        for name in group:
            made[name] = stem if stem in group and len(whole) <= 1 else name
    return made


def match(names: Iterable[str], others: Iterable[str]) -> dict[str, str]:
    """Of each name the one among others that means the same host; left out where none does, or several may."""
    there = set(others)
    stems: dict[str, set[str]] = {}
    for other in there:
        stems.setdefault(short(other), set()).add(other)
    mine = set(names)
    own: dict[str, set[str]] = {}
    for name in mine:
        own.setdefault(short(name), set()).add(name)
    made = {}
    for name in mine:
        stem = short(name)
        found = stems.get(stem, set())
        if name in there:
            made[name] = name
        # Two whole names with different domains are two hosts.
        elif len(found) == 1 and len(own[stem]) == 1 and stem in (name, *found):
            made[name] = next(iter(found))
    return made
