"""Sends and receives: rings of unequal length lined up, chains and circles through them, and who is left unanswered."""

from __future__ import annotations

import random

import polars as pl
import pytest
import rings
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import Job, outline

from roundk.analyze import sources
from roundk.analyze.diagnose import diagnose
from roundk.analyze.pairs import aligned


def moves(stages, batches, steps):
    """What each stage of a pipeline does: in each step all forward, all backward, then an all_reduce of all."""
    made = {}
    for stage in range(stages):
        is_first, is_last = stage == 0, stage == stages - 1
        forward = [("recv", stage - 1)] * (not is_first) + [("send", stage + 1)] * (not is_last)
        backward = [("recv", stage + 1)] * (not is_last) + [("send", stage - 1)] * (not is_first)
        made[stage] = (forward * batches + backward * batches + [("all_reduce", None)]) * steps
    return made


def run(programs, *, stops, is_buffered, rng):
    """Play programs: who enters what when, and when it ends. A rank stops before its call of number `stops[rank]`.

    A call is [op, peer, enter, end]; each rank goes on when its call has ended, a buffered send has at once.
    """
    at = dict.fromkeys(programs, 0)
    clock = dict.fromkeys(programs, 0.0)
    calls = {rank: [] for rank in programs}
    sent, taken, rounds = {}, {}, {}
    is_moving = True
    while is_moving:
        is_moving = False
        for rank, program in programs.items():
            if calls[rank] and calls[rank][-1][3] is None:
                is_moving |= _ends(
                    calls, rank, clock, sent, taken, rounds, is_buffered=is_buffered, ranks=len(programs)
                )
            elif at[rank] < len(program) and at[rank] != stops.get(rank):
                op, peer = program[at[rank]]
                enter = clock[rank] + rng.uniform(0.001, 0.05)
                calls[rank].append([op, peer, enter, None])
                if op == "send":
                    sent.setdefault((rank, peer), []).append(enter)
                elif op == "recv":
                    taken.setdefault((peer, rank), []).append(enter)
                else:
                    rounds.setdefault(sum(c[0] == "all_reduce" for c in calls[rank]), {})[rank] = enter
                at[rank] += 1
                is_moving = True
    return calls


def _ends(calls, rank, clock, sent, taken, rounds, *, is_buffered, ranks):
    """Let a rank's open call end if it can."""
    op, peer, enter, _ = calls[rank][-1]
    if op == "all_reduce":
        inside = rounds[sum(c[0] == "all_reduce" for c in calls[rank])]
        met = inside.values() if len(inside) == ranks else None
    else:
        pair = (rank, peer) if op == "send" else (peer, rank)
        number = sum(c[:2] == [op, peer] for c in calls[rank])
        both = [side[pair][number - 1] for side in (sent, taken) if len(side.get(pair, ())) >= number]
        met = both if len(both) == 2 or (op == "send" and is_buffered) else None
    if met is None:
        return False
    clock[rank] = calls[rank][-1][3] = max(enter, *met) + 0.0004
    return True


def made_rings(calls):
    found = []
    for rank, mine in calls.items():
        ring = rings.Ring(rank, len(calls))
        for op, peer, enter, end in mine:
            if op == "all_reduce":
                ring.call(enter, end)
            else:
                getattr(ring, op)(peer, enter, end)
        found.append(ring)
    return found


