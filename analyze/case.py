"""A trace made ready for the questions: derived tables, the rounds that are stuck, how everybody ended."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Final

import polars as pl

from roundk.analyze import clocks, coalesced, control, end_signal, kills
from roundk.analyze.calls import ready
from roundk.analyze.endings import Ending, How, endings
from roundk.analyze.frontier import frontier
from roundk.analyze.pairs import aligned
from roundk.analyze.phrases import NS_PER_S, group_text, place
from roundk.analyze.rounds import rounds
from roundk.analyze.stacks import Dump, main_threads
from roundk.analyze.stops import Stop, stops
from roundk.analyze.told import Told
from roundk.analyze.trace import Trace
from roundk.analyze.troubles import Trouble, troubles
from roundk.tracer import words

LIVE_NS: Final = 60 * NS_PER_S
"""A job whose last sign of life is older than this is taken as ended: its recorders write every 10 ms."""

LATE_FLOOR_NS: Final = NS_PER_S
"""Least absence that counts when a whole job is ended at once: below it a rank was merely the last to come."""

MANY: Final = 2
MANY_SHARE: Final = 0.05
"""Ranks, and their share of the job, that one fault takes at most."""

START_FLOOR_NS: Final = 10 * NS_PER_S
"""The same for the making and destroying of groups: importing torch and a last save take their time."""

_SIDE: Final = ".jsonl"
"""Side file of a process in a run directory: groups, places and ends; its calls are in STEM-<n>.arrow."""

_JOB_ENDS: Final = (
    "watchdog_abort",
    "process_terminated",
    "terminate",
    "tc_abort",
    "store_clients",
    "store_barrier",
    "elastic_failed",
    "elastic_failure",
    "mpirun_exit",
    "slurm_task_exit",
    "slurm_time_limit",
    "slurm_node_failure",
    "slurm_preempted",
    "slurm_cancelled",
    "slurm_aborted",
)
"""Facts of logs with which a job ends: a launcher ends the rest when one rank is gone."""


@dataclass(frozen=True)
class Group:
    """A process group."""

    key: int
    name: str
    desc: str
    backend: str
    ranks: tuple[int, ...]

    @property
    def is_control(self) -> bool:
        """Its calls are not torch's collectives but those that make and destroy groups."""
        return self.desc == words.CONTROL

    @property
    def text(self) -> str:
        """What to call it in a sentence."""
        return group_text(self.name, self.desc, destroying=control.is_destruction(self.key))


@dataclass(frozen=True)
class Site:
    """A place in the code from which a call was made."""

    file: str
    line: int
    function: str
    loop: int | None
    frames: tuple[tuple[str, int | None], ...] = ()
    """`file:line function` and loop of every frame of the first call, outermost first; empty where not recorded."""
    stack: tuple[str, ...] = ()
    """The same without loops, innermost first."""

    @property
    def text(self) -> str:
        """`train.py:42`."""
        return place(self.file, self.line)


