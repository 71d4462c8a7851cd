"""Do ranks that wait for each other mean different groups by one name?

Groups made at one place in the program get one name on all ranks. Where their member lists differ and overlap, the
lists came out differently by rank. Groups of one name without a common member are the rule (one per pipeline stage).
"""

from __future__ import annotations

import itertools
from collections import defaultdict

import polars as pl

from roundk.analyze.case import Case, Group
from roundk.analyze.finding import Evidence, Finding, Reason
from roundk.analyze.names import Cause, Confidence, Structure
from roundk.analyze.phrases import ranks_text, verb
from roundk.analyze.waitfor import WaitFor


def conflicts(case: Case, graph: WaitFor) -> list[Finding]:
    """The first name under which ranks that hang have overlapping and different groups."""
    hung = {r.group: r for r in sorted(graph.rounds, key=lambda r: r.order, reverse=True) if r.pair is None}
    by_name: dict[str, list[Group]] = defaultdict(list)
    for group in case.groups.values():
        if group.name and not group.is_control:
            by_name[group.name].append(group)
    found: list[tuple[int, Finding]] = []
    for alike in by_name.values():
        for one, other in itertools.combinations(alike, 2):
            differ = set(one.ranks) != set(other.ranks) and set(one.ranks) & set(other.ranks)
            users = [_users(case, group) for group in (one, other)]
            if differ and all(users) and not set(users[0]) & set(users[1]) and {one.key, other.key} & hung.keys():
                at = min((hung[g.key] for g in (one, other) if g.key in hung), key=lambda r: r.order)
                found.append((at.onset_ns or 0, _finding(case, graph, (one, other), users, at.group)))
    return [finding for _, finding in sorted(found, key=lambda pair: pair[0])[:1]]


def _users(case: Case, group: Group) -> tuple[int, ...]:
    """The ranks that made calls in a group: what they mean by its name."""
    calls = case.calls.filter(pl.col("group") == group.key)
    return tuple(calls["rank"].unique().sort().to_list())


def _finding(case: Case, graph: WaitFor, groups: tuple[Group, Group], users: list[tuple[int, ...]], at: int) -> Finding:
    sides = sorted(zip(users, groups, strict=True), key=lambda side: -len(side[0]))
    (most, theirs), (fewest, other) = sides
    stuck = next(r for r in graph.rounds if r.group == at and r.pair is None)
    waiting = tuple(sorted({rank for r in graph.rounds if r.group in (theirs.key, other.key) for rank in r.inside}))
    says = [f"{ranks_text(ranks)} {verb(ranks, 'takes', 'take')} it for {ranks_text(g.ranks)}" for ranks, g in sides]
    is_told = len(most) > len(fewest)
    culprits = fewest if is_told else ()
    return Finding(
        structure=Structure.GROUP_MEMBERSHIP_CONFLICT,
        summary=f"Ranks mean different members by {theirs.text}: {'; '.join(says)}. They wait for each other there.",
        culprits=culprits,
        sides=() if culprits else tuple(sorted({*most, *fewest})),
        group=stuck.group,
        seq=stuck.seq,
        op=stuck.op,
        onset_ns=stuck.onset_ns,
        waiting=tuple(rank for rank in waiting if rank not in culprits),
        victim_ranks=tuple(rank for rank in waiting if rank not in culprits),
        victim_groups=tuple(sorted({theirs.key, other.key})),
        reason=Reason(Cause.CODE_DIVERGENCE, Confidence.MEDIUM),
        doubts=("which of the two lists was meant is told by their numbers at most",),
        evidence=tuple(
            Evidence(f"rank {ranks[0]}: group {g.name} has {ranks_text(g.ranks)}", case.file(ranks[0]), ranks[0])
            for ranks, g in sides
        ),
        next_steps=("print the ranks that each process passes to new_group for this group, and why they differ",),
    )
