"""What a source hands to the analysis: the tables of one job and what is known about the tables."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

import polars as pl
import pyarrow as pa

from roundk.tracer import schema


def empty(columns: pa.Schema) -> pl.DataFrame:
    """A frame of these columns without rows: what stands for a table that a source does not have."""
    return frame(columns.empty_table())


def frame(table: pa.Table) -> pl.DataFrame:
    """An Arrow table as a polars frame, without copying where the layouts agree."""
    return cast("pl.DataFrame", pl.from_arrow(table))


@dataclass(frozen=True)
class Unreadable:
    """A file or folder that could not be read, and why; the path is relative to what the user named."""

    path: str
    why: str


@dataclass(frozen=True)
class Trace:
    """One job as its sources tell it.

    The columns of the tables are those of `roundk.tracer.schema`. A table that the sources lack is an empty frame.

    Attributes:
        root: What the user named; paths in the report are relative to it.
        calls: One row per call, `schema.CALLS`.
        groups: One row per process group, `schema.GROUPS`.
        ranks: One row per rank of the job, ranks without data included, `schema.RANKS`.
        sites: One row per call site, `schema.SITES`.
        facts: One row per fact that is not a call, `schema.FACTS`.
        stacks: One row per thread of each dump of Python stacks, `schema.STACKS`.
        steps: One row per training step of a rank, `schema.STEPS`.
        progress: One row per counter of how far a rank had come in a group, `schema.PROGRESS`.
        channels: One row per end of a channel between two ranks, `schema.CHANNELS`.
        counters: One row per sample of a link's or device's counter, `schema.COUNTERS`.
        benchmarks: One row per result of nccl-tests, `schema.BENCHMARKS`.
        world_size: Number of ranks; None where nothing tells.
        is_size_told: A source tells it; else it is only as many as were seen.
        command: What was run, for the reader of the report.
        started_ns: Start of the job, Unix time.
        ended_ns: End of the job as its launcher noted it; None: no end was noted.
        exit_code: Exit code of the job.
        last_alive_ns: Last sign of life of anything in the job.
        clock_error_ns: Bound of the offsets between the hosts' clocks; None: not known.
        unreadable: What could not be read.
        truncated: Ranks with a file that is cut short.
        notes: What else the source had to say.
        sources: How many inputs of each kind were read.
        members_told: The source of the calls tells who the members of all groups are; else they are who has calls.
        is_post_mortem: The inputs are what a job left behind, not a recording that may still go on.
    """

    root: pathlib.Path
    calls: pl.DataFrame = field(default_factory=lambda: empty(schema.CALLS))
    groups: pl.DataFrame = field(default_factory=lambda: empty(schema.GROUPS))
    ranks: pl.DataFrame = field(default_factory=lambda: empty(schema.RANKS))
    sites: pl.DataFrame = field(default_factory=lambda: empty(schema.SITES))
    facts: pl.DataFrame = field(default_factory=lambda: empty(schema.FACTS))
    stacks: pl.DataFrame = field(default_factory=lambda: empty(schema.STACKS))
    steps: pl.DataFrame = field(default_factory=lambda: empty(schema.STEPS))
    progress: pl.DataFrame = field(default_factory=lambda: empty(schema.PROGRESS))
    channels: pl.DataFrame = field(default_factory=lambda: empty(schema.CHANNELS))
    counters: pl.DataFrame = field(default_factory=lambda: empty(schema.COUNTERS))
    benchmarks: pl.DataFrame = field(default_factory=lambda: empty(schema.BENCHMARKS))
    world_size: int | None = None
    is_size_told: bool = True
    command: tuple[str, ...] = ()
    started_ns: int | None = None
    ended_ns: int | None = None
    exit_code: int | None = None
    last_alive_ns: int | None = None
    clock_error_ns: int | None = None
    unreadable: tuple[Unreadable, ...] = ()
    truncated: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    sources: Mapping[str, int] = field(default_factory=dict)
    members_told: bool = True
    is_post_mortem: bool = False
