"""Who takes part: world size, hosts, which rank is where, process groups, and the command that was run."""

from __future__ import annotations

import difflib
from collections import Counter
from typing import Any, Final

import polars as pl

from roundk.analyze.difference.found import NOTHING, Found, Topic
from roundk.analyze.difference.run import Run
from roundk.analyze.phrases import fold, number_of, ranks_text

_MOST_HOSTS: Final = 6
_MOST_MOVED: Final = 3
_MOST_SIZES: Final = 3


def hosts(a: Run, b: Run, found: Found) -> None:
    """Compare on which hosts two runs ran, and which ranks were where.

    Args:
        a: One run.
        b: The other one.
        found: Takes what is found.
    """
    topic = Topic.HOSTS
    on_a, on_b = set(a.hosts.values()), set(b.hosts.values())
    if not on_a or not on_b:
        found.is_untold(topic, "hosts", a=not on_a, b=not on_b)
        return
    gone, new, kept = sorted(on_a - on_b), sorted(on_b - on_a), on_a & on_b
    if gone or new:
        found.texts(topic, "only in one", _listed(gone, on_a), _listed(new, on_b), [*gone, *new])
    else:
        found.is_same(topic, number_of(len(kept), "host"))
    if a.trace.world_size != b.trace.world_size or not kept:
        return  # other ranks are there in any case
    ranks_a, ranks_b = _by_host(a), _by_host(b)
    moved = sorted(host for host in kept if ranks_a[host] != ranks_b[host])
    if not moved:
        found.is_same(topic, "ranks of each host" if not gone and not new else "ranks of the hosts of both")
        return
    found.texts(topic, "ranks of a host", _placed(moved, ranks_a), _placed(moved, ranks_b), moved)


def _placed(hosts: list[str], ranks: dict[str, list[int]]) -> str:
    shown = "; ".join(f"{host}: {fold(ranks[host], limit=4)}" for host in hosts[:_MOST_MOVED])
    left = len(hosts) - _MOST_MOVED
    return shown + (f" and {number_of(left, 'more host')}" if left > 0 else "")


def _listed(only: list[str], every: set[str]) -> str:
    if not only:
        return NOTHING
    if len(only) == len(every) and len(only) > _MOST_HOSTS:
        return f"all {len(only):,}: {_some(only)}"
    return _some(only)


def _some(hosts: list[str]) -> str:
    left = len(hosts) - _MOST_HOSTS
    return ", ".join(hosts[:_MOST_HOSTS]) + (f" and {left:,} more" if left > 0 else "")


def _by_host(run: Run) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for rank, host in sorted(run.hosts.items()):
        found.setdefault(host, []).append(rank)
    return found


def groups(a: Run, b: Run, found: Found) -> None:
    """Compare world size and process groups; groups of one description, or of one name, are compared together.

    Args:
        a: One run.
        b: The other one.
        found: Takes what is found.
    """
    topic = Topic.GROUPS
    sizes = [run.trace.world_size for run in (a, b)]
    if None in sizes:
        found.is_untold(topic, "world size", a=sizes[0] is None, b=sizes[1] is None)
    else:
        found.texts(topic, "world size", *(number_of(size or 0, "rank") for size in sizes))
    of_a, of_b = _kinds(a), _kinds(b)
    if not of_a or not of_b:
        found.is_untold(topic, "process groups", a=not of_a, b=not of_b)
        return
    for label in dict.fromkeys([*of_a, *of_b]):
        row_a, row_b = of_a.get(label), of_b.get(label)
        if row_a is None or row_b is None:
            found.texts(topic, label, *(NOTHING if row is None else _shape(row) for row in (row_a, row_b)))
            continue
        said = (_shape(row_a), _shape(row_b))
        # A log may not tell the backend.
        if "" in (row_a["backend"], row_b["backend"]):
            said = (_shape(row_a, with_backend=False), _shape(row_b, with_backend=False))
        found.texts(topic, label, *said)
        if said[0] == said[1] and sizes[0] == sizes[1]:
            _members(label, row_a, row_b, found)


def _kinds(run: Run) -> dict[str, dict[str, Any]]:
    """Groups of one label: their members, and the backends they have."""
    kinds = run.groups.group_by("label", maintain_order=True).agg(
        members=pl.col("ranks"), backend=pl.col("backend").unique().sort().str.join("/")
    )
    return {row["label"]: row for row in kinds.iter_rows(named=True)}


def _shape(row: dict[str, Any], *, with_backend: bool = True) -> str:
    """`32 groups of 8 ranks, nccl`."""
    counts = sorted(Counter(len(set(ranks)) for ranks in row["members"]).items(), key=lambda one: (-one[1], one[0]))
    pieces = [f"{number_of(count, 'group')} of {number_of(size, 'rank')}" for size, count in counts[:_MOST_SIZES]]
    pieces += ["..."] if len(counts) > _MOST_SIZES else []
    pieces += [row["backend"]] if with_backend and row["backend"] else []
    return ", ".join(pieces)


def _members(label: str, a: dict[str, Any], b: dict[str, Any], found: Found) -> None:
    of_a, of_b = ({tuple(ranks) for ranks in row["members"]} for row in (a, b))
    only_a, only_b = sorted(of_a - of_b), sorted(of_b - of_a)
    if only_a and only_b:
        found.texts(Topic.GROUPS, f"members, {label}", *(_example(only) for only in (only_a, only_b)))


def _example(only: list[tuple[int, ...]]) -> str:
    more = f"; and {len(only) - 1:,} more" if len(only) > 1 else ""
    ranks = only[0]
    ordered = (
        ranks_text(ranks) if list(ranks) == sorted(ranks) else f"ranks {', '.join(map(str, ranks[:8]))} so ordered"
    )
    return f"{ordered}{more}"


def command(a: Run, b: Run, found: Found) -> None:
    """Compare the commands of two runs, word by word.

    Args:
        a: One run.
        b: The other one.
        found: Takes what is found.
    """
    of_a, of_b = a.trace.command, b.trace.command
    if not of_a or not of_b:
        found.is_untold(Topic.COMMAND, "command line", a=not of_a, b=not of_b)
        return
    if of_a == of_b:
        found.is_same(Topic.COMMAND, "command line")
        return
    matcher = difflib.SequenceMatcher(None, of_a, of_b, autojunk=False)
    for way, a1, a2, b1, b2 in matcher.get_opcodes():
        if way != "equal":
            before = of_a[a1 - 1] if a1 and of_a[a1 - 1].startswith("-") else ""
            words = [" ".join([before, *of]).strip() for of in (of_a[a1:a2], of_b[b1:b2])]
            texts = [NOTHING if not of else said for of, said in zip((of_a[a1:a2], of_b[b1:b2]), words, strict=True)]
            found.texts(Topic.COMMAND, "command line", *texts)
