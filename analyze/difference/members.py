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
    # Of a rank whose host nobody tells it may be any.
    unsure_a, unsure_b = bool(new) and not _tells_all_hosts(a), bool(gone) and not _tells_all_hosts(b)
    if unsure_b:
        found.is_untold(topic, _named(gone), a=False, b=True)
        gone = []
    if unsure_a:
        found.is_untold(topic, _named(new), a=True, b=False)
        new = []
    if gone or new:
        found.texts(topic, "only in one", _listed(gone, on_a), _listed(new, on_b), [*gone, *new])
    elif kept:
        found.is_same(topic, number_of(len(kept), "host"))
    if a.trace.world_size != b.trace.world_size or not kept:
        return  # other ranks are there in any case
    ranks_a, ranks_b = _by_host(a), _by_host(b)
    moved = sorted(host for host in kept if _moved(ranks_a[host], ranks_b[host], a, b))
    if not moved:
        found.is_same(topic, "ranks of each host" if on_a == on_b else "ranks of the hosts of both")
        return
    found.texts(topic, "ranks of a host", _placed(moved, ranks_a), _placed(moved, ranks_b), moved)


def _tells_all_hosts(run: Run) -> bool:
    return run.world_size is not None and len(run.hosts) >= run.world_size


def _named(hosts: list[str]) -> str:
    return f"{'host' if len(hosts) == 1 else 'hosts'} {_some(hosts)}"


def _moved(in_a: list[int], in_b: list[int], a: Run, b: Run) -> bool:
    """Ranks of a host are known to be on another one in the other run."""
    return any(rank in b.hosts for rank in set(in_a) - set(in_b)) or any(
        rank in a.hosts for rank in set(in_b) - set(in_a)
    )


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
    sizes = [run.world_size for run in (a, b)]
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
            _of_one(label, row_a, row_b, (a, b), found)
            continue
        said = (_shape(row_a), _shape(row_b))
        # A log may not tell the backend.
        if "" in (row_a["backend"], row_b["backend"]):
            said = (_shape(row_a, with_backend=False), _shape(row_b, with_backend=False))
        # Who has calls is not all who are in it; and a file that could not be read may have told of more groups.
        is_unsure = [not run.trace.members_told or topic in lost for run, lost in zip((a, b), found.lost, strict=True)]
        if any(is_unsure) and said[0] != said[1]:
            found.is_untold(topic, f"members of {label}", a=is_unsure[0], b=is_unsure[1])
            continue
        found.texts(topic, label, *said)
        if said[0] == said[1] and a.trace.world_size == b.trace.world_size and not any(is_unsure):
            _members(label, row_a, row_b, found)


def _of_one(
    label: str, in_a: dict[str, Any] | None, in_b: dict[str, Any] | None, runs: tuple[Run, Run], found: Found
) -> None:
    """A group that only one run tells of; where no call of its members is recorded in the other, it may be there."""
    row, other = (in_a, runs[1]) if in_a is not None else (in_b, runs[0])
    members = {rank for ranks in row["members"] for rank in ranks} if row is not None else set()
    if other.may_have(members):
        found.is_untold(Topic.GROUPS, label, a=other is runs[0], b=other is runs[1])
    else:
        found.texts(Topic.GROUPS, label, *(NOTHING if one is None else _shape(one) for one in (in_a, in_b)))


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
