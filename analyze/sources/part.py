"""What one kind of input tells of a job, before the kinds are put together."""

from __future__ import annotations

from dataclasses import dataclass, field

import polars as pl

from roundk.analyze.trace import Unreadable, empty
from roundk.tracer import schema


@dataclass(frozen=True)
class Part:
    """The tables of one source: its keys of groups and sites are its own, its ranks are global ones.

    A table that the source does not have is an empty frame. Columns are those of `roundk.tracer.schema`; `source`
    columns hold the name of an `Input`, behind it `:` and a line number where the input has lines.

    Attributes:
        kind: Name of the source in `coverage.sources`.
        read: Names of the inputs that something was read from.
        ignored: Names of inputs that were looked through without finding anything.
        ranks: Rows of the ranks that the source knows something of; others need none.
        members_told: It tells who the members of all its groups are; else they are who has calls.
        world_size: Number of ranks, where the source tells.
        unreadable: Inputs, or what parts of them, that could not be read or were refused.
        truncated: Ranks with an input that is cut short.
        versions: Formats and versions found, for `roundk show`: `Flight Recorder 2.10, pickle`.
        notes: What else there is to say to the user.
    """

    kind: str
    read: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    calls: pl.DataFrame = field(default_factory=lambda: empty(schema.CALLS))
    groups: pl.DataFrame = field(default_factory=lambda: empty(schema.GROUPS))
    progress: pl.DataFrame = field(default_factory=lambda: empty(schema.PROGRESS))
    ranks: pl.DataFrame = field(default_factory=lambda: empty(schema.RANKS))
    sites: pl.DataFrame = field(default_factory=lambda: empty(schema.SITES))
    facts: pl.DataFrame = field(default_factory=lambda: empty(schema.FACTS))
    stacks: pl.DataFrame = field(default_factory=lambda: empty(schema.STACKS))
    steps: pl.DataFrame = field(default_factory=lambda: empty(schema.STEPS))
    channels: pl.DataFrame = field(default_factory=lambda: empty(schema.CHANNELS))
    counters: pl.DataFrame = field(default_factory=lambda: empty(schema.COUNTERS))
    benchmarks: pl.DataFrame = field(default_factory=lambda: empty(schema.BENCHMARKS))
    members_told: bool = True
    world_size: int | None = None
    unreadable: tuple[Unreadable, ...] = ()
    truncated: tuple[int, ...] = ()
    versions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
