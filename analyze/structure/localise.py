"""Where in a ring or tree does a round hang that everybody entered and not everybody left?

Completions alone give a stretch of the ring or a branch of the tree, never a rank: those upstream of a broken edge are
held up too. Only step counters of the network's proxies name the edge, and tell it from a rank that stands still.

Not judged: NVLS, CollNet, PAT and all_to_all, which are neither rings nor trees.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import polars as pl

from roundk.analyze.case import Case
from roundk.analyze.finding import Evidence, Finding
from roundk.analyze.names import Structure
from roundk.analyze.phrases import capital, fold, ranks_text, verb
from roundk.analyze.structure import hops as rules
from roundk.analyze.structure import proxies
from roundk.analyze.structure import topology as maps
from roundk.analyze.structure.hops import Hop
from roundk.analyze.structure.proxies import Steps
from roundk.analyze.structure.topology import End, Topology
from roundk.analyze.told import short_host
from roundk.analyze.waitfor import UNTOLD_OP, StuckRound

LEAST_MEMBERS: Final = 4
"""In a smaller ring any ranks lie side by side."""

_LOCATABLE: Final = frozenset({Structure.ALL_ENTERED_NONE_COMPLETED, Structure.PARTIAL_COMPLETION})
_SHOWN: Final = 3
_Edge = tuple[int, int]


def located(case: Case, finding: Finding, stuck: StuckRound) -> Finding:
    """A finding with the edge or the rank at which its round hangs, or the stretch of ranks in which that is.

    Args:
        case: The case.
        finding: Of a full round that not everybody left.
        stuck: The round.

    Returns:
        The finding itself where its culprits are known, or neither counters nor completions tell anything.
    """
    if finding.culprits or stuck.pair is not None or stuck.missing or finding.structure not in _LOCATABLE:
        return finding
    told = proxies.steps(case, stuck)
    if isinstance(told, str):
        finding = replace(
            finding,
            not_checked=(*finding.not_checked, f"The step counters of the network's proxies: join failed, {told}."),
        )
        return _by_completions(case, finding, stuck, None)
    if told is None:
        return _by_completions(case, finding, stuck, None)
    by_steps = _by_steps(case, finding, stuck, told)
    if by_steps is not None:
        return by_steps
    silent = "The step counters of the network's proxies name no single edge and no single rank."
    return _by_completions(case, replace(finding, not_checked=(*finding.not_checked, silent)), stuck, told.algorithm)


def shared(case: Case, finding: Finding, rounds: Sequence[StuckRound]) -> Finding:
    """A finding with the one rank or host that all groups have in common that hang with everybody inside.

    Args:
        case: The case.
        finding: Of one of the rounds.
        rounds: All full rounds that hang independently of each other.
    """
    groups = sorted({r.group for r in rounds if r.pair is None and not r.unsure and r.group not in case.control_groups})
    if finding.culprits or finding.links or finding.structure not in _LOCATABLE or len(groups) < 2:
        return finding
    members = [set(case.member_ranks(group)) for group in groups]
    ranks = sorted(set.intersection(*members))
    hosts = [{_host(case, rank) for rank in of_group} for of_group in members]
    common = sorted(host for host in set.intersection(*hosts) if host) if not any(None in of for of in hosts) else []
    if len(ranks) == 1:
        who = f"rank {ranks[0]}"
    elif len(common) == 1 and len(set.union(*hosts)) > 1:
        who = f"host {common[0]}"
    else:
        return finding
    names = ", ".join(case.groups[group].text for group in groups[:_SHOWN])
    names += f" and {len(groups) - _SHOWN} more" if len(groups) > _SHOWN else ""
    said = f"{len(groups)} groups hang with everybody inside ({names}), and only {who} is in all of them"
    return replace(
        finding,
        evidence=(*finding.evidence, Evidence(said)),
        doubts=(*finding.doubts, f"that {who} is in all the groups that hang is a suspicion and no proof"),
        next_steps=(f"look at {who} first: {said}", *finding.next_steps),
    )


def _host(case: Case, rank: int) -> str | None:
    return short_host(case.endings[rank].host) if rank in case.endings else None


# By step counters


def _by_steps(case: Case, finding: Finding, stuck: StuckRound, told: Steps) -> Finding | None:
    every = [hop for of_channel in told.hops.values() for hop in of_channel]
    cuts: list[Hop] = []
    still: set[int] = set()
    undecided = 0
    for of_channel in told.hops.values():
        is_ring = told.op in proxies.RINGS and told.algorithm == "ring" and rules.may_be_ring(of_channel)
        cut = rules.broken(of_channel, is_ring=is_ring)
        stands = rules.frozen(of_channel, stuck.inside) if cut is None and is_ring else None
        if cut is not None:
            cuts.append(cut)
        elif stands is not None:
            still.add(stands)
        else:
            undecided += 1
    doubts = [f"in {undecided} of {len(told.hops)} channels the counters decide nothing"] if undecided else []
    if told.unknown:
        doubts.append(f"{ranks_text(told.unknown)} left no step counters, or not all")
    behind = rules.furthest_behind(every)
    inside = set(stuck.inside)
    edges = {hop.edge for hop in cuts}
    if cuts and not still and behind & edges and all(hop.receiver in inside for hop in cuts):
        return _with_edges(case, finding, stuck, told, cuts, doubts)
    if len(still) == 1 and not cuts and still <= inside and any(still.intersection(edge) for edge in behind):
        return _with_rank(case, finding, told, next(iter(still)), doubts)
    return None


def _with_edges(
    case: Case, finding: Finding, stuck: StuckRound, told: Steps, cuts: Sequence[Hop], doubts: Sequence[str]
) -> Finding:
    """The edges that lost data; their network devices are to blame where one edge, or one device of all, is left."""
    topology = maps.topology(case, stuck.group)
    pairs = [_ends(topology, hop.channel, hop.edge) for hop in cuts]
    links = [{(end.host, end.device) for end in pair if end.host and end.device} for pair in pairs]
    edges = sorted({hop.edge for hop in cuts})
    first = cuts[0]
    if len(edges) == 1:
        named = sorted(set.union(*links))
        text = (
            f"data that rank {first.sender} sent did not come to rank {first.receiver}, which took all that came: "
            f"the link {_edge_text(case, topology, first.channel, first.edge)} is broken, not a rank"
        )
        more: tuple[str, ...] = ()
    else:
        named = sorted(set.intersection(*links)) if all(links) else []
        listed = ", ".join(_edge_text(case, topology, hop.channel, hop.edge) for hop in cuts[:_SHOWN])
        text = f"data was lost on {len(edges)} edges of its rings or trees: {listed}"
        more = ("several edges lost data",)
    channels = _channels(hop.channel for hop in cuts)
    where = _edge_text(case, topology, first.channel, first.edge)
    shown = [
        Evidence(
            f"channel {hop.channel}: rank {hop.sender} sent {hop.transmitted} steps to rank {hop.receiver}, "
            f"{hop.delivered} of them went through; {hop.received} came and all were taken",
            told.sources.get(hop.sender, ""),
            hop.sender,
        )
        for hop in cuts[:_SHOWN]
    ]
    return replace(
        finding,
        summary=f"{finding.summary.rstrip('.')}; {text} ({channels}).",
        links=tuple((host, device, None) for host, device in named if host and device),
        doubts=(*finding.doubts, *doubts, *more),
        evidence=(*finding.evidence, *shown),
        next_steps=(
            f"look at the ports of the link {where} and at the switch between: port state, link_downed, symbol errors",
            *finding.next_steps,
        ),
    )


def _with_rank(case: Case, finding: Finding, told: Steps, rank: int, doubts: Sequence[str]) -> Finding:
    hop = next(h for of_channel in told.hops.values() for h in of_channel if h.receiver == rank)
    where = f" ({host})" if (host := _host(case, rank)) else ""
    said = (
        f"channel {hop.channel}: {hop.received} steps came to rank {rank} from rank {hop.sender} and its kernel took "
        f"{hop.consumed}; no other rank moved less, and no edge lost data"
    )
    return replace(
        finding,
        summary=f"{finding.summary.rstrip('.')}; rank {rank}{where} stands still inside: it does not take what came to "
        "it, and everything that was sent arrived, so it is that rank and not a link.",
        culprits=(rank,),
        waiting=tuple(r for r in finding.waiting if r != rank),
        victim_ranks=tuple(r for r in finding.victim_ranks if r != rank),
        # A kernel that stands still was never caught at it on real hardware with these counters.
        doubts=(*finding.doubts, *doubts, "the step counters are of one moment, and of the network's proxies alone"),
        evidence=(*finding.evidence, Evidence(said, told.sources.get(rank, ""), rank)),
        next_steps=(f"look at the GPU of rank {rank}{where}: Xid lines in the kernel log, nvidia-smi -q",),
    )


# By completions alone


def _by_completions(case: Case, finding: Finding, stuck: StuckRound, algorithm: str | None) -> Finding:
    members = case.member_ranks(stuck.group)
    inside = set(stuck.inside)
    if len(members) < LEAST_MEMBERS or not _is_settled(case, stuck, members) or not inside < set(members):
        return finding
    topology = maps.topology(case, stuck.group)
    if topology is None:
        return finding
    op = None if stuck.op == UNTOLD_OP else proxies.plain_op(stuck.op)
    in_ring = op in proxies.RINGS and algorithm != "tree"
    in_tree = op == "all_reduce" and algorithm != "ring"
    found = _in_ring(case, finding, topology, inside) if in_ring else None
    if found is None:
        found = _in_tree(case, finding, topology, inside) if in_tree else None
    return found or finding


def _is_settled(case: Case, stuck: StuckRound, members: tuple[int, ...]) -> bool:
    """Of every member it is known whether it completed the round."""
    calls = case.round_calls(stuck.group, stuck.seq)
    done = set(calls.filter(pl.col("outcome") == "completed")["rank"].to_list())
    counted = set(stuck.entered) - set(calls["rank"].to_list())
    return {*done, *counted, *stuck.inside} == set(members)


def _in_ring(case: Case, finding: Finding, topology: Topology, inside: set[int]) -> Finding | None:
    found = maps.arcs(topology.rings, inside)
    if not found:
        return None
    channels = _channels(found)
    who = ranks_text(sorted(inside))
    text = (
        f"{who} lie side by side in the ring of {channels}: the receiver behind a broken edge is one of them, "
        "not always the first"
        if len(inside) > 1
        else f"in the ring of {channels} a broken edge would be the one that leads to {who}"
    )
    into = _distinct((channel, (run.before, run.ranks[0])) for channel, run in found.items())
    onward = _distinct((channel, (run.ranks[-1], run.behind)) for channel, run in found.items())
    shown = [_edge_evidence(case, topology, *one, f"data comes to {who} by", "recv") for one in into[:_SHOWN]] + [
        _edge_evidence(case, topology, *one, f"{who} {verb(sorted(inside), 'sends', 'send')} on by", "send")
        for one in onward[:_SHOWN]
    ]
    first = _edge_text(case, topology, *into[0])
    return _as_stretch(finding, text, shown, "completions tell a stretch of the ring, not the edge", first)


def _in_tree(case: Case, finding: Finding, topology: Topology, inside: set[int]) -> Finding | None:
    """A whole branch that did not complete: what is above a broken edge is held up too, and then all below that."""
    found = {c: top for c, of in topology.trees.items() if (top := maps.branch(of, inside)) is not None}
    # A rank that is a leaf of some tree is always a branch there.
    if not found or (len(inside) == 1 and 2 * len(found) <= len(topology.trees)):
        return None
    edges = _distinct((channel, (topology.trees[channel][top], top)) for channel, top in found.items())
    who, top = ranks_text(sorted(inside)), edges[0][1][1]
    text = (
        f"{who} {verb(sorted(inside), 'is', 'are')} all of the tree from rank {top} on ({_channels(found)}): the edge "
        "that leads there from above, or one below, may be broken"
    )
    shown = [_edge_evidence(case, topology, *one, f"data comes to {who} by", "recv") for one in edges[:_SHOWN]]
    first = _edge_text(case, topology, *edges[0])
    return _as_stretch(finding, text, shown, "completions tell a branch of the tree, not the edge", first)


def _as_stretch(finding: Finding, text: str, shown: Sequence[Evidence], doubt: str, first: str) -> Finding:
    return replace(
        finding,
        summary=f"{finding.summary.rstrip('.')}; {text}.",
        doubts=(*finding.doubts, doubt),
        evidence=(*finding.evidence, *shown),
        next_steps=(f"begin with the link {first}, then those between the ranks behind it", *finding.next_steps),
    )


# Edges in words


def _channels(numbers: Iterable[int]) -> str:
    """`channel 3`, `channels 0-3`."""
    distinct = sorted(set(numbers))
    return f"channel{'s' if len(distinct) > 1 else ''} {fold(distinct)}"


def _distinct(edges: Iterable[tuple[int, _Edge]]) -> list[tuple[int, _Edge]]:
    """Each edge once, with the first channel that has it."""
    found: dict[_Edge, int] = {}
    for channel, edge in edges:
        found.setdefault(edge, channel)
    return [(channel, edge) for edge, channel in found.items()]


def _ends(topology: Topology | None, channel: int, edge: _Edge) -> tuple[End, End]:
    known = {} if topology is None else topology.ends
    return known.get((channel, *edge, "send"), End()), known.get((channel, *edge, "recv"), End())


def _edge_text(case: Case, topology: Topology | None, channel: int, edge: _Edge) -> str:
    """`from rank 3 (node-a, mlx5_0) to rank 4 (node-b, mlx5_1)`."""
    sides = []
    for rank, end in zip(edge, _ends(topology, channel, edge), strict=True):
        known = [text for text in (end.host or _host(case, rank), end.device) if text]
        sides.append(f"rank {rank}" + (f" ({', '.join(known)})" if known else ""))
    return f"from {sides[0]} to {sides[1]}"


def _edge_evidence(case: Case, topology: Topology, channel: int, edge: _Edge, what: str, side: str) -> Evidence:
    source = topology.ends.get((channel, *edge, side), End()).source
    text = f"channel {channel}: {what} the edge {_edge_text(case, topology, channel, edge)}"
    return Evidence(capital(text), source)
