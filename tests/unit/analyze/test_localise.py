"""Where in a ring or tree a round hangs. What is right comes from a pipeline that is cut or frozen at a known place."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import tempfile
import time
from collections import Counter

import comm_dumps
import proxy_dumps
import pytest
from hypothesis import HealthCheck, Phase, assume, example, given, settings
from hypothesis import strategies as st
from jobs import Job, table
from pipelines import Pipeline, ring, tree

from roundk.analyze import sources
from roundk.analyze.diagnose import diagnose
from roundk.analyze.structure import hops as rules
from roundk.analyze.structure import topology
from roundk.analyze.structure.hops import Hop
from roundk.tracer import schema

PHASES = [phase for phase in Phase if phase not in (Phase.shrink, Phase.explain)]
"""A run of the whole analysis is too slow to look for the smallest example."""
MANY = settings(deadline=None, max_examples=150, suppress_health_check=list(HealthCheck))
FEW = settings(deadline=None, max_examples=12, phases=PHASES, suppress_health_check=list(HealthCheck))


def hops(pipeline):
    """What proxies know: edges that are through are not under way any more."""
    return [
        Hop(0, *name, edge.transmitted, edge.delivered, edge.delivered, edge.consumed, total)
        for name, edge in pipeline.edges.items()
        if edge.consumed < (total := pipeline.total(name))
    ]


@st.composite
def rings(draw):
    """A ring in any order of its ranks, how many rounds its operation has, and the room of an edge."""
    size = draw(st.integers(4, 16))
    order = draw(st.permutations(range(size)))
    rounds = draw(st.sampled_from([size - 1, 2 * (size - 1)]))
    slots = draw(st.sampled_from([1, 2, 4, 8]))
    # With one shared place on each edge, and everybody sending first, a ring stands still by itself.
    credit = slots == 1 or draw(st.booleans())
    return order, rounds, draw(st.integers(1, 3)), slots, credit


@st.composite
def cut_rings(draw):
    order, rounds, loops, slots, credit = draw(rings())
    at = draw(st.integers(0, len(order) - 1))
    total = rounds * loops
    after = draw(st.one_of(st.integers(0, total - 1), st.integers(max(0, total - 5), total - 1)))
    edge = (order[at - 1], order[at])
    return order, edge, Pipeline(ring(order, rounds, loops), slots, credit, cut=edge, after=after).run()


@st.composite
def frozen_rings(draw):
    order, rounds, loops, slots, credit = draw(rings())
    rank, total = draw(st.sampled_from(order)), loops * (rounds + 1)
    moves = draw(st.one_of(st.integers(0, total - 1), st.integers(max(0, total - 5), total - 1)))
    return order, rank, Pipeline(ring(order, rounds, loops), slots, credit, freeze=rank, moves=moves).run()


@st.composite
def trees(draw):
    size = draw(st.integers(4, 31))
    parents = {rank: draw(st.integers(max(0, (rank - 1) // 2 - 1), (rank - 1) // 2)) for rank in range(1, size)}
    assume(max(Counter(parents.values()).values()) <= 3)
    return parents, draw(st.integers(2, 12)), draw(st.sampled_from([1, 2, 4, 8]))


@MANY
@given(rings())
def test_the_model_comes_to_its_end_where_nothing_is_broken(made):
    order, rounds, loops, slots, credit = made
    assert not Pipeline(ring(order, rounds, loops), slots, credit).run().incomplete


@MANY
@given(cut_rings())
def test_a_cut_edge_of_a_ring_is_named_and_no_rank(made):
    _, (sender, receiver), pipeline = made
    seen = hops(pipeline)
    assert rules.starved(seen) == receiver
    cut = rules.broken(seen, is_ring=True)
    assert cut is not None
    assert cut.edge == (sender, receiver)
    assert rules.frozen(seen, pipeline.incomplete) is None
    assert (sender, receiver) in rules.furthest_behind(seen)
    assert rules.may_be_ring(seen)
    assert rules.covers(seen, pipeline.incomplete)


@MANY
@given(cut_rings(), st.integers(2, 4))
def test_edges_inside_of_hosts_may_be_hidden(made, local):
    """Their proxies do not count: a cut between hosts is still named, one inside of a host names nothing."""
    order, edge, pipeline = made
    host = {rank: at // local for at, rank in enumerate(order)}
    seen = [hop for hop in hops(pipeline) if host[hop.sender] != host[hop.receiver]]
    cut = rules.broken(seen, is_ring=True)
    assert (cut and cut.edge) == (edge if host[edge[0]] != host[edge[1]] else None)
    assert rules.frozen(seen, pipeline.incomplete) is None


@MANY
@given(frozen_rings(), st.integers(2, 4))
def test_a_frozen_rank_behind_hidden_edges_is_named_or_nobody_is(made, local):
    order, rank, pipeline = made
    host = {rank: at // local for at, rank in enumerate(order)}
    seen = [hop for hop in hops(pipeline) if host[hop.sender] != host[hop.receiver]]
    assert rules.frozen(seen, pipeline.incomplete) in (rank, None)
    assert not any(hop.is_broken for hop in seen)


@MANY
@given(frozen_rings())
def test_a_frozen_rank_is_named_and_no_edge(made):
    _, rank, pipeline = made
    seen = hops(pipeline)
    assert rules.frozen(seen, pipeline.incomplete) == rank
    assert not any(hop.is_broken for hop in seen)
    assert any(rank in edge for edge in rules.furthest_behind(seen))


@MANY
@given(st.one_of(cut_rings(), frozen_rings()))
def test_who_has_not_completed_lies_side_by_side_around_the_place(made):
    order, place, pipeline = made
    inside = pipeline.incomplete
    at = place[1] if isinstance(place, tuple) else place
    assert at in inside
    run = topology.arc(order, inside)
    if len(inside) == len(order):
        assert run is None
    else:
        assert set(run.ranks) == inside
        assert order.index(run.ranks[0]) == (order.index(run.before) + 1) % len(order)
        assert order.index(run.behind) == (order.index(run.ranks[-1]) + 1) % len(order)


def test_the_first_of_them_is_often_not_the_receiver():
    """Why no rank is named by completions: with one place on an edge, those before the cut are held up too."""
    heads = Counter()
    for after in range(40, 56):
        order = list(range(8))
        pipeline = Pipeline(ring(order, 14, 4), 1, cut=(3, 4), after=after).run()
        if 0 < len(pipeline.incomplete) < 8:
            heads[topology.arc(order, pipeline.incomplete).ranks[0] == 4] += 1
    assert heads[False] > heads[True] > 0


@MANY
@given(trees(), st.data())
def test_a_cut_edge_of_a_tree_is_named_by_its_counters(made, data):
    parents, chunks, slots = made
    child = data.draw(st.sampled_from(sorted(parents)))
    edge = (parents[child], child) if data.draw(st.booleans()) else (child, parents[child])
    after = data.draw(st.integers(0, chunks - 1))
    assert not Pipeline(tree(parents, chunks), slots).run().incomplete
    pipeline = Pipeline(tree(parents, chunks), slots, cut=edge, after=after).run()
    seen = hops(pipeline)
    cut = rules.broken(seen, is_ring=False)
    assert cut is not None
    assert cut.edge == edge


@MANY
@given(trees(), st.data())
def test_below_a_cut_edge_of_a_tree_nobody_completes(made, data):
    parents, chunks, slots = made
    child = data.draw(st.sampled_from(sorted(parents)))
    after = data.draw(st.integers(0, chunks - 1))
    pipeline = Pipeline(tree(parents, chunks), slots, cut=(parents[child], child), after=after).run()
    inside = pipeline.incomplete
    assert topology.subtree(parents, child) <= inside
    if len(inside) == len(parents) + 1:
        return
    top = topology.branch(parents, inside)
    assert topology.subtree(parents, top) == inside
    assert child in topology.subtree(parents, top)


def report(dumps, log=""):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        comm_dumps.write(folder, dumps)
        if log:
            (folder / "job.log").write_text(log)
        trace, _ = sources.load([str(folder)])
        return json.loads(json.dumps(diagnose(trace, now_ns=time.time_ns()).to_json()))["verdicts"][0]


def nic(rank):
    """The device of `proxy_dumps.lines`: two ranks to a host, each with one."""
    return {"host": f"node-{rank // 2}", "device": f"mlx5_{rank % 2}", "port": None}


@FEW
@given(cut_rings())
@example(([0, 1, 2, 3], (3, 0), Pipeline(ring([0, 1, 2, 3], 6, 2), 8, cut=(3, 0), after=0).run()))
def test_a_report_on_a_cut_ring_names_the_edge_and_never_a_rank(made):
    order, (sender, receiver), pipeline = made
    found = report(proxy_dumps.dumps([pipeline]), proxy_dumps.lines([order]))
    assert found["culprit_ranks"] == []
    assert found["structure"] in ("PARTIAL_COMPLETION", "ALL_ENTERED_NONE_COMPLETED")
    assert f"from rank {sender} (" in found["summary"]
    assert f"to rank {receiver} (" in found["summary"]
    between = sender // 2 != receiver // 2
    wanted = sorted([nic(sender), nic(receiver)], key=str) if between else []
    assert sorted(found["culprit_links"], key=str) == wanted


@FEW
@given(frozen_rings())
def test_a_report_on_a_frozen_ring_names_the_rank_and_no_link(made):
    _, rank, pipeline = made
    found = report(proxy_dumps.dumps([pipeline, pipeline]))
    assert (found["culprit_ranks"], found["culprit_links"]) == ([rank], [])
    assert found["structure_confidence"] != "high"


@FEW
@given(st.one_of(cut_rings(), frozen_rings()))
def test_a_report_by_completions_names_nobody(made):
    order, _, pipeline = made
    found = report(proxy_dumps.dumps([pipeline], counters=False), proxy_dumps.lines([order]))
    assert (found["culprit_ranks"], found["culprit_links"], found["culprit_hosts"]) == ([], [], [])
    partial = len(pipeline.incomplete) < len(order)
    assert ("in the ring of channel 0" in found["summary"]) is partial
    if partial:
        assert found["structure_confidence"] != "high"


def eight(after=26, **broken):
    broken = broken or {"cut": (3, 4), "after": after}
    return Pipeline(ring(range(8), 14, 2), 4, **broken).run()


@pytest.mark.parametrize("ahead", [-1, 1, 2])
def test_counters_of_another_operation_are_not_joined(ahead):
    """The production failure of Meta's analyzer: counts that moved apart. It must be said, and not be "no culprit"."""
    found = report(proxy_dumps.dumps([eight()], ahead=ahead))
    assert (found["culprit_ranks"], found["culprit_links"]) == ([], [])
    assert any("join failed" in said for said in found["not_checked"])
    assert "is broken" not in found["summary"]


