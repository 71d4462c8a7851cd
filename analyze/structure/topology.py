"""The rings and trees of a group's communicator, and what a set of ranks is in them: an arc, a subtree."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from roundk.analyze.case import Case
from roundk.analyze.told import short_host

CHANCE: Final = 0.05
"""Odds below which ranks that lie side by side in one of several rings do not do so by chance."""

MOST_CHANNELS: Final = 64
"""Channels of a communicator that are looked at. Source: NCCL, device.h, MAXCHANNELS (64 since 2.24)."""

_NET: Final = "NET/"


@dataclass(frozen=True)
class End:
    """One end of an edge: whose it is, and by what it goes.

    Attributes:
        host: Host without its domain; None: not told.
        device: Network device by its name; None: not told, or the edge stays inside a host.
        source: File and line that tell.
    """

    host: str | None = None
    device: str | None = None
    source: str = ""


@dataclass(frozen=True)
class Topology:
    """How the members of a group are connected; ranks are global.

    Attributes:
        rings: Of each channel whose whole ring is known, the ranks in the order in which data flows.
        trees: Of each channel whose whole tree is known, the parent of every rank but the root.
        ends: By channel, sender, receiver and side ("send" or "recv"), the end of an edge.
    """

    rings: Mapping[int, tuple[int, ...]]
    trees: Mapping[int, Mapping[int, int]]
    ends: Mapping[tuple[int, int, int, str], End]


@dataclass(frozen=True)
class Arc:
    """A run of ranks that lie side by side in a ring; `before` sends to its first, its last to `behind`."""

    ranks: tuple[int, ...]
    before: int
    behind: int


def arc(ring: Sequence[int], ranks: Iterable[int]) -> Arc | None:
    """The ranks as one run of a ring, in its order; None where they are several runs, none of it or all of it."""
    wanted = set(ranks)
    size = len(ring)
    if not wanted or len(wanted) >= size or not wanted.issubset(ring):
        return None
    heads = [at for at, rank in enumerate(ring) if rank in wanted and ring[at - 1] not in wanted]
    if len(heads) != 1:
        return None
    head = heads[0]
    run = tuple(ring[(head + step) % size] for step in range(len(wanted)))
    return Arc(run, ring[head - 1], ring[(head + len(run)) % size])


def arcs(rings: Mapping[int, Sequence[int]], ranks: Iterable[int]) -> dict[int, Arc]:
    """By channel, the ranks as one run; empty where that holds for few of the rings and may be chance."""
    wanted = set(ranks)
    found = {channel: run for channel, ring in rings.items() if (run := arc(ring, wanted)) is not None}
    if not found:
        return {}
    size = len(next(iter(found.values())).ranks)
    members = max(len(ring) for ring in rings.values())
    odds = len(rings) * members / math.comb(members, size)
    return found if 2 * len(found) > len(rings) or odds < CHANCE else {}


def branch(parents: Mapping[int, int], ranks: Iterable[int]) -> int | None:
    """The rank, not the root, that is with all below it just these ranks; None where there is none."""
    wanted = set(ranks)
    tops = [rank for rank in wanted if parents.get(rank) not in wanted]
    return tops[0] if len(tops) == 1 and tops[0] in parents and subtree(parents, tops[0]) == wanted else None


def subtree(parents: Mapping[int, int], top: int) -> frozenset[int]:
    """A rank and everybody below it."""
    below: dict[int, list[int]] = defaultdict(list)
    for child, parent in parents.items():
        below[parent].append(child)
    found, todo = {top}, [top]
    while todo:
        for child in below[todo.pop()]:
            if child not in found:
                found.add(child)
                todo.append(child)
    return frozenset(found)


def topology(case: Case, group: int) -> Topology | None:
    """How the members of a group are connected, by the channels of the communicator that has just these members.

    Args:
        case: The case.
        group: Key of the group.

    Returns:
        None where no communicator has the group's members, or several do and are connected in different ways.
    """
    members = case.member_ranks(group)
    channels = case.trace.channels
    if len(members) < 2 or channels.is_empty():
        return None
    near = channels.filter(pl.col("shape").is_in(["ring", "tree"]), pl.col("channel") < MOST_CHANNELS)
    found = [
        one
        for (_,), part in near.group_by(["comm"], maintain_order=True)
        if _is_of(part, members) and (one := _of_comm(part, members)) is not None
    ]
    shapes = {(tuple(one.rings.items()), tuple((c, tuple(t.items())) for c, t in one.trees.items())) for one in found}
    return found[0] if len(shapes) == 1 else None


def _is_of(part: pl.DataFrame, members: tuple[int, ...]) -> bool:
    """The communicator has as many ranks as the group, and whoever is known in it is the member of that number."""
    numbers = part.select(highest=pl.max_horizontal(pl.col("comm_rank").max(), pl.col("peer").max()))["highest"][0]
    if numbers != len(members) - 1:
        return False
    known = part.select("comm_rank", "rank").drop_nulls().unique()
    return all(members[number] == rank for number, rank in known.iter_rows())


def _of_comm(part: pl.DataFrame, members: tuple[int, ...]) -> Topology | None:
    following: dict[int, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    above: dict[int, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    ends: dict[tuple[int, int, int, str], End] = {}
    for row in part.iter_rows(named=True):
        me, peer, channel = members[row["comm_rank"]], members[row["peer"]], row["channel"]
        direction = row["direction"]
        if row["shape"] == "ring" and direction in ("send", "recv"):
            source, target = (me, peer) if direction == "send" else (peer, me)
            following[channel][source].add(target)
        elif direction in ("parent", "child"):
            child, parent = (me, peer) if direction == "parent" else (peer, me)
            above[channel][child].add(parent)
        for key in _sides(channel, me, peer, direction):
            end = _end(row)
            if end.device is not None or key not in ends:
                ends[key] = end
    rings = {c: ring for c, edges in sorted(following.items()) if (ring := _ring(edges, members)) is not None}
    trees = {c: tree for c, edges in sorted(above.items()) if (tree := _tree(edges, members)) is not None}
    return Topology(rings, trees, ends) if rings or trees else None


def _sides(channel: int, me: int, peer: int, direction: str) -> Iterator[tuple[int, int, int, str]]:
    """Keys of `Topology.ends`: an edge of a tree is used both ways."""
    if direction != "recv":
        yield channel, me, peer, "send"
    if direction != "send":
        yield channel, peer, me, "recv"


def _end(row: Mapping[str, Any]) -> End:
    transport, device = row["transport"], row["device"]
    named = device if transport and transport.startswith(_NET) and device and not device.isdigit() else None
    return End(short_host(row["host"]), named, row["source"])


def _ring(following: Mapping[int, set[int]], members: tuple[int, ...]) -> tuple[int, ...] | None:
    """The ring that leads once through all members."""
    order = [members[0]]
    while len(order) <= len(members):
        after = following.get(order[-1], set())
        if len(after) != 1:
            return None
        rank = next(iter(after))
        if rank == order[0]:
            break
        order.append(rank)
    return tuple(order) if len(order) == len(members) and set(order) == set(members) else None


def _tree(above: Mapping[int, set[int]], members: tuple[int, ...]) -> dict[int, int] | None:
    """The parents of all but one member, who is above all others."""
    if any(len(parents) != 1 for parents in above.values()):
        return None
    parents = {child: next(iter(of)) for child, of in sorted(above.items())}
    roots = [rank for rank in members if rank not in parents]
    if len(roots) != 1 or len(subtree(parents, roots[0])) != len(members):
        return None
    return parents
