"""What was found, for `roundk show`: what each source gave, and what the tables hold."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any, Final

import polars as pl

from roundk.analyze.output.text import MAX_WIDTH, MIN_WIDTH
from roundk.analyze.output.words import clock
from roundk.analyze.phrases import duration, fold, group_text, number_of
from roundk.analyze.sources.part import Part
from roundk.analyze.trace import Trace
from roundk.tracer import words

TABLES: Final = (
    "calls",
    "groups",
    "ranks",
    "progress",
    "sites",
    "stacks",
    "steps",
    "facts",
    "channels",
    "counters",
    "benchmarks",
)
"""Attributes of `Trace` that are tables."""

_MOST_GROUPS: Final = 12
_MOST_NAMES: Final = 8


def render(trace: Trace, parts: Sequence[Part], *, width: int = 80) -> str:
    """The inventory as text.

    Args:
        trace: The tables.
        parts: What each source gave.
        width: Columns of the terminal.
    """
    width = min(max(width, MIN_WIDTH), MAX_WIDTH)
    lines = _inputs(trace, parts)
    lines += ["", *_ranks(trace), *_groups(trace), *_contents(trace)]
    refused = [f"{one.path}: {one.why}" for one in trace.unreadable]
    lines += _listed("Unreadable", refused) + _listed("Notes", list(trace.notes))
    return "\n".join(line for text in lines for line in _fit(text, width))


def _inputs(trace: Trace, parts: Sequence[Part]) -> list[str]:
    versions = {part.kind: ", ".join(part.versions) for part in parts}
    lines = ["Sources"]
    for kind, count in trace.sources.items():
        lines.append(f"  {kind:<16} {count:>6} {_plural(count, 'input')}  {versions.get(kind, '')}".rstrip())
    read = {name for part in parts for name in part.read}
    ignored = [name for part in parts for name in part.ignored if name not in read]
    if ignored:
        lines.append(f"  {'not recognised':<16} {len(ignored):>6} {_plural(len(ignored), 'input')}  {_some(ignored)}")
    return lines


def _ranks(trace: Trace) -> list[str]:
    least = "" if trace.is_size_told else "at least "
    size = "an unknown number" if trace.world_size is None else f"{least}{trace.world_size:,}"
    lines = [_line("Ranks", f"{_with_data(trace):,} of {size} with data")]
    for word, label in (
        ("present", "with calls"),
        ("empty", "without calls"),
        ("truncated", "cut short"),
        ("missing", "missing"),
    ):
        ranks = trace.ranks.filter(pl.col("data") == word)["rank"].to_list()
        if ranks:
            lines.append(f"  {label:<14} {fold(ranks)}")
    hosts = trace.ranks.filter(pl.col("host").is_not_null()).group_by("host", maintain_order=True).agg("rank")
    named = [f"{host} ({fold(ranks, limit=4)})" for host, ranks in hosts.head(_MOST_NAMES).iter_rows()]
    if named:
        more = f" and {hosts.height - _MOST_NAMES:,} more" if hosts.height > _MOST_NAMES else ""
        lines.append(_line("Hosts", f"{', '.join(named)}{more}"))
    return lines


def _with_data(trace: Trace) -> int:
    """Ranks of the job that there are calls or counters of."""
    counted = trace.progress["rank"].unique().to_list()
    has_any = pl.col("data").is_in(["present", "truncated"]) | (
        (pl.col("data") == "empty") & pl.col("rank").is_in(counted)
    )
    found = trace.ranks.filter(has_any)
    return found.height if trace.world_size is None else found.filter(pl.col("rank") < trace.world_size).height


def _groups(trace: Trace) -> list[str]:
    if trace.groups.is_empty():
        return []
    counts = dict(trace.calls.group_by("group").len().iter_rows())
    ordinary = trace.groups.filter(pl.col("desc") != words.CONTROL)
    largest = ordinary.with_columns(size=pl.col("ranks").list.len()).sort("size", descending=True, maintain_order=True)
    lines = [_line("Groups", f"{ordinary.height:,}")]
    shown = largest.head(_MOST_GROUPS)
    wide = max([14, *(len(_name(row)) for row in shown.iter_rows(named=True))])
    lines += [f"  {_group(row, counts, wide)}" for row in shown.iter_rows(named=True)]
    if largest.height > _MOST_GROUPS:
        lines.append(f"  and {largest.height - _MOST_GROUPS:,} more (--export has all)")
    return lines


def _group(row: dict[str, Any], counts: dict[int, int], wide: int) -> str:
    name = _name(row)
    members = (
        f"{number_of(len(row['ranks']), 'rank')}: {fold(row['ranks'], limit=4)}" if row["ranks"] else "members not told"
    )
    calls = counts.get(row["group"], 0)
    said = [row["backend"]] if row["backend"] else []
    return f"{name:<{wide}} {', '.join([members, *said, number_of(calls, 'call')])}"


def _name(row: dict[str, Any]) -> str:
    return group_text(row["name"], row["desc"]).removeprefix("group ")


def _contents(trace: Trace) -> list[str]:
    lines = []
    if trace.calls.height:
        ways = dict(
            trace.calls.group_by(pl.col("outcome").cast(pl.String)).len().sort("len", descending=True).iter_rows()
        )
        said = ", ".join(f"{count:,} {str(way).replace('_', ' ')}" for way, count in ways.items())
        lines.append(_line("Calls", f"{trace.calls.height:,}: {said}"))
    span = _span(trace)
    if span is not None:
        lines.append(_line("Times", f"{clock(span[0])} to {clock(span[1])} ({duration(span[1] - span[0])})"))
    for name in ("progress", "sites", "stacks", "steps", "channels", "counters", "benchmarks"):
        rows = getattr(trace, name).height
        if rows:
            lines.append(_line(name.capitalize(), number_of(rows, "row")))
    if trace.facts.height:
        kinds = trace.facts.group_by("kind").len().sort("len", "kind", descending=[True, False])
        said = ", ".join(f"{count:,} {kind}" for kind, count in kinds.head(_MOST_NAMES).iter_rows())
        lines.append(
            _line("Facts", f"{trace.facts.height:,}: {said}" + (", ..." if kinds.height > _MOST_NAMES else ""))
        )
    return lines


def _span(trace: Trace) -> tuple[int, int] | None:
    times = [trace.calls["enter_ns"], trace.calls["end_ns"], trace.facts["time_ns"], trace.counters["time_ns"]]
    known = pl.concat([column.cast(pl.Int64).rename("time_ns") for column in times]).drop_nulls()
    return None if known.is_empty() else (int(str(known.min())), int(str(known.max())))


def _line(label: str, text: str) -> str:
    return f"{label:<16} {text}"


def _listed(title: str, texts: list[str]) -> list[str]:
    return ["", title, *(f"  - {text}" for text in texts)] if texts else []


def _some(names: list[str]) -> str:
    return ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")


def _plural(count: int, word: str) -> str:
    return word if count == 1 else f"{word}s"


def _fit(text: str, width: int) -> list[str]:
    """A line, wrapped where it is too long, its continuation under its second column."""
    indent = 4 if text.startswith("  - ") else 17
    return textwrap.wrap(text, width, subsequent_indent=" " * indent, break_on_hyphens=False) or [""]
