"""Who waits for whom: ranks, the rounds they are stuck in, and the ranks those rounds lack.

A round is a node of its own between the ranks inside and the ranks that are missing. So the graph has one edge per
stuck call and one per absence, however large the group, instead of one per pair of ranks.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from roundk.analyze.calls import served
from roundk.analyze.case import LATE_FLOOR_NS, Case
from roundk.analyze.control import DESTROY
from roundk.analyze.scc import components


@dataclass(frozen=True)
class StuckRound:
    """A collective round or a send-receive pair in which somebody hangs or failed.

    Attributes:
        pair: Sender (None: any source) and receiver of a p2p pair; None for a collective.
        inside: Ranks that hang in it or failed.
        entered: All ranks that entered it before anybody gave up.
        missing: Members that did not enter it, or only long after, when somebody had given up.
        unsure: Members of whom the recording cannot tell.
        onset_ns: When the first member entered; None: no member's time is recorded.
    """

    group: int
    seq: int
    op: str
    pair: tuple[int | None, int] | None
    inside: tuple[int, ...]
    entered: tuple[int, ...]
    missing: tuple[int, ...]
    unsure: tuple[int, ...]
    onset_ns: int | None
    site: int | None

    @property
    def order(self) -> tuple[bool, int, int, int]:
        """By what rounds are put in order: the onset, those without one last, then group and seq."""
        return (self.onset_ns is None, self.onset_ns or 0, self.group, self.seq)

    @property
    def from_any(self) -> bool:
        """It waits for one of several ranks, and nothing says for which."""
        return self.pair is not None and self.pair[0] is None and len(self.missing) + len(self.unsure) > 1


@dataclass(frozen=True)
class WaitFor:
    """The wait-for graph. Nodes 0..len(ranks)-1 are ranks, the following ones are rounds."""

    ranks: tuple[int, ...]
    rounds: tuple[StuckRound, ...]
    edges: tuple[tuple[int, ...], ...]

    @functools.cached_property
    def _components(self) -> list[list[int]]:
        return components(self.edges)

    @functools.cached_property
    def _sinks(self) -> list[list[int]]:
        """Components that point to no other one and that something points to."""
        home = {node: number for number, component in enumerate(self._components) for node in component}
        pointed = {home[to] for node, row in enumerate(self.edges) for to in row if home[to] != home[node]}
        return [
            component
            for number, component in enumerate(self._components)
            if all(home[to] == number for node in component for to in self.edges[node])
            and (number in pointed or len(component) > 1 or component[0] >= len(self.ranks))
        ]

    @functools.cached_property
    def absent(self) -> tuple[int, ...]:
        """Ranks that others wait for and that wait for nobody; who waits for any source waits for none of them."""
        single = (component[0] for component in self._sinks if len(component) == 1)
        wanted = {rank for r in self.rounds if not r.from_any for rank in r.missing}
        return tuple(sorted(wanted.intersection(self.ranks[node] for node in single if node < len(self.ranks))))

    @functools.cached_property
    def unanswered(self) -> tuple[StuckRound, ...]:
        """Receives from any source that nobody can still answer or is waiting to answer, by onset."""
        idle = {rank for rank, row in zip(self.ranks, self.edges, strict=False) if not row}
        found = [r for r in self.rounds if r.from_any and idle.issuperset(r.missing)]
        return tuple(sorted(found, key=lambda r: r.order))

    @functools.cached_property
    def full_rounds(self) -> tuple[StuckRound, ...]:
        """Stuck rounds that lack nobody, by onset."""
        single = (component[0] - len(self.ranks) for component in self._sinks if len(component) == 1)
        return tuple(sorted((self.rounds[n] for n in single if n >= 0), key=lambda r: r.order))

    @functools.cached_property
    def cycles(self) -> tuple[tuple[tuple[int, ...], tuple[StuckRound, ...]], ...]:
        """Components in which everybody waits for everybody: their ranks and their rounds."""
        count = len(self.ranks)
        return tuple(
            (
                tuple(sorted(self.ranks[node] for node in component if node < count)),
                tuple(self.rounds[node - count] for node in sorted(component) if node >= count),
            )
            for component in self._sinks
            if len(component) > 1
        )

    def lacking(self, ranks: Iterable[int]) -> list[StuckRound]:
        """The stuck rounds that lack one of these ranks for certain, by onset."""
        wanted = set(ranks)
        found = [r for r in self.rounds if not r.from_any and wanted.intersection(r.missing)]
        return sorted(found, key=lambda r: r.order)

    def victims(self, ranks: Iterable[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """All ranks that wait for these, directly or through others, and the groups in which they do."""
        back: dict[int, list[int]] = defaultdict(list)
        for node, row in enumerate(self.edges):
            for to in row:
                back[to].append(node)
        at = {rank: node for node, rank in enumerate(self.ranks)}
        todo = [at[rank] for rank in ranks if rank in at]
        seen = set(todo)
        start = frozenset(todo)
        while todo:
            for node in back[todo.pop()]:
                if node not in seen:
                    seen.add(node)
                    todo.append(node)
        count = len(self.ranks)
        waiting = tuple(sorted(self.ranks[n] for n in seen - start if n < count))
        return waiting, tuple(sorted({self.rounds[n - count].group for n in seen if n >= count}))


def wait_for(case: Case, gone: Iterable[int] = ()) -> WaitFor:
    """The wait-for graph of a case.

    Args:
        case: The case.
        gone: Ranks whose recording is incomplete and that are known to have ended first all the same.
    """
    rounds = tuple(_settled(stuck, frozenset(gone)) for stuck in (*_collective_rounds(case), *_pairs(case)))
    ranks = tuple(sorted({rank for r in rounds for rank in (*r.inside, *r.missing)}))
    at = {rank: node for node, rank in enumerate(ranks)}
    edges: list[list[int]] = [[] for _ in range(len(ranks) + len(rounds))]
    wanted = {rank for r in rounds if r.op != DESTROY for rank in r.missing}
    for number, stuck in enumerate(rounds, start=len(ranks)):
        for rank in stuck.inside:
            # Who destroys its groups while others wait for it elsewhere is not held up: it has left them.
            if stuck.op != DESTROY or rank not in wanted:
                edges[at[rank]].append(number)
        edges[number].extend(at[rank] for rank in stuck.missing)
    return WaitFor(ranks=ranks, rounds=rounds, edges=tuple(tuple(row) for row in edges))


def _settled(stuck: StuckRound, gone: frozenset[int]) -> StuckRound:
    """A stuck round without those of whom the recording cannot tell but their end does."""
    absent = gone.intersection(stuck.unsure)
    if not absent:
        return stuck
    return replace(
        stuck,
        missing=tuple(sorted({*stuck.missing, *absent})),
        unsure=tuple(rank for rank in stuck.unsure if rank not in absent),
    )


def stuck_text(case: Case, stuck: StuckRound) -> str:
    """Where it hangs, in a sentence: `all_reduce #5 of group tp (train.py:42)`, `recv #2 from rank 1 to rank 0`."""
    if stuck.pair is None:
        return case.round_text(stuck.group, stuck.seq, stuck.op, stuck.site)
    source, target = stuck.pair
    between = "from any source" if source is None else f"from rank {source} to rank {target}"
    return f"{stuck.op} #{stuck.seq} {between}{case.at_site(stuck.site)}"


def stuck_calls(case: Case, stuck: StuckRound) -> pl.DataFrame:
    """The calls of all who entered it."""
    if stuck.pair is None:
        return case.round_calls(stuck.group, stuck.seq)
    source, target = stuck.pair
    side = pl.col("src").eq_missing(pl.lit(source, dtype=pl.Int32)) & (pl.col("dst") == target)
    return case.calls.filter(pl.col("p2p"), pl.col("group") == stuck.group, pl.col("seq") == stuck.seq, side)


def _collective_rounds(case: Case) -> list[StuckRound]:
    blocked = case.blocked.filter(~pl.col("p2p"))
    if blocked.is_empty():
        return []
    keys = ["group", "seq"]
    inside = (
        blocked.sort("enter_ns", "rank", nulls_last=True)
        .group_by(keys)
        .agg(inside=pl.col("rank"), op=pl.col("op").cast(pl.String).first())
    )
    # Who wakes up after its peers have given up enters a round that is over. Within a moment, though, one failure is
    # the echo of another.
    gave_up = pl.col("end_ns").filter(pl.col("outcome") == "failed").min()
    slept = pl.col("enter_ns") - pl.col("enter_ns").min() > LATE_FLOOR_NS
    late = ((pl.col("enter_ns") > gave_up) & slept).fill_null(value=False)
    entered = (
        case.calls.filter(~pl.col("p2p"))
        .join(inside.select(keys), on=keys, how="semi")
        .sort("enter_ns", "rank", nulls_last=True)
        .group_by(keys)
        .agg(
            entered=pl.col("rank").filter(~late),
            late=pl.col("rank").filter(late),
            onset_ns=pl.col("enter_ns").first(),
            site=pl.col("site").first(),
        )
    )
    absent = (
        inside.select(keys)
        .join(case.frontier, on="group")
        .filter(pl.col("last_entered") < pl.col("seq"))
        .sort("rank")
        .group_by(keys)
        .agg(missing=pl.col("rank").filter("sure"), unsure=pl.col("rank").filter(~pl.col("sure")))
    )
    table = inside.join(entered, on=keys).join(absent, on=keys, how="left").sort("onset_ns", *keys, nulls_last=True)
    return [
        StuckRound(
            group=row["group"],
            seq=row["seq"],
            op=row["op"],
            pair=None,
            inside=tuple(sorted(set(row["inside"]) - set(row["late"]))),
            entered=tuple(sorted(row["entered"])),
            missing=tuple(sorted({*(row["missing"] or ()), *row["late"]})),
            unsure=tuple(row["unsure"] or ()),
            onset_ns=row["onset_ns"],
            site=row["site"],
        )
        for row in table.iter_rows(named=True)
    ]


def _pairs(case: Case) -> list[StuckRound]:
    """Send-receive pairs, and receives from any source."""
    blocked = case.blocked.filter(pl.col("p2p"))
    if blocked.is_empty():
        return []
    named = blocked.filter(pl.col("peer").is_not_null())
    return [*_directed(case, named), *_from_any(case, blocked.filter(pl.col("peer").is_null()))]


def _from_any(case: Case, blocked: pl.DataFrame) -> list[StuckRound]:
    """The first receive of each rank that waits for whoever sends."""
    first = blocked.sort("enter_ns", "seq", nulls_last=True).group_by("group", "rank", maintain_order=True).first()
    return [_receive(case, row) for row in first.iter_rows(named=True)]


def _receive(case: Case, row: dict[str, Any]) -> StuckRound:
    group, rank = row["group"], row["rank"]
    others = [other for other in case.member_ranks(group) if other != rank]
    return StuckRound(
        group=group,
        seq=row["seq"],
        op=str(row["op"]),
        pair=(None, rank),
        inside=(rank,),
        entered=(rank,),
        missing=tuple(other for other in others if _sure(case, group, other)),
        unsure=tuple(other for other in others if not _sure(case, group, other)),
        onset_ns=row["enter_ns"],
        site=row["site"],
    )


def _directed(case: Case, blocked: pl.DataFrame) -> list[StuckRound]:
    """Pairs of which both sides are named."""
    keys = ["group", "src", "dst", "seq"]
    p2p = case.calls.filter(pl.col("p2p"))
    sides = (
        p2p.join(blocked.select(keys).unique(), on=keys, how="semi")
        .group_by(keys)
        .agg(entered=pl.col("rank").unique().sort())
    )
    taken = set(served(p2p.lazy()).collect().iter_rows())
    table = (
        blocked.sort("enter_ns", "rank", nulls_last=True)
        .group_by(keys)
        .agg(
            inside=pl.col("rank").unique().sort(),
            op=pl.col("op").cast(pl.String).first(),
            onset_ns=pl.col("enter_ns").first(),
            site=pl.col("site").first(),
        )
        .join(sides, on=keys)
        .sort("onset_ns", *keys, nulls_last=True)
    )
    return [_pair(case, row, taken) for row in table.iter_rows(named=True)]


def _pair(case: Case, row: dict[str, Any], taken: set[tuple[Any, ...]]) -> StuckRound:
    group, src, dst = row["group"], row["src"], row["dst"]
    entered = {*row["entered"], *((dst,) if row["op"] == "send" and (group, dst) in taken else ())}
    absent = tuple(rank for rank in (src, dst) if rank not in entered)
    blind = {rank for rank in absent if not _sure(case, group, rank)}
    return StuckRound(
        group=group,
        seq=row["seq"],
        op=row["op"],
        pair=(src, dst),
        inside=tuple(row["inside"]),
        entered=tuple(sorted(entered)),
        missing=tuple(rank for rank in absent if rank not in blind),
        unsure=tuple(sorted(blind)),
        onset_ns=row["onset_ns"],
        site=row["site"],
    )


def _sure(case: Case, group: int, rank: int) -> bool:
    row = case.frontier.filter(pl.col("group") == group, pl.col("rank") == rank)
    return row.is_empty() or bool(row["sure"][0])
