"""The step counters of the network's proxies in one stuck round, once they are shown to be of that round.

Proxies number operations by a count of their own, which is that of the collective plus one. That is checked by the
state of the collective, its name and its size: counters of another round would name an innocent link.

Source: `CTAndPTOpCountsMatch` of torchcomms for the plus one; NCCL's device code for what a ring or tree moves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from roundk.analyze.case import Case
from roundk.analyze.phrases import fold
from roundk.analyze.sources import ops
from roundk.analyze.structure.hops import Hop
from roundk.analyze.waitfor import UNTOLD_OP, StuckRound

RINGS: Final = frozenset({"all_reduce", "all_gather", "reduce_scatter"})
"""Operations in which every rank of a ring receives as many steps as it sends."""

_SAME: Final = {
    "barrier": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
}
"""What torch calls otherwise than NCCL does."""

_AHEAD: Final = 1
"""How much the proxies' count of an operation is ahead of the collective's."""

_SENT_SHARES: Final = 3
"""A rank of a tree sends all of a message up and twice down; of a ring, less than twice."""
_PACKED: Final = 2
"""NCCL's LL protocol sends a flag with every word."""
_STEP_BYTES: Final = 16 << 10
"""What a step of a small message may carry beyond it: a line of 16 bytes of each of 1,024 threads."""

_OP: Final = pl.Struct(
    {
        name: kind
        for kind, names in (
            (pl.String, ("comm", "direction", "coll")),
            (pl.Int64, ("op_count", "channel", "comm_rank", "remote_rank", "steps", "moved_bytes")),
            (pl.Int64, ("received", "transmitted", "done")),
        )
        for name in names
    }
)
_OPEN: Final = pl.Struct(
    {"comm": pl.String, "number": pl.Int64, "op": pl.String, "bytes": pl.Int64, "algorithm": pl.String}
)
_COMM: Final = pl.Struct({"comm": pl.String, "comm_rank": pl.Int64, "comm_size": pl.Int64})


@dataclass(frozen=True)
class Steps:
    """The counters of one round; ranks are global.

    Attributes:
        hops: By channel that is not through, the edges of which both ends are known.
        unknown: Members whose counters are not known, or not all of them.
        algorithm: "ring", "tree", or None where it is not told.
        op: The operation as the contract names it.
        sources: By rank, the file that has its counters.
    """

    hops: Mapping[int, tuple[Hop, ...]]
    unknown: tuple[int, ...]
    algorithm: str | None
    op: str
    sources: Mapping[int, str]


def plain_op(op: str) -> str:
    """The name of an operation that torch and NCCL have in common."""
    return _SAME.get(op.removesuffix("_coalesced"), op.removesuffix("_coalesced"))


def steps(case: Case, stuck: StuckRound) -> Steps | str | None:
    """The counters of the proxies in a round.

    Args:
        case: The case.
        stuck: A collective round that everybody entered.

    Returns:
        None where no proxy of the group's communicator left any; a text where it does and they are not of this round,
        which says why.
    """
    listed = _rows(case, "proxy_op", _OP)
    members = case.member_ranks(stuck.group)
    if listed.is_empty() or len(members) < 2:
        return None
    seen = _of_members(_rows(case, "comm", _COMM), members)
    active = listed.filter(pl.col("comm").is_in(list(seen)))
    found = [
        _joined(case, stuck, members, seen[str(name)], part)
        for (name,), part in active.group_by(["comm"], maintain_order=True)
    ]
    good = [one for one in found if isinstance(one, Steps)]
    if len(good) > 1:
        return "several communicators of these ranks have operations under way"
    return good[0] if good else next(iter(found), None)


def _rows(case: Case, kind: str, fields: pl.Struct) -> pl.DataFrame:
    """The facts of a kind with their fields as columns."""
    facts = case.trace.facts
    if facts.is_empty():
        return pl.DataFrame(schema={"rank": pl.Int32, "source": pl.String, **fields.to_schema()})
    return (
        facts.filter(pl.col("kind") == kind, pl.col("fields").is_not_null())
        .select("rank", "source", told=pl.col("fields").str.json_decode(fields))
        .unnest("told")
    )


def _of_members(comms: pl.DataFrame, members: tuple[int, ...]) -> dict[str, dict[int, str]]:
    """Communicators of just these members, with the file of each rank in them that left a dump."""
    found: dict[str, dict[int, str]] = defaultdict(dict)
    strange: set[str] = set()
    for name, number, size, rank, source in comms.select(
        "comm", "comm_rank", "comm_size", "rank", "source"
    ).iter_rows():
        if size != len(members) or number is None or number >= size or members[number] != rank:
            strange.add(name)
        else:
            found[name][number] = source
    return {name: ranks for name, ranks in found.items() if name not in strange}