@pytest.mark.parametrize(
    "change",
    [
        {"coll": "AllGather"},
        {"transSize": 1 << 30},
        {"remoteRank": 12},
    ],
)
def test_counters_that_do_not_fit_the_collective_are_not_joined(change):
    dumps = proxy_dumps.dumps([eight()])
    for of_rank in dumps.values():
        (of,) = of_rank.values()
        of["PT_activeOps"] = json.dumps([one | change for one in json.loads(of["PT_activeOps"])])
    found = report(dumps)
    assert (found["culprit_ranks"], found["culprit_links"]) == ([], [])
    assert any("join failed" in said for said in found["not_checked"])


def test_several_algorithms_that_are_no_ring_are_not_judged_as_one():
    found = report(proxy_dumps.dumps([eight(freeze=5, moves=9)], algorithm="Baseline_Simple_NVLS_2"))
    assert found["culprit_ranks"] == []
    assert any("neither a ring nor a tree" in said for said in found["not_checked"])


def test_a_sender_without_counters_is_not_guessed_at():
    """It got out of the collective, so its proxy may have sent all; what the receiver lacks is then on no edge."""
    dumps = proxy_dumps.dumps([eight()])
    (of,) = dumps[3].values()
    del of["PT_activeOps"]
    found = report(dumps)
    assert (found["culprit_ranks"], found["culprit_links"]) == ([], [])
    assert "is broken" not in found["summary"]