def report(folder, made, keep=None):
    rings.write(folder, made, keep)
    trace, _ = sources.load([str(folder)])
    return diagnose(trace, now_ns=rings.ns(86_400))


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    return tmp_path_factory


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1 << 30))
def test_stage_that_stops_is_the_root_however_its_rings_were_cut(room, seed):
    rng = random.Random(seed)
    stages, steps = rng.randint(2, 5), rng.randint(3, 6)
    programs = moves(stages, rng.randint(1, 4), steps)
    guilty = rng.randrange(stages)
    least = len(programs[guilty]) // steps
    stops = {guilty: rng.randrange(least, len(programs[guilty]))}
    calls = run(programs, stops=stops, is_buffered=rng.random() < 0.4, rng=rng)
    keep = {rank: rng.randint(4, len(mine) + 3) for rank, mine in calls.items()} if rng.random() < 0.7 else None
    found = report(room.mktemp("job"), made_rings(calls), keep)
    for verdict in found.verdicts:
        assert set(verdict.culprit_ranks) <= {guilty}, (seed, verdict.summary)
    if keep is None:
        assert found.verdicts[0].culprit_ranks == (guilty,), (seed, found.verdicts[0].summary)
        assert found.verdicts[0].structure == "RANK_NOT_ENTERED"


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 30))
def test_numbers_of_cut_rings_agree_or_are_marked(room, seed):
    rng = random.Random(seed)
    calls = run(moves(3, rng.randint(1, 5), rng.randint(2, 6)), stops={}, is_buffered=rng.random() < 0.5, rng=rng)
    folder = room.mktemp("job")
    rings.write(folder, made_rings(calls), {rank: rng.randint(3, len(mine)) for rank, mine in calls.items()})
    trace, _ = sources.load([str(folder)])
    p2p = aligned(trace.calls, trace.ranks).filter(pl.col("op").cast(pl.String).is_in(["send", "recv"]))
    for rank, peer in [(0, 1), (1, 0), (1, 2), (2, 1)]:
        sides = []
        for side, op, other in [(rank, "send", peer), (peer, "recv", rank)]:
            kept = p2p.filter(pl.col("rank") == side, pl.col("op").cast(pl.String) == op, pl.col("peer") == other)
            made = sum(c[:2] == [op, other] for c in calls[side])
            if kept.height and kept["is_aligned"].all():
                sides.append(made - int(kept["seq"].max()))
        # All messages went through, so that the last send and the last receive are one.
        assert len(set(sides)) <= 1, seed


def test_numbers_that_the_source_counts_itself_stay():
    job = Job(2)
    for number in range(4):
        job.call(0, number, number + 0.1, op="send", peer=1, seq=90 + number)
        job.call(1, number, number + 0.1, op="recv", peer=0, seq=91 + number)
    job.rank(0, first_call=500, calls_lost=499).rank(1, first_call=900, calls_lost=899)
    trace = job.trace()
    assert aligned(trace.calls, trace.ranks)["seq"].to_list() == trace.calls["seq"].to_list()


def test_a_thousand_ranks_that_wait_make_one_verdict():
    """Stages of eight wait for the stage before; rank 11 of the second stage does not come to its all_reduce."""
    job = Job(1024)
    pipelines = [job.group(range(lane, 1024, 8), backend="nccl") for lane in range(8)]
    stage = job.group(range(8, 16), name="tp", backend="nccl")
    job.rounds(2)
    at = job.clock
    job.hang(only=[8, 9, 10, 12, 13, 14, 15], group=stage, enter=at)
    for rank in range(16, 1024):
        job.call(rank, at, op="recv", peer=rank - 8, group=pipelines[rank % 8])
    for rank in range(8):
        job.call(rank, at + 0.1)
    job.exits(*range(1024), at=at + 40, signal=15)
    found = job.report(ended=at + 41, exit_code=1)
    assert outline(found)[:4] == ("RANK_NOT_ENTERED", "IDLE", "UNDETERMINED", (11,))
    assert len(found.verdicts) == 1
    assert found.verdicts[0].victims.ranks == 1023


def ended(job, after=41):
    return job.report(ended=job.clock + after, exit_code=1)


def test_side_that_makes_a_call_more_than_in_the_steps_before_is_named():
    """Rank 0 sends twice to rank 1 where it had sent once; rank 1 is in the all_reduce, as always after one receive."""
    job = Job()
    for _ in range(4):
        job.call(0, job.clock, job.clock + 0.1, op="send", peer=1).call(
            1, job.clock, job.clock + 0.1, op="recv", peer=0
        )
        job.clock += 0.2
        job.round()
    at = job.clock
    job.call(0, at, at + 0.1, op="send", peer=1).call(1, at, at + 0.1, op="recv", peer=0)
    job.call(0, at + 0.2, op="send", peer=1).hang(without=[0], enter=at + 0.2)
    job.exits(0, 1, 2, 3, at=at + 40, signal=9)
    found = ended(job)
    assert outline(found)[:4] == ("P2P_UNPAIRED", None, "CODE_DIVERGENCE", (0,))
    assert "made a call too many" in found.verdicts[0].summary


def test_receive_from_the_wrong_rank():
    """Rank 2 had always received from rank 1, whose send now stays open, and waits for rank 0, which has gone on."""
    job = Job(3)
    for _ in range(3):
        job.call(1, job.clock, job.clock + 0.1, op="send", peer=2).call(
            2, job.clock, job.clock + 0.1, op="recv", peer=1
        )
        job.clock += 0.2
        job.round()
    at = job.clock
    job.call(1, at, op="send", peer=2).call(2, at, op="recv", peer=0).call(0, at)
    job.exits(0, 1, 2, at=at + 40, signal=9)
    found = ended(job)
    assert outline(found)[:4] == ("P2P_UNPAIRED", None, "CODE_DIVERGENCE", (2,))
    assert found.verdicts[0].waiting_ranks == (1,)


