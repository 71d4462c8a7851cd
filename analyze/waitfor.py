"""Who waits for whom: ranks, the rounds they are stuck in, and the ranks those rounds lack.

A round is a node of its own between the ranks inside and the ranks that are missing. So the graph has one edge per
stuck call and one per absence, however large the group, instead of one per pair of ranks.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

import polars as pl

from roundk.analyze.calls import served
from roundk.analyze.case import LATE_FLOOR_NS, Case
from roundk.analyze.control import DESTROY
from roundk.analyze.scc import components
from roundk.analyze.streams import Behind, Key, behind, units

UNTOLD_OP: Final = "call"
"""What stands for an operation of which only a counter tells."""


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
    def key(self) -> Key:
        """What tells it from other rounds."""
        return (self.group, self.seq, *(self.pair or (None, None)))

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
    behind: tuple[Behind, ...] = ()
    """Rounds that are held up on the device of a member by a call of another round."""

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

    def circle(self, rounds: Iterable[StuckRound]) -> tuple[StuckRound, ...]:
        """The shortest circle through the earliest of the rounds of a component of `cycles`, in its order."""
        count = len(self.ranks)
        number = {r.key: count + n for n, r in enumerate(self.rounds)}
        inside = {number[r.key] for r in rounds}
        start = number[min(rounds, key=lambda r: r.order).key]
        came: dict[int, int] = {}
        todo = [start]
        for node in todo:
            for to in self.edges[node]:
                if to not in came and (to < count or to in inside):
                    came[to] = node
                    todo.append(to)
        path = [came[start]]
        while path[-1] != start:
            path.append(came[path[-1]])
        return tuple(self.rounds[node - count] for node in reversed(path) if node >= count)

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


def wait_for(case: Case, gone: Iterable[int] = (), dead: Iterable[int] = ()) -> WaitFor:
    """The wait-for graph of a case.

    Args:
        case: The case.
        gone: Ranks whose recording is incomplete and that are known to have ended first all the same.
        dead: Ranks that ended by themselves before anybody gave up: they wait for nobody any more.
    """
    rounds = _without_held_up(case, [_settled(stuck, frozenset(gone)) for stuck in _open_rounds(case)])
    ranks = tuple(sorted({rank for r in rounds for rank in (*r.inside, *r.missing)}))
    at = {rank: node for node, rank in enumerate(ranks)}
    edges: list[list[int]] = [[] for _ in range(len(ranks) + len(rounds))]
    wanted = {rank for r in rounds if r.op != DESTROY for rank in r.missing}
    ended = wanted.intersection(dead)
    for number, stuck in enumerate(rounds, start=len(ranks)):
        for rank in stuck.inside:
            # Who destroys its groups while others wait for it elsewhere is not held up: it has left them.
            if rank not in ended and (stuck.op != DESTROY or rank not in wanted):
                edges[at[rank]].append(number)
        edges[number].extend(at[rank] for rank in stuck.missing)
    held = behind(case, {r.key: number for number, r in enumerate(rounds)})
    for one in held:
        edges[len(ranks) + one.round].append(len(ranks) + one.front)
    return WaitFor(ranks=ranks, rounds=rounds, edges=tuple(tuple(row) for row in edges), behind=tuple(held))


def _without_held_up(case: Case, rounds: list[StuckRound]) -> tuple[StuckRound, ...]:
    """The rounds without messages that both sides are in and that only wait for others of the same batch."""
    number = {stuck.key: n for n, stuck in enumerate(rounds)}
    held: dict[int, set[int]] = defaultdict(set)
    for rank, mine in units(case, number).items() if any(stuck.pair for stuck in rounds) else ():
        for unit in mine:
            lacking = {n for n in unit.rounds if rounds[n].missing or rounds[n].unsure}
            for n in set(unit.rounds) - lacking if lacking else ():
                held[n].add(rank)
    left = (replace(s, inside=tuple(r for r in s.inside if r not in held[n])) for n, s in enumerate(rounds))
    return tuple(stuck for stuck in left if stuck.inside)


def _open_rounds(case: Case) -> list[StuckRound]:
    return [*_collective_rounds(case), *_counted_rounds(case), *_pairs(case)]


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


def _counted_rounds(case: Case) -> list[StuckRound]:
    """The first round of each group that is open by the counters of its members alone: no dump holds a call of it."""
    told = case.frontier.filter("told")
    shown = case.blocked.filter(~pl.col("p2p"))["group"].unique()
    hanging = (
        told.filter(~pl.col("group").is_in(shown.to_list()))
        .group_by("group")
        .agg(
            caught=(pl.col("last_entered") > pl.col("last_completed")).any(),
            least=pl.col("last_completed").min(),
            apart=pl.col("last_completed").max() - pl.col("last_completed").min(),
        )
        # Where completions lie further apart, the counters number sends and receives too.
        .filter("caught", pl.col("apart") <= 1)
    )
    found: list[StuckRound] = []
    for group, _, least, _ in hanging.sort("group").iter_rows():
        seq = least + 1
        reach = case.frontier.filter(pl.col("group") == group)
        inside = reach.filter((pl.col("last_entered") >= seq) & (pl.col("last_completed") < seq))["rank"]
        entered = reach.filter(pl.col("last_entered") >= seq)["rank"]
        absent = reach.filter(pl.col("last_entered") < seq)
        found.append(
            StuckRound(
                group=group,
                seq=seq,
                op=UNTOLD_OP,
                pair=None,
                inside=tuple(inside.to_list()),
                entered=tuple(entered.to_list()),
                missing=tuple(absent.filter("sure")["rank"].to_list()),
                unsure=tuple(absent.filter(~pl.col("sure"))["rank"].to_list()),
                onset_ns=None,
                site=None,
            )
        )
    return [stuck for stuck in found if stuck.inside]


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
    calls = case.calls_of(inside)
    entered = (
        calls.sort("enter_ns", "rank", nulls_last=True)
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
    # Who is in it by its counters alone: its dump does not hold the call.
    counted = (
        inside.select(keys)
        .join(case.frontier.filter("told"), on="group")
        .filter(pl.col("last_entered") >= pl.col("seq"))
        .join(calls.select(*keys, "rank"), on=[*keys, "rank"], how="anti")
        .group_by(keys)
        .agg(counted=pl.col("rank"), caught=pl.col("rank").filter(pl.col("last_completed") < pl.col("seq")))
    )
    table = (
        inside.join(entered, on=keys)
        .join(absent, on=keys, how="left")
        .join(counted, on=keys, how="left")
        .sort("onset_ns", *keys, nulls_last=True)
    )
    return [
        StuckRound(
            group=row["group"],
            seq=row["seq"],
            op=row["op"],
            pair=None,
            inside=tuple(sorted({*row["inside"], *(row["caught"] or ())} - set(row["late"]))),
            entered=tuple(sorted({*row["entered"], *(row["counted"] or ())})),
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
    sight = _Sight(case)
    named = blocked.filter(pl.col("peer").is_not_null())
    return [*_directed(case, named, sight), *_from_any(case, blocked.filter(pl.col("peer").is_null()), sight)]


class _Sight:
    """Of whom can be told that a send or a receive was not made."""

    def __init__(self, case: Case) -> None:
        reach = case.frontier.filter(pl.col("lost"))
        self._lost = set(reach.select("group", "rank").iter_rows())
        ranks = case.trace.ranks
        # Counters, which make up for calls that are lost elsewhere, do not tell one peer from another.
        self._torn = set(ranks.filter(pl.col("data") == "truncated")["rank"].to_list())
        cut = ranks.filter(pl.col("first_call").fill_null(1) > 1).select("rank")
        kept = case.calls.lazy().join(cut.lazy(), on="rank", how="semi").group_by("rank").agg(pl.col("enter_ns").min())
        self._since = dict(kept.collect().iter_rows())

    def is_blind(self, group: int, rank: int, onset_ns: int | None) -> bool:
        """Whether the rank may have made its part of what began then, and nothing of it is kept."""
        since = self._since.get(rank)
        is_young = since is not None and onset_ns is not None and since > onset_ns
        return (group, rank) in self._lost or rank in self._torn or is_young


def _from_any(case: Case, blocked: pl.DataFrame, sight: _Sight) -> list[StuckRound]:
    """The first receive of each rank that waits for whoever sends."""
    first = blocked.sort("enter_ns", "seq", nulls_last=True).group_by("group", "rank", maintain_order=True).first()
    return [_receive(case, row, sight) for row in first.iter_rows(named=True)]


def _receive(case: Case, row: dict[str, Any], sight: _Sight) -> StuckRound:
    group, rank, onset_ns = row["group"], row["rank"], row["enter_ns"]
    others = [other for other in case.member_ranks(group) if other != rank]
    blind = {other for other in others if sight.is_blind(group, other, onset_ns)}
    return StuckRound(
        group=group,
        seq=row["seq"],
        op=str(row["op"]),
        pair=(None, rank),
        inside=(rank,),
        entered=(rank,),
        missing=tuple(other for other in others if other not in blind),
        unsure=tuple(other for other in others if other in blind),
        onset_ns=onset_ns,
        site=row["site"],
    )


def _directed(case: Case, blocked: pl.DataFrame, sight: _Sight) -> list[StuckRound]:
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
            is_aligned=pl.col("is_aligned").all(),
        )
        .join(sides, on=keys)
        .sort("onset_ns", *keys, nulls_last=True)
    )
    return [_pair(row, taken, sight) for row in table.iter_rows(named=True)]


def _pair(row: dict[str, Any], taken: set[tuple[Any, ...]], sight: _Sight) -> StuckRound:
    group, src, dst, onset_ns = row["group"], row["src"], row["dst"], row["onset_ns"]
    entered = {*row["entered"], *((dst,) if row["op"] == "send" and (group, dst) in taken else ())}
    absent = tuple(rank for rank in (src, dst) if rank not in entered)
    blind = {rank for rank in absent if not row["is_aligned"] or sight.is_blind(group, rank, onset_ns)}
    return StuckRound(
        group=group,
        seq=row["seq"],
        op=row["op"],
        pair=(src, dst),
        inside=tuple(row["inside"]),
        entered=tuple(sorted(entered)),
        missing=tuple(rank for rank in absent if rank not in blind),
        unsure=tuple(sorted(blind)),
        onset_ns=onset_ns,
        site=row["site"],
    )