def test_two_channels_that_lost_data_on_different_edges_name_their_common_device():
    """Both edges leave rank 3, whose NIC they share; the receivers' differ."""
    orders = [[0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3, 6, 7, 4, 5]]
    cuts = [(3, 4), (3, 6)]
    both = [Pipeline(ring(o, 14, 2), 4, cut=c, after=20).run() for o, c in zip(orders, cuts, strict=True)]
    found = report(proxy_dumps.dumps(both), proxy_dumps.lines(orders))
    assert found["culprit_links"] == [nic(3)]
    assert found["culprit_ranks"] == []
    assert "2 edges" in found["summary"]
    assert found["structure_confidence"] != "high"


def test_a_cut_and_a_frozen_rank_at_once_name_neither():
    found = report(proxy_dumps.dumps([eight(), eight(freeze=6, moves=10)]))
    assert (found["culprit_ranks"], found["culprit_links"]) == ([], [])
    assert any("no single edge" in said for said in found["not_checked"])


def test_rings_that_differ_by_channel_must_agree_or_be_no_chance():
    rings = {0: range(8), 1: (0, 2, 4, 6, 1, 3, 5, 7)}
    assert topology.arcs(rings, {3, 4}) == {}, (
        "in one of two rings, which two of eight ranks are in more than one of four"
    )
    assert set(topology.arcs(rings, {0, 1, 2, 3, 4, 6})) == set()
    assert set(topology.arcs({0: range(64), 1: tuple(range(0, 64, 2)) + tuple(range(1, 64, 2))}, {8, 9, 10})) == {0}
    assert set(topology.arcs({0: range(8), 1: range(8)}, {7, 0})) == {0, 1}