def test_chain_in_which_each_pair_is_used_is_no_wrong_peer():
    """Rank 1 sends on to rank 2, which is in no call; rank 0 waits for the answer of rank 1, as in each step."""
    job = Job(3)
    for _ in range(3):
        at = job.clock
        for source, target in [(0, 1), (1, 2), (2, 1), (1, 0)]:
            job.call(source, at, at + 0.1, op="send", peer=target).call(target, at, at + 0.1, op="recv", peer=source)
            at += 0.2
        job.clock = at
    at = job.clock
    job.call(0, at, at + 0.1, op="send", peer=1).call(1, at, at + 0.1, op="recv", peer=0)
    job.call(1, at + 0.2, op="send", peer=2).call(0, at + 0.2, op="recv", peer=1)
    job.exits(0, 1, 2, at=at + 40, signal=9)
    assert outline(ended(job))[:4] == ("RANK_NOT_ENTERED", "IDLE", "UNDETERMINED", (2,))


def on_device(world=2):
    job = Job(world)
    return job, job.group(range(world), name="one", backend="nccl"), job.group(range(world), name="two", backend="nccl")


def reversed_on_device(job, one, two, **columns):
    at = job.clock
    job.call(0, at, group=one, **columns).call(0, at + 0.1, group=two, is_timed="start_ns" in columns)
    job.call(1, at, group=two, **columns).call(1, at + 0.1, group=one, is_timed="start_ns" in columns)
    job.exits(0, 1, at=at + 40, signal=9)
    return ended(job)


def test_circle_of_kernels_is_sure_where_starts_are_recorded():
    job, one, two = on_device()
    job.rounds(2, group=one).rounds(2, group=two)
    found = reversed_on_device(job, one, two, is_timed=True, start_ns=1)
    assert outline(found)[:4] == ("ORDER_DEADLOCK", None, "CODE_DIVERGENCE", ())
    assert found.verdicts[0].structure_confidence == "high"
    assert "behind" in found.verdicts[0].summary


def test_circle_of_kernels_is_supposed_where_they_are_not():
    job, one, two = on_device()
    found = reversed_on_device(job, one, two)
    assert outline(found)[0] == "ORDER_DEADLOCK"
    assert found.verdicts[0].structure_confidence == "medium"


def test_order_of_calls_on_hosts_holds_nothing_up():
    job = Job(2)
    one, two = job.group([0, 1], name="one"), job.group([0, 1], name="two")
    assert outline(reversed_on_device(job, one, two))[0] == "ALL_ENTERED_NONE_COMPLETED"


def test_call_that_ended_later_shows_that_nothing_stands_in_its_way():
    """Two calls in opposite orders never ended, and calls of a third group behind them did."""
    job, one, two = on_device()
    three, at = job.group([0, 1], name="three", backend="nccl"), 0.0
    job.call(0, at, group=one).call(0, at + 0.1, group=two).call(1, at, group=two).call(1, at + 0.1, group=one)
    job.clock = 1.0
    job.rounds(3, group=three).exits(0, 1, at=40, signal=9)
    assert outline(ended(job))[0] == "ALL_ENTERED_NONE_COMPLETED"


def test_rank_that_does_not_make_a_group_with_the_others_is_named():
    job = Job().rounds(5)
    control, at = job.control(), job.clock
    for rank in (0, 1, 3):
        job.call(rank, at, at + 20, outcome="failed", op="new_group", group=control, numel=0)
    job.call(2, at, at + 20, outcome="failed", site="loop_b")
    job.clock = at + 20
    found = ended(job, after=2)
    assert outline(found)[:4] == ("SKIPPED_CALL", None, "CODE_DIVERGENCE", (2,))
    assert found.verdicts[0].op == "new_group"
    assert found.verdicts[0].waiting_ranks == (0, 1, 3)


def test_group_that_only_half_of_the_ranks_make_blames_nobody():
    job = Job().rounds(5)
    control, at = job.control(), job.clock
    for rank in (0, 1):
        job.call(rank, at, at + 20, outcome="failed", op="new_group", group=control, numel=0)
    for rank in (2, 3):
        job.call(rank, at, at + 20, outcome="failed", site="loop_b")
    job.clock = at + 20
    assert outline(ended(job, after=2))[:4] == ("ORDER_DEADLOCK", None, "CODE_DIVERGENCE", ())
