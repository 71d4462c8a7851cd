"""What the recording shows last of a rank that never came, and of those who waited for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import polars as pl

from roundk.analyze.case import Case
from roundk.analyze.finding import Evidence
from roundk.analyze.phrases import duration, ranks_text
from roundk.analyze.waitfor import StuckRound

SHOWN_RANKS: Final = 8
"""Ranks of which the last call and signs of life are told one by one."""


def without_calls(case: Case, ranks: Sequence[int]) -> list[int]:
    """Those of some ranks of which neither a call nor a counter is kept."""
    told = case.counted.union(case.calls.filter(pl.col("rank").is_in(list(ranks)))["rank"].unique().to_list())
    return [rank for rank in ranks if rank not in told]


def last_evidence(case: Case, ranks: Sequence[int]) -> list[Evidence]:
    """The last thing that the recording shows of some ranks; of those of which it shows nothing, in one piece.

    Args:
        case: The case.
        ranks: The ranks.
    """
    bare = without_calls(case, ranks)
    files = {rank: _empty_file(case, rank) for rank in bare if case.source(rank)}
    found = [piece for piece in files.values() if piece is not None]
    if nothing := [rank for rank in bare if files.get(rank) is None]:
        what = f"{ranks_text(nothing)} made no recorded call"
        found.append(Evidence(what, case.file(nothing[0]), nothing[0] if len(nothing) == 1 else None))
    known = [rank for rank in ranks if rank not in set(bare)]
    found.extend(last_call(case, rank) for rank in known[:SHOWN_RANKS])
    if left := known[SHOWN_RANKS:]:
        found.append(Evidence(f"{ranks_text(left)}: not listed one by one", case.source(left[0]), left[0]))
    return found


def _empty_file(case: Case, rank: int) -> Evidence | None:
    """A dump without a byte, which tells less than one without entries."""
    is_empty = (pl.col("kind") == "dump_empty") & (pl.col("rank") == rank)
    fact = next(case.trace.facts.filter(is_empty).iter_rows(named=True), None)
    return None if fact is None else Evidence(f"the dump of rank {rank} is an empty file", fact["source"], rank)


def counted(case: Case, rank: int, group: int) -> Evidence | None:
    """How far a rank without a recorded call had come, by its counters: in a group, else in one where it is behind.

    Args:
        case: The case.
        rank: The rank.
        group: The group that is asked for first.

    Returns:
        None where calls of it are kept, or no counter is.
    """
    if not case.calls.filter(pl.col("rank") == rank).is_empty():
        return None
    furthest = case.frontier.group_by("group").agg(furthest=pl.col("last_entered").max())
    behind = (
        case.frontier.filter(pl.col("rank") == rank, pl.col("told"))
        .join(furthest, on="group")
        .filter((pl.col("group") == group) | (pl.col("last_entered") < pl.col("furthest")))
        .sort(pl.col("group") != group, "group")
    )
    if behind.is_empty():
        return None
    at = behind.row(0, named=True)
    told = case.trace.progress.filter(pl.col("rank") == rank, pl.col("group") == at["group"])
    where = told.sort("enqueued", nulls_last=False).row(-1, named=True)
    peer = f"; a peer #{at['furthest']}" if at["furthest"] > at["last_entered"] else ""
    what = f"by its counters rank {rank} had entered #{at['last_entered']} of {case.groups[at['group']].text}"
    return Evidence(f"{what} and completed #{at['last_completed']}{peer}", where["source"], rank, where["time_ns"])


def last_call(case: Case, rank: int) -> Evidence:
    """The last thing that the recording shows of a rank."""
    source = case.source(rank)
    rows = case.calls.filter(pl.col("rank") == rank).tail(1)
    if rows.is_empty():
        return _empty_file(case, rank) or Evidence(f"rank {rank} made no recorded call", case.file(rank), rank, None)
    row = rows.row(0, named=True)
    how = "" if row["outcome"] == "completed" else f", {row['outcome'].replace('_', ' ')}"
    return Evidence(f"last call of rank {rank}: {call_text(case, row)}{how}", source, rank, row["enter_ns"])


def call_text(case: Case, row: dict[str, Any]) -> str:
    """A call in a few words: `all_reduce #5 (train.py:42)`."""
    return f"{row['op']} #{row['seq']}{case.at_site(row['site'])}"


def waiting_evidence(case: Case, stuck: StuckRound) -> list[Evidence]:
    """Who entered the round, and how the first of them to give up did."""
    found: list[Evidence] = []
    first = stuck.inside[0] if stuck.pair is not None else _first_inside(case, stuck)
    order = "" if stuck.onset_ns is None or len(stuck.entered) == 1 else f", rank {first} first"
    what = f"{ranks_text(stuck.entered)} entered {stuck.op} #{stuck.seq}{order}"
    found.append(Evidence(what, case.source(first), first, stuck.onset_ns))
    failed = case.blocked.filter(pl.col("outcome") == "failed", pl.col("end_ns").is_not_null())
    for row in failed.sort("end_ns", "rank").head(1).iter_rows(named=True):
        after = "" if row["enter_ns"] is None else f" after {duration(row['end_ns'] - row['enter_ns'])}"
        text = f"first to give up: rank {row['rank']}{after} in {call_text(case, row)}"
        found.append(Evidence(text, case.source(row["rank"]), row["rank"], row["end_ns"]))
    return found


def _first_inside(case: Case, stuck: StuckRound) -> int:
    first = case.round_calls(stuck.group, stuck.seq).sort("enter_ns", "rank", nulls_last=True)["rank"]
    return stuck.inside[0] if first.is_empty() else int(first[0])