def test_scattered_ranks_say_nothing():
    dumps = proxy_dumps.dumps([eight()], counters=False)
    found = report(dumps, proxy_dumps.lines([[0, 2, 4, 6, 1, 3, 5, 7]]))
    assert "side by side" not in found["summary"]


def test_a_branch_of_the_tree():
    """Rank 1 has 3 and 4 below it, and 3 has 5: the edge from rank 0 to rank 1 is the one to look at."""
    parents = {1: 0, 2: 0, 3: 1, 4: 1, 5: 3}
    pipeline = Pipeline(tree(parents, 4), 8, cut=(0, 1), after=2).run()
    assert pipeline.incomplete == {1, 3, 4, 5}
    dumps = proxy_dumps.dumps([pipeline], counters=False, algorithm="")
    found = report(dumps, proxy_dumps.lines([], trees=[parents], nranks=6))
    assert "all of the tree from rank 1 on (channel 0)" in found["summary"]
    assert any("from rank 0 (node-0) to rank 1 (node-0)" in one["what"] for one in found["evidence"])
    assert (found["culprit_ranks"], found["culprit_links"]) == ([], [])
    assert found["structure_confidence"] != "high"


def test_ranks_that_are_no_whole_branch_say_nothing():
    parents = {1: 0, 2: 0, 3: 1, 4: 1}
    assert topology.branch(parents, {1, 3}) is None, "4 is below 1 and completed"
    assert topology.branch(parents, {2, 3}) is None
    assert topology.branch(parents, range(5)) is None, "all of it"
    assert topology.branch(parents, {1, 3, 4}) == 1


