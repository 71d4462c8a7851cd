"""Do the send and the receive of one message agree on what it carries?"""

from __future__ import annotations

from typing import Any

import polars as pl

from roundk.analyze.case import Case
from roundk.analyze.finding import Evidence, Finding, Reason
from roundk.analyze.names import Cause, Confidence, Detail, Structure
from roundk.analyze.structure.sides import describe
from roundk.analyze.waitfor import StuckRound, WaitFor, stuck_calls


def misfits(case: Case, graph: WaitFor) -> list[Finding]:
    """The first message that hangs between two ranks that ask for different sizes or types of it.

    A message that went through says nothing: some backends let a receiver have room to spare.
    """
    stuck = [r for r in graph.rounds if r.pair is not None and None not in r.pair and not (r.missing or r.unsure)]
    for one in sorted(stuck, key=lambda r: r.order):
        finding = _finding(case, graph, one)
        if finding is not None:
            return [finding]
    return []


def _finding(case: Case, graph: WaitFor, stuck: StuckRound) -> Finding | None:
    calls = stuck_calls(case, stuck).sort(pl.col("op").cast(pl.String), descending=True)
    if calls["op"].cast(pl.String).to_list() != ["send", "recv"] or not calls["is_aligned"].all():
        return None
    send, receive = calls.iter_rows(named=True)
    detail = _detail(send, receive)
    if detail is None:
        return None
    between = f"from rank {send['rank']} to rank {receive['rank']}"
    victims, groups = graph.victims(stuck.entered)
    return Finding(
        structure=Structure.SIGNATURE_MISMATCH,
        detail=detail,
        summary=f"Message #{stuck.seq} {between} does not fit: rank {send['rank']} called {describe(case, send)}, rank "
        f"{receive['rank']} {describe(case, receive)}.",
        sides=stuck.entered,
        group=stuck.group,
        seq=stuck.seq,
        op=stuck.op,
        onset_ns=stuck.onset_ns,
        waiting=stuck.inside,
        victim_ranks=tuple(sorted({*victims, *stuck.inside})),
        victim_groups=tuple(sorted({*groups, stuck.group})),
        reason=Reason(Cause.CODE_DIVERGENCE, Confidence.MEDIUM),
        doubts=("either side may be the wrong one",),
        evidence=tuple(
            Evidence(f"rank {call['rank']} called {describe(case, call)}", case.source(call["rank"]), call["rank"],
                     call["enter_ns"])
            for call in (send, receive)
        ),
        next_steps=("compare the tensors at the two call sites: shape, type, and which message of the step it is",),
    )  # fmt: skip


def _detail(send: dict[str, Any], receive: dict[str, Any]) -> Detail | None:
    """What of the message differs; None: nothing, or too little is recorded."""
    sizes = [_size(call) for call in (send, receive)]
    dtypes = {call["dtype"] for call in (send, receive)}
    is_other_type = None not in dtypes and len(dtypes) == 2
    # As many elements of another type have another size too: it is the type that is wrong.
    if all(sizes) and sizes[0] != sizes[1] and not (is_other_type and send["numel"] == receive["numel"]):
        return Detail.SIZE
    return Detail.DTYPE if is_other_type else None


def _size(call: dict[str, Any]) -> int:
    """Bytes of the message; 0: not recorded. Some sources have a receive's tensors as its input, some as its output."""
    return max(call["bytes_in"] or 0, call["bytes_out"] or 0)
