"""Everyone is in, and starts are recorded: whose kernel never started?

The call waits in its stream behind other work of that rank: a compute kernel that hangs, a copy, an event. Work that is
itself a call of another group is no answer: then the rank waits there.
"""

from __future__ import annotations

import polars as pl

from roundk.analyze import cause
from roundk.analyze.case import LATE_FLOOR_NS, Case
from roundk.analyze.finding import Evidence, Finding
from roundk.analyze.names import Structure
from roundk.analyze.phrases import ranks_text, verb
from roundk.analyze.structure.entered import may_be_chance, seen_open
from roundk.analyze.structure.last_seen import waiting_evidence
from roundk.analyze.structure.missing import open_doubts
from roundk.analyze.waitfor import StuckRound, WaitFor, stuck_text


def not_started(case: Case, graph: WaitFor) -> list[Finding]:
    """The first round that everyone entered and that started on some members and not on others."""
    for stuck in graph.full_rounds:
        if stuck.pair is not None or stuck.unsure:
            continue
        late = _late(case, stuck)
        if late and not may_be_chance(case, stuck):
            return [_finding(case, graph, stuck, late)]
    return []


def _late(case: Case, stuck: StuckRound) -> tuple[int, ...]:
    """Members whose start is missing where peers' is there; none where starts are not recorded of all of them."""
    calls = case.round_calls(stuck.group, stuck.seq)
    has_started = pl.col("start_ns").is_not_null() | (pl.col("outcome") == "completed")
    told = pl.col("is_timed").fill_null(value=False) | has_started
    if calls.is_empty() or not calls.select(told.all()).item():
        return ()
    behind = calls.filter(~has_started, pl.col("rank").is_in(list(stuck.inside)))["rank"].to_list()
    if not behind or len(behind) == calls.height:
        return ()
    # Of its other open calls only one that it made before can be what it waits for.
    since = calls.select("rank", since="enter_ns")
    elsewhere = (
        case.blocked.filter(pl.col("rank").is_in(behind))
        .join(since, on="rank")
        .filter((pl.col("group") != stuck.group) | pl.col("p2p") | (pl.col("seq") < stuck.seq))
        .filter((pl.col("enter_ns") <= pl.col("since")).fill_null(value=True))
    )
    return tuple(sorted(set(behind) - set(elsewhere["rank"].to_list())))


def _finding(case: Case, graph: WaitFor, stuck: StuckRound, late: tuple[int, ...]) -> Finding:
    few = 2 * len(late) <= len(stuck.entered)
    waiting = tuple(rank for rank in stuck.inside if rank not in late)
    victims, groups = graph.victims(late)
    spans = seen_open(case, stuck)
    proven = case.timed_out or max(spans, default=0) >= LATE_FLOOR_NS
    its = verb(late, "its kernel", "their kernels")
    return Finding(
        structure=Structure.KERNEL_NOT_STARTED,
        summary=f"All members entered {stuck_text(case, stuck)}, and on {ranks_text(late)} {its} never started: "
        f"something before it in {verb(late, 'its', 'their')} stream does not end; {ranks_text(waiting)} "
        f"{verb(waiting, 'waits', 'wait')}.",
        culprits=late if few else (),
        sides=() if few else late,
        group=stuck.group,
        seq=stuck.seq,
        op=stuck.op,
        onset_ns=stuck.onset_ns,
        waiting=waiting,
        victim_ranks=tuple(sorted({*victims, *waiting} - set(late))),
        victim_groups=tuple(sorted({*groups, stuck.group})),
        reason=cause.UNDETERMINED,
        doubts=(
            *open_doubts(case, spans),
            *(() if proven else ("a start that is looked for at once is late on any rank now and then",)),
            *(() if few else ("it started on fewer than half of the members",)),
        ),
        evidence=(
            *(
                Evidence(f"{stuck.op} #{stuck.seq} did not start on rank {rank}", case.source(rank), rank)
                for rank in late[:4]
            ),
            *waiting_evidence(case, stuck),
        ),
        next_steps=(
            f"look at what the GPU of {ranks_text(late)} runs: py-spy dump --native, cuda-gdb, nvidia-smi",
            "look at the kernels that are launched before this call at its line: one of them hangs or waits",
        ),
    )