def test_a_tree_by_its_counters():
    parents = {1: 0, 2: 0, 3: 1, 4: 1, 5: 2, 6: 2}
    pipeline = Pipeline(tree(parents, 8), 2, cut=(1, 3), after=5).run()
    found = report(
        proxy_dumps.dumps([pipeline], algorithm="Baseline_Simple_Tree_1"),
        proxy_dumps.lines([], trees=[parents], nranks=7),
    )
    assert "the link from rank 1 (node-0) to rank 3 (node-1) is broken" in found["summary"]
    assert found["culprit_ranks"] == []


def job_of(*groups, world=8, hosts=None):
    job = Job(world)
    for ranks in groups:
        key = job.group(ranks, name=f"g{len(job.groups)}", backend="nccl")
        job.round(group=key)
        job.hang(group=key)
    for rank in range(world):
        job.rank(rank, host=hosts[rank] if hosts else "a")
    return job.report(alive=600.0)


def test_one_rank_of_all_the_groups_that_hang_is_a_suspicion():
    made = job_of([0, 1, 3], [3, 4, 5], [2, 3, 7])
    found = made.verdicts[0]
    assert found.culprit_ranks == ()
    assert any("only rank 3 is in all of them" in one.what for one in found.evidence)
    assert found.structure_confidence.value != "high"


def test_one_host_of_all_the_groups_that_hang_is_a_suspicion():
    made = job_of([0, 2], [1, 4], [3, 6], hosts=["a", "a", "b", "a", "c", "c", "d", "d"])
    assert any("only host a is in all of them" in one.what for one in made.verdicts[0].evidence)


def test_groups_that_have_several_ranks_in_common_say_nothing():
    made = job_of([0, 1, 3, 4], [3, 4, 5])
    assert not any("in all of them" in one.what for one in made.verdicts[0].evidence)


def channel(comm_rank, peer, direction, *, number=0, shape="ring", rank=None, comm="ab", **fields):
    row = {"comm_rank": comm_rank, "peer": peer, "channel": number, "shape": shape, "direction": direction}
    return row | {"rank": rank, "comm": comm, "host": "h", "source": "l:1"} | fields


def known(rows, members=(4, 5, 6, 7)):
    job = Job(8)
    key = job.group(list(members), backend="nccl")
    trace = dataclasses.replace(job.trace(), channels=table(rows, schema.CHANNELS))
    from roundk.analyze.case import build

    return topology.topology(build(trace, now_ns=0, stall_ns=1), key)


def test_a_ring_is_known_by_either_end_of_its_edges():
    half = [channel(0, 2, "send"), channel(0, 1, "recv"), channel(3, 2, "recv"), channel(3, 1, "send")]
    assert known(half).rings == {0: (4, 6, 7, 5)}


@pytest.mark.parametrize(
    "rows",
    [
        [channel(0, 1, "send"), channel(1, 2, "send"), channel(2, 3, "send")],
        [channel(0, 1, "send"), channel(1, 0, "send"), channel(2, 3, "send"), channel(3, 2, "send")],
        [
            channel(0, 1, "send"),
            channel(0, 2, "send"),
            channel(1, 2, "send"),
            channel(2, 3, "send"),
            channel(3, 0, "send"),
        ],
        [channel(0, 1, "send", rank=1), channel(1, 2, "send"), channel(2, 3, "send"), channel(3, 0, "send")],
        [channel(a, (a + 1) % 5, "send") for a in range(5)],
    ],
    ids=["open", "two rings", "two ways", "of other ranks", "of another size"],
)
def test_a_ring_that_is_not_whole_or_not_of_the_group_is_none(rows):
    assert known(rows) is None


def test_two_communicators_of_the_same_ranks_must_be_alike():
    one = [channel(a, (a + 1) % 4, "send") for a in range(4)]
    other = [channel(a, (a - 1) % 4, "send", comm="cd") for a in range(4)]
    assert known(one + [row | {"comm": "cd"} for row in one]).rings == {0: (4, 5, 6, 7)}
    assert known(one + other) is None