@dataclass(frozen=True)
class Case:
    """A trace with everything that is derived once and asked often.

    Attributes:
        calls: As `calls.ready` makes them, by rank and then in the order of entering.
        rounds: As `rounds.rounds` makes them.
        frontier: As `frontier.frontier` makes it.
        blocked: The rows of `calls` in which a rank hangs or failed for good.
        endings: How each rank ended.
        dumps: The stacks of each rank's main thread, in the order in which they were written.
        now_ns: The time of the analysis.
        stall_ns: Age from which an open round of a living job counts as stuck.
        told_to_end: The signal by which somebody ended the whole job.
    """

    trace: Trace
    calls: pl.DataFrame
    rounds: pl.DataFrame
    frontier: pl.DataFrame
    blocked: pl.DataFrame
    groups: dict[int, Group]
    sites: dict[int, Site]
    endings: dict[int, Ending]
    dumps: dict[int, tuple[Dump, ...]]
    now_ns: int
    stall_ns: int
    told_to_end: Told | None = None

    @functools.cached_property
    def last_alive_ns(self) -> int:
        """Last sign of life of any rank or of the launcher."""
        known = [e.last_alive_ns for e in self.endings.values() if e.last_alive_ns is not None]
        if self.trace.last_alive_ns is not None:
            known.append(self.trace.last_alive_ns)
        return max(known, default=self.trace.ended_ns or 0)

    @functools.cached_property
    def ended(self) -> bool:
        """The job is known to have ended."""
        if self.trace.ended_ns is not None or (self.trace.is_post_mortem and tells_end(self.trace.facts)):
            return True
        return bool(self.endings) and all(e.how is not How.UNKNOWN for e in self.endings.values())

    @functools.cached_property
    def alive(self) -> bool:
        """The job is not known to have ended, and something of it moved within the last minute (by any clock)."""
        return not (self.ended or self.trace.is_post_mortem) and abs(self.now_ns - self.last_alive_ns) <= LIVE_NS

    @functools.cached_property
    def in_order(self) -> bool:
        """The job ended, and nothing says that it ended badly."""
        ways = {e.how for e in self.endings.values()}
        if self.trace.exit_code is not None:
            # A shell around the launcher may hide the code of what failed inside.
            return self.trace.exit_code == 0 and not ways & {How.EXCEPTION, How.SIGNAL, How.EXIT_CODE}
        return ways == {How.CLEAN}

    @functools.cached_property
    def is_hung(self) -> bool:
        """A call is open or failed for good, or counters tell of one that did not complete."""
        behind = pl.col("told") & (pl.col("last_entered") > pl.col("last_completed"))
        return not (self.blocked.is_empty() and self.frontier.filter(behind).is_empty())

    @functools.cached_property
    def troubles(self) -> tuple[Trouble, ...]:
        """Faults that machines report of themselves, by time."""
        return tuple(troubles(self.trace))

    @functools.cached_property
    def stops(self) -> tuple[Stop, ...]:
        """Times in which processes were stopped."""
        return tuple(stops(self.trace))

    @functools.cached_property
    def gave_up_ns(self) -> int | None:
        """When the first waiting rank saw its call fail; None: none did."""
        failed = self.blocked.filter(pl.col("outcome") == "failed")["end_ns"].drop_nulls()
        return None if failed.is_empty() else _int(failed.min())

    @functools.cached_property
    def timed_out(self) -> bool:
        """Somebody waited until a timeout: what was open then made no progress."""
        gave_up = self.gave_up_ns is not None and self.told_to_end is None
        return gave_up or "collective_timeout" in self.trace.facts["kind"]

    @functools.cached_property
    def failed_ranks(self) -> frozenset[int]:
        """Ranks whose call failed for good: their errors may be those of their peers."""
        return frozenset(self.blocked.filter(pl.col("outcome") == "failed")["rank"].to_list())

    @functools.cached_property
    def unrecorded(self) -> frozenset[int]:
        """Ranks whose last calls may be lost: that one is absent says nothing."""
        return frozenset(self.frontier.filter("lost")["rank"].to_list())

    @functools.cached_property
    def counted(self) -> frozenset[int]:
        """Ranks that left counters of their progress: they lived to write them, with or without calls beside."""
        return frozenset(self.trace.progress["rank"].drop_nulls().to_list())

    @functools.cached_property
    def unrecorded_calls(self) -> frozenset[int]:
        """Ranks that made calls of which their source holds no record: gloo's dumps have no sends and receives."""
        return frozenset(self.trace.facts.filter(pl.col("kind") == "calls_unrecorded")["rank"].to_list())

    @functools.cached_property
    def control_groups(self) -> frozenset[int]:
        """Keys of the groups whose calls make and destroy groups."""
        return frozenset(group.key for group in self.groups.values() if group.is_control)

    @functools.cached_property
    def ordinary_rounds(self) -> pl.DataFrame:
        """The rounds of torch's own groups."""
        return self.rounds.filter(~pl.col("group").is_in(sorted(self.control_groups)))

    @functools.cached_property
    def comparable_rounds(self) -> pl.DataFrame:
        """Rounds whose calls must be alike: the making of groups counts only where somebody hangs in it."""
        hung = self.blocked["group"].unique().to_list()
        quiet = [key for key in self.control_groups if key not in hung]
        return self.rounds.filter(~pl.col("group").is_in(quiet))

    def is_many(self, ranks: Collection[int]) -> bool:
        """More than one fault hits at once: of a moment's snapshot they are rather behind than at fault.

        Source: the cap on culprit sets, two ranks or 5 % of the job.
        """
        return len(ranks) > max(MANY, self.trace.ranks.height * MANY_SHARE)

    def member_ranks(self, group: int) -> tuple[int, ...]:
        """The members of a group in group order."""
        return self.groups[group].ranks if group in self.groups else ()

    def site(self, key: int | None) -> Site | None:
        """A call site by its key."""
        return None if key is None else self.sites.get(key)

    def branch(self, key: int | None, other: int | None) -> str:
        """Where the stack of a site leaves that of another one that ends in the same line: `save (train.py:61)`."""
        mine, theirs = self.site(key), self.site(other)
        if mine is None or theirs is None or mine.stack[:1] != theirs.stack[:1]:
            return ""
        frame = next((a for a, b in zip(mine.stack, theirs.stack, strict=False) if a != b), "")
        where, _, function = frame.partition(" ")
        return f"{function} ({pathlib.PurePath(where).name})" if function else ""

    def at_site(self, key: int | None) -> str:
        """A call site behind what was called there: ` (train.py:42)`; nothing where it is not known."""
        site = self.site(key)
        return "" if site is None else f" ({site.text})"

    def round_text(self, group: int, seq: int, op: str, site: int | None) -> str:
        """A round in a sentence: `all_reduce #5 of group tp (train.py:42)`."""
        return f"{op} #{seq} of {self.groups[group].text}{self.at_site(site)}"

    def file(self, rank: int) -> str:
        """The file that speaks for a rank: its groups, its end, and that it was there."""
        ending = self.endings.get(rank)
        return "" if ending is None else ending.source

    def source(self, rank: int) -> str:
        """The file that holds the calls of a rank; of a run directory its segments."""
        source = self.file(rank)
        is_side = source.endswith(_SIDE) and "run_directory" in self.trace.sources
        return f"{source.removesuffix(_SIDE)}-*.arrow" if is_side else source

    def call(self, group: int, seq: int, rank: int) -> dict[str, Any] | None:
        """One collective call, as a mapping from column to value."""
        return next(iter(self.round_calls(group, seq).filter(pl.col("rank") == rank).iter_rows(named=True)), None)

    def round_calls(self, group: int, seq: int) -> pl.DataFrame:
        """All calls of one round."""
        return self.calls.filter(pl.col("group") == group, pl.col("seq") == seq, ~pl.col("p2p"))

    def calls_of(self, rounds: pl.DataFrame) -> pl.DataFrame:
        """All calls of some rounds, given by their `group` and `seq`."""
        keys = ["group", "seq"]
        # To leave out most calls before the join takes a tenth of the time.
        near = pl.col("seq").is_between(rounds["seq"].min(), rounds["seq"].max())
        there = near & pl.col("group").is_in(rounds["group"].unique().to_list())
        return (
            self.calls.lazy()
            .filter(there, ~pl.col("p2p"))
            .join(rounds.lazy().select(keys), on=keys, how="semi")
            .collect()
        )

    def usual_lateness_ns(self, group: int) -> int:
        """What counts as unusually late in this group: beyond anything its rounds showed after their first two."""
        if group in self.control_groups:
            return START_FLOOR_NS
        skews = self.rounds.filter(pl.col("group") == group, pl.col("completed") == pl.col("size"), pl.col("seq") > 2)[
            "skew_ns"
        ].drop_nulls()
        if skews.is_empty():
            return LATE_FLOOR_NS
        # Half as much again as the worst seen: a save on one rank every so many steps must not become a culprit.
        return max(LATE_FLOOR_NS, 5 * _int(skews.median()), _int(skews.max()) * 3 // 2)


def tells_end(facts: pl.DataFrame) -> bool:
    """A line of a log tells that processes of the job, or all of it, were taken down."""
    return not facts.filter(pl.col("kind").is_in(list(_JOB_ENDS))).is_empty()


def build(trace: Trace, *, now_ns: int, stall_ns: int) -> Case:
    """Derive what the questions need.

    Args:
        trace: What the sources found.
        now_ns: The time of the analysis, Unix ns.
        stall_ns: Age from which an open round of a living job counts as stuck.
    """
    trace = kills.with_kills(clocks.aligned(trace))
    kept, groups = control.apart(trace.calls, trace.groups)
    members = groups.select("group", "backend", rank="ranks").explode("rank").drop_nulls("rank")
    # What a job left behind says of each call how it stood at the end; only a recording may have missed the last ends.
    seen = trace.ranks.with_columns(last_alive_ns=pl.lit(None, pl.Int64)) if trace.is_post_mortem else trace.ranks
    whole = coalesced.uncut(coalesced.merged(kept), trace.ranks)
    calls = ready(aligned(whole, trace.ranks).lazy(), members.lazy(), seen.lazy()).collect()
    dumps = main_threads(trace.stacks)
    # A run directory numbers by its own count, which counters of other sources do not follow.
    counters = trace.progress if trace.is_post_mortem else trace.progress.clear()
    reach = _without_timed_out(
        trace, frontier(calls.lazy(), members.lazy(), trace.ranks.lazy(), counters.lazy()).collect()
    )
    case = Case(
        trace=trace,
        calls=calls,
        rounds=rounds(calls.lazy(), members.lazy()).collect(),
        frontier=reach,
        blocked=_blocked(calls, reach, is_final=trace.is_post_mortem),
        groups={row["group"]: _group(row) for row in groups.iter_rows(named=True)},
        sites={row["site"]: _site(row) for row in trace.sites.iter_rows(named=True)},
        endings=endings(trace.ranks, dumps),
        dumps=dumps,
        now_ns=now_ns,
        stall_ns=stall_ns,
    )
    end = end_signal.told_to_end(trace, case.endings, calls, case.gave_up_ns)
    return case if end is None else replace(case, endings=end_signal.because_of(case.endings, end), told_to_end=end)


def _without_timed_out(trace: Trace, reach: pl.DataFrame) -> pl.DataFrame:
    """The frontier, of which nothing is sure of ranks that waited until their own timeout in calls that nobody kept."""
    waited = trace.facts.filter(pl.col("kind") == "collective_timeout")["rank"].drop_nulls().unique()
    kept = trace.ranks.filter(pl.col("data") == "present")["rank"]
    blind = pl.col("rank").is_in(sorted(set(waited.to_list()) - set(kept.to_list())))
    return reach.with_columns(lost=pl.col("lost") | blind, sure=pl.col("sure") & ~blind)


def _blocked(calls: pl.DataFrame, reach: pl.DataFrame, *, is_final: bool) -> pl.DataFrame:
    """Calls that never ended, and failed ones after which the rank completed nothing more in that group.

    Of what a job left behind also those of which no end is told and which cannot have ended, as a member never came.
    """
    stuck = calls.filter(pl.col("outcome").cast(pl.String).is_in(["open", "failed"]))
    untold = calls.filter(
        pl.lit(is_final),
        pl.col("outcome").cast(pl.String) == "not_recorded",
        ~pl.col("p2p"),
        ~pl.col("op").cast(pl.String).is_in(sorted(words.ROOTED)),
    )
    if not untold.is_empty():
        least = reach.filter("sure").group_by("group").agg(least=pl.col("last_entered").min())
        lacking = untold.join(least, on="group", maintain_order="left").filter(pl.col("seq") > pl.col("least"))
        stuck = pl.concat([stuck, lacking.drop("least")])
    return (
        stuck.join(
            reach.select("group", "rank", "last_completed"), on=["group", "rank"], how="left", maintain_order="left"
        )
        .filter((pl.col("outcome") == "open") | pl.col("p2p") | (pl.col("seq") > pl.col("last_completed").fill_null(0)))
        .drop("last_completed")
    )


def _group(row: dict[str, Any]) -> Group:
    return Group(row["group"], row["name"], row["desc"], row["backend"], tuple(row["ranks"]))


def _site(row: dict[str, Any]) -> Site:
    frames = tuple(zip(row["stack"], row["loops"], strict=False))[::-1] if row["loops"] else ()
    return Site(
        file=row["file"],
        line=row["line"],
        function=row["function"],
        loop=row["loop"],
        frames=frames,
        stack=tuple(row["stack"]),
    )


def _int(value: object) -> int:
    if not isinstance(value, int | float):
        raise TypeError(f"a number was expected, not {value!r}")
    return int(value)