def _joined(
    case: Case, stuck: StuckRound, members: tuple[int, ...], dumps: Mapping[int, str], active: pl.DataFrame
) -> Steps | str:
    opened = _rows(case, "open_collective", _OPEN).filter(pl.col("comm") == active["comm"][0])
    inside = opened.filter(pl.col("rank").is_in(stuck.inside))
    numbers = inside["number"].unique().to_list()
    if len(numbers) != 1:
        return "the dumps do not tell which of a communicator's collectives the round is"
    number = numbers[0]
    is_theirs = case.groups[stuck.group].backend == "ncclx"
    if (is_theirs and number != stuck.seq) or (opened["number"] < number).any():
        return f"the dumps' collective #{number} is not this round"
    counts = sorted(active["op_count"].drop_nulls().unique().to_list())
    count = number + _AHEAD
    if counts[:1] != [count]:
        return f"their first operation is {fold(counts[:1])}, and that of collective #{number} would be {count}"
    mine = active.filter(pl.col("op_count") == count)
    why = _misfit(stuck, inside, mine, members)
    if why is not None:
        return why
    algorithm = _algorithm(inside)
    if algorithm == "":
        return "they are of an algorithm that is neither a ring nor a tree"
    op = plain_op(ops.op_name(inside["op"][0]))
    hops, unknown = _hops(mine, members, dumps, frozenset(stuck.inside))
    sources = {members[number]: source for number, source in dumps.items()}
    return Steps(hops, unknown, algorithm, op, sources)


def _misfit(stuck: StuckRound, inside: pl.DataFrame, mine: pl.DataFrame, members: tuple[int, ...]) -> str | None:
    """Why these operations of the proxies cannot be of the collective, by its name and its size."""
    names = {plain_op(ops.op_name(name)) for name in inside["op"].unique().to_list()}
    theirs = {plain_op(ops.op_name(name)) for name in mine["coll"].drop_nulls().unique().to_list()}
    if len(names) != 1 or theirs != names:
        return f"they are of {', '.join(sorted(theirs)) or 'an unnamed operation'}, not of {', '.join(sorted(names))}"
    name = next(iter(names))
    if stuck.op != UNTOLD_OP and plain_op(stuck.op) != name:
        return f"they are of {name}, not of {stuck.op}"
    sizes = inside["bytes"].drop_nulls().unique().to_list()
    if not sizes:
        return None
    whole = max(sizes) * (len(members) if name in ("all_gather", "reduce_scatter") else 1)
    moved = mine.group_by("comm_rank", "direction").agg(
        bytes=pl.col("moved_bytes").sum(), steps=pl.max_horizontal("transmitted", "received").sum()
    )
    room = _PACKED * _SENT_SHARES * whole + _STEP_BYTES * pl.col("steps")
    if not moved.filter(pl.col("bytes") > room).is_empty():
        return f"they moved more than {name} of {whole} bytes can"
    numbers = pl.concat([mine["comm_rank"], mine["remote_rank"]])
    return "they name ranks that the group does not have" if _strange(numbers.to_list(), len(members)) else None


def _strange(numbers: Iterable[int | None], size: int) -> bool:
    return any(number is None or number >= size for number in numbers)


def _algorithm(inside: pl.DataFrame) -> str | None:
    """Ring or tree; "": something else.

    Source: `Baseline_<protocol>_<algorithm>_<channels>`, CollTrace of torchcomms.
    """
    told = {name.lower() for name in inside["algorithm"].drop_nulls().unique()}
    if not told:
        return None
    kinds = {next((kind for kind in ("ring", "tree") if kind in name.split("_")), "") for name in told}
    return kinds.pop() if len(kinds) == 1 else ""


def _hops(
    mine: pl.DataFrame, members: tuple[int, ...], dumps: Mapping[int, str], inside: frozenset[int]
) -> tuple[dict[int, tuple[Hop, ...]], tuple[int, ...]]:
    """The edges by channel, and the members of whom something is not known.

    An end that is not among the operations under way has done all its steps, where its rank told of this round at all.
    """
    ends: dict[tuple[int, int, int], dict[str, Mapping[str, Any]]] = defaultdict(dict)
    unknown = {number for number in range(len(members)) if number not in dumps}
    for row in mine.iter_rows(named=True):
        me, peer = row["comm_rank"], row["remote_rank"]
        edge = (row["channel"], *((me, peer) if row["direction"] == "send" else (peer, me)))
        if row["channel"] is None or row["direction"] in ends[edge]:
            unknown.add(me)  # several operations on one edge
        ends[edge][row["direction"]] = row
    told = set(mine["comm_rank"].to_list()) | {n for n, rank in enumerate(members) if rank not in inside}
    found: dict[int, list[Hop]] = defaultdict(list)
    for (channel, source, target), sides in ends.items():
        total = next((row["steps"] for row in sides.values() if row["steps"] is not None), None)
        sent = _counters(sides.get("send"), "transmitted", total if source in told - unknown else None)
        came = _counters(sides.get("recv"), "received", total if target in told - unknown else None)
        if total is None or sent is None or came is None:
            unknown.update(number for number, side in ((source, sent), (target, came)) if side is None)
        else:
            found[channel].append(Hop(channel, members[source], members[target], *sent, *came, total))
    return (
        {channel: tuple(hops) for channel, hops in sorted(found.items())},
        tuple(sorted(members[number] for number in unknown)),
    )


def _counters(row: Mapping[str, Any] | None, first: str, total: int | None) -> tuple[int, int] | None:
    """Steps handed over or received, and steps done; of an end that is not under way any more, all of them."""
    if row is None:
        return None if total is None else (total, total)
    return None if row[first] is None or row["done"] is None else (row[first], row["done"])
