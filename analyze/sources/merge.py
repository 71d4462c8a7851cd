"""Several sources of one job, put together: one table of each kind, ranks without data included.

Calls are those of one source, since two recordings of one call would be two calls: our own run directory's, else those
that tell most. What only adds to them (facts, progress, counters, who is on which host) is taken from all.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import polars as pl

from roundk.analyze.sources.flight_recorder.groups import DEFAULT
from roundk.analyze.sources.part import Part
from roundk.analyze.trace import Trace, Unreadable, empty
from roundk.tracer import schema

BEST_FIRST: Final = ("run_directory", "flight_recorder", "table", "ncclx", "inspector", "job_log", "ras")
"""Sources by how much their calls, and what they say of a rank, are worth; those that are not named come last."""

_NOT_SEEN: Final = "missing"


def merge(parts: Sequence[Part], run: Trace | None, root: pathlib.Path, unreadable: Sequence[Unreadable]) -> Trace:
    """The trace of a job.

    Args:
        parts: What each source found; at least one, or a run.
        run: The job's run directory as our own recorder's reader gives it; None: it has none.
        root: What paths are relative to.
        unreadable: What no source could read.
    """
    own = [] if run is None else [_of_run(run)]
    ordered = own + sorted(parts, key=lambda part: _worth(part.kind))
    groups = _Groups(ordered)
    best = next((part for part in ordered if part.calls.height), None)
    calls = empty(schema.CALLS) if best is None else groups.renumbered(best, best.calls)
    size = _world_size(ordered, groups.table)
    base = run or Trace(root=root, is_post_mortem=True)
    return replace(
        base,
        root=root,
        calls=calls,
        groups=groups.table,
        ranks=_ranks(ordered, best, size, _all_ranks(groups.table, size)),
        sites=empty(schema.SITES) if best is None else best.sites,
        progress=_stacked(ordered, lambda part: groups.renumbered(part, part.progress)).sort(
            "rank", "group", maintain_order=True
        ),
        facts=_stacked(ordered, lambda part: part.facts).sort("time_ns", nulls_last=True, maintain_order=True),
        stacks=_stacked(ordered, lambda part: part.stacks),
        steps=_stacked(ordered, lambda part: part.steps),
        channels=_stacked(ordered, lambda part: part.channels),
        counters=_counters(ordered),
        benchmarks=_stacked(ordered, lambda part: part.benchmarks),
        world_size=size,
        is_size_told=_is_size_told(ordered),
        unreadable=(*base.unreadable, *(one for part in parts for one in part.unreadable), *unreadable),
        truncated=tuple(sorted({rank for part in ordered for rank in part.truncated})),
        # What a source has to say of calls that are not taken concerns nobody.
        notes=(*base.notes, *(n for part in parts if part is best or not part.calls.height for n in part.notes)),
        members_told=best is None or best.members_told,
        sources={**base.sources, **{part.kind: len(part.read) for part in parts if part.read}},
    )


def _worth(kind: str) -> int:
    return BEST_FIRST.index(kind) if kind in BEST_FIRST else len(BEST_FIRST)


def _of_run(run: Trace) -> Part:
    return Part(
        kind="run_directory",
        calls=run.calls,
        groups=run.groups,
        ranks=run.ranks,
        sites=run.sites,
        facts=run.facts,
        stacks=run.stacks,
        steps=run.steps,
        counters=run.counters,
        world_size=run.world_size,
        truncated=run.truncated,
    )


def _stacked(parts: Sequence[Part], table: Callable[[Part], pl.DataFrame]) -> pl.DataFrame:
    return pl.concat([table(part) for part in parts], how="vertical_relaxed")


def _counters(parts: Sequence[Part]) -> pl.DataFrame:
    """The counters of all sources in their order; those of one source are in it already."""
    table = _stacked(parts, lambda part: part.counters)
    if sum(part.counters.height > 0 for part in parts) < 2:
        return table
    return table.sort("host", "device", "port", "counter", "time_ns", maintain_order=True)


class _Groups:
    """The groups of all sources under common keys: a name and its members, of which a source may know only some."""

    def __init__(self, parts: Sequence[Part]) -> None:
        rows: list[dict[str, object]] = []
        self._keys: dict[tuple[int, int], int] = {}
        known: dict[tuple[str, tuple[int, ...]], int] = {}
        for number, part in enumerate(parts):
            told_before = dict(known)
            for row in part.groups.iter_rows(named=True):
                name, members = row["name"], tuple(row["ranks"])
                key = known.get((name, members))
                if key is None:
                    key = _only(told_before, name, members)
                if key is None:
                    key = known[name, members] = len(rows)
                    rows.append({**row, "group": key})
                self._keys[number, row["group"]] = key
        self._parts = list(parts)
        columns = empty(schema.GROUPS).schema
        self.table = pl.DataFrame(rows, schema=columns)

    def renumbered(self, part: Part, table: pl.DataFrame) -> pl.DataFrame:
        """A table of a source with the common keys."""
        number = next(k for k, one in enumerate(self._parts) if one is part)
        keys = {old: new for (of, old), new in self._keys.items() if of == number}
        if all(old == new for old, new in keys.items()):
            return table
        return table.with_columns(group=pl.col("group").replace_strict(keys, return_dtype=pl.Int32))


def _only(known: dict[tuple[str, tuple[int, ...]], int], name: str, members: tuple[int, ...]) -> int | None:
    """The one group of a name that has these members and more: a log names those that it saw."""
    keys = [key for (of, ranks), key in known.items() if of == name and set(ranks).issuperset(members)]
    return keys[0] if len(keys) == 1 else None


def _world_size(parts: Sequence[Part], groups: pl.DataFrame) -> int | None:
    told = next((part.world_size for part in parts if part.world_size is not None), None)
    if told is not None:
        return told
    members = groups["ranks"].explode().drop_nulls()
    seen = [ranks for part in parts if not (ranks := part.ranks["rank"].drop_nulls()).is_empty()]
    highest = [int(str(column.max())) for column in (members, *seen) if not column.is_empty()]
    return max(highest) + 1 if highest else None


def _is_size_told(parts: Sequence[Part]) -> bool:
    """Not by dumps of a torch that writes no members of groups: they count who left one."""
    told = [part for part in parts if part.world_size is not None]
    return any(part.members_told or part.kind != "flight_recorder" for part in told)


def _all_ranks(groups: pl.DataFrame, size: int | None) -> list[int]:
    """The members of the one default group of that size, which may begin elsewhere than at 0; empty: not told."""
    worlds = groups.filter(pl.col("desc") == DEFAULT, pl.col("ranks").list.len() == (size or 0))["ranks"].to_list()
    return worlds[0] if len(worlds) == 1 else []


def _ranks(parts: Sequence[Part], best: Part | None, size: int | None, members: Sequence[int]) -> pl.DataFrame:
    """One row per rank: what the best source that has it says, by column; of `data` what the calls' source says."""
    columns = empty(schema.RANKS)
    known = [
        part.ranks.with_columns(worth=pl.lit(k), at_hand=pl.lit(best is None or part is best))
        for k, part in enumerate(parts)
    ]
    told = pl.concat([columns.with_columns(worth=pl.lit(0), at_hand=pl.lit(True)), *known], how="vertical_relaxed")
    every = pl.DataFrame({"rank": members or range(size or 0)}, schema={"rank": pl.Int32})
    firsts = [pl.col(name).drop_nulls().first() for name in columns.columns if name not in ("rank", "data", "calls")]
    merged = (
        told.filter(pl.col("rank").is_not_null())
        .sort("worth", maintain_order=True)
        .group_by("rank", maintain_order=True)
        .agg(
            *firsts,
            data=pl.col("data").filter(pl.col("at_hand")).first(),
            calls=pl.col("calls").filter(pl.col("at_hand")).first(),
        )
    )
    return (
        every.join(merged, on="rank", how="full", coalesce=True)
        .with_columns(
            data=pl.col("data").fill_null(_NOT_SEEN),
            calls=pl.col("calls").fill_null(0),
            calls_lost=pl.col("calls_lost").fill_null(0),
        )
        .select(columns.columns)
        .sort("rank")
    )
