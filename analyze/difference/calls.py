"""What the ranks call: how much of what in a step, from where in the code, and where the order first differs."""

from __future__ import annotations

import pathlib
from typing import Any, Final, NamedTuple

import polars as pl

from roundk.analyze.difference.found import NOTHING, Found, Topic
from roundk.analyze.difference.run import Run
from roundk.analyze.phrases import number_of, ranks_text
from roundk.tracer import words

_PARTS: Final = 2
"""Of a file's path that are compared: the same code lies in another directory in another run."""
_MOST_LINES: Final = 4
_MOST_RANKS: Final = 8
"""Of a group whose order of calls is compared: ranks of one group mostly make the same calls."""
_UNITS: Final = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_AGREED: Final = ("op", "numel", "dtype", "reduce_op", "root")


def compare(a: Run, b: Run, found: Found) -> None:
    """Compare the calls of two runs.

    Args:
        a: One run.
        b: The other one.
        found: Takes what is found.
    """
    empty = [run.calls.is_empty() for run in (a, b)]
    if any(empty):
        found.is_untold(Topic.CALLS, "calls", a=empty[0], b=empty[1])
        return
    if a.trace.world_size == b.trace.world_size:
        for here, there, is_a in ((a, b, False), (b, a, True)):
            if silent := sorted(here.callers - there.callers):
                found.is_untold(Topic.CALLS, f"calls of {ranks_text(silent)}", a=is_a, b=not is_a)
    _sequences(a, b, found)
    _mixes(a, b, found)
    _places(a, b, found)


def size_text(count: float) -> str:
    """`1.3 MB`."""
    for unit, name in _UNITS:
        if count >= unit:
            return f"{count / unit:.1f} {name}" if count < 100 * unit else f"{count / unit:.0f} {name}"
    return f"{count:.0f} B"


def _mixes(a: Run, b: Run, found: Found) -> None:
    of_a, of_b = _mix(a), _mix(b)
    if of_a is None or of_b is None:
        name = "calls and bytes per step"
        why = "no two whole steps are recorded" if of_a or of_b else ""
        found.is_untold(Topic.CALLS, name, a=of_a is None, b=of_b is None, why=why)
        return
    for label, op in dict.fromkeys([*of_a, *of_b]):
        cells = [of.get((label, op)) for of in (of_a, of_b)]
        ranks = next(cell.ranks for cell in cells if cell is not None)
        hidden = [cell is None and run.may_have(ranks) for cell, run in zip(cells, (a, b), strict=True)]
        if any(hidden):
            found.is_untold(Topic.CALLS, f"{op}, {label}", a=hidden[0], b=hidden[1])
        else:
            found.texts(Topic.CALLS, f"{op}, {label}", *(NOTHING if cell is None else cell.text for cell in cells))


class _Mix(NamedTuple):
    text: str
    ranks: frozenset[int]


def _mix(run: Run) -> dict[tuple[str, str], _Mix] | None:
    """Calls and bytes of an ordinary step of a rank, by group and operation; None where there are not two whole steps.

    Ordinary is the median over all steps of all ranks that make such calls; the first step, in which groups are set up,
    and the last one, which not all may have finished, are left out.
    """
    steps = run.trace.steps
    last = steps.group_by("rank").agg(pl.col("step").max())["step"].min() if steps.height else None
    if not isinstance(last, int) or last < 2:
        return None
    inside = run.calls.filter(pl.col("step").is_between(1, last, closed="left"))
    cells = (
        inside.group_by("label", "op", "rank", "step")
        .agg(calls=pl.len(), size=pl.col("bytes_in").sum())
        .group_by("label", "op")
        .agg(
            pl.col("calls", "size").sort(),
            pl.col("rank").unique(),
            cells=pl.col("rank").n_unique() * (last - 1),
            have=pl.len(),
        )
        .with_columns(at=pl.col("cells").cast(pl.Int64) // 2 - (pl.col("cells").cast(pl.Int64) - pl.col("have")))
        .filter(pl.col("at") >= 0)  # in most steps there are none
        .select("label", "op", *(pl.col(name).list.get(pl.col("at")) for name in ("calls", "size")), "rank")
        .sort("label", "op")
    )
    return {
        (label, op): _Mix(f"{calls:,} a step" + (f", {size_text(size)}" if size else ""), frozenset(ranks))
        for label, op, calls, size, ranks in cells.iter_rows()
    }


def _places(a: Run, b: Run, found: Found) -> None:
    of_a, of_b = _sites(a), _sites(b)
    if not of_a or not of_b:
        found.is_untold(Topic.CALLS, "places in the code", a=not of_a, b=not of_b)
        return
    only_a = [key for key in of_a if key not in of_b]
    only_b = [key for key in of_b if key not in of_a]
    if not only_a and not only_b:
        found.is_same(Topic.CALLS, number_of(len(of_a), "place in the code", "places in the code"))
        return
    only_a, only_b = _without_moved(only_a, only_b, found)
    for keys, first, of, side in ((only_a, of_a, b, "B"), (only_b, of_b, a, "A")):
        spans = _spans(of)
        untold: dict[str | None, list[_Key]] = {}
        for key in keys:
            why = _why_untold(first[key], spans, of)
            if why is None:
                cells = ("calls it", NOTHING) if side == "B" else (NOTHING, "calls it")
                found.texts(Topic.CALLS, _place(key), *cells)
            else:
                untold.setdefault(why, []).append(key)
        for why, those in untold.items():
            more = f" and {len(those) - _MOST_LINES:,} more" if len(those) > _MOST_LINES else ""
            shown = ", ".join(_place(key) for key in those[:_MOST_LINES]) + more
            found.is_untold(Topic.CALLS, shown, a=side == "A", b=side == "B", why=why or "")


def _why_untold(first: dict[int, int], spans: dict[int, tuple[int, int]], run: Run) -> str | None:
    """Why a run does not tell whether it calls from a place, '' where its ranks are not recorded; None: it does not.

    Args:
        first: The first call from there, by rank, in the other run.
        spans: First and last call that is recorded of each rank of this one.
        run: This one.
    """
    both = [rank for rank in first if rank in spans]
    if not both and run.may_have(first):
        return ""
    most = max(last for _, last in spans.values())
    if not both:
        is_there, is_late = min(first.values()) <= most, True
    else:
        is_there = any(spans[rank][0] <= first[rank] <= spans[rank][1] for rank in both)
        is_late = all(first[rank] > spans[rank][1] for rank in both)
    if is_there:
        return None
    if is_late:
        return f"the run ended before: it made {number_of(most, 'call')} per rank"
    return "the first calls of its ranks are no longer recorded"


_Key = tuple[str, str, int, str]
"""File, function, line, operation."""


def _sites(run: Run) -> dict[_Key, dict[int, int]]:
    """Places of calls, and which call of each rank was the first from there."""
    numbered = run.calls.with_columns(number=pl.int_range(1, pl.len() + 1).over("rank"))
    numbered = numbered.with_columns(number=pl.col("number") + _lost_before(run))
    first = (
        numbered.filter(pl.col("site").is_not_null())
        .group_by("site", "op", "rank", maintain_order=True)
        .agg(pl.col("number").min())
        .join(run.trace.sites.select("site", "file", "function", "line"), on="site", how="inner")
    )
    found: dict[_Key, dict[int, int]] = {}
    for row in first.iter_rows(named=True):
        file = "/".join(pathlib.PurePath(row["file"]).parts[-_PARTS:])
        key = (file, row["function"], row["line"], row["op"])
        ranks = found.setdefault(key, {})
        ranks[row["rank"]] = min(row["number"], ranks.get(row["rank"], row["number"]))
    return found


def _lost_before(run: Run) -> pl.Expr:
    first = {rank: number - 1 for rank, number in run.trace.ranks.select("rank", "first_call").iter_rows() if number}
    return pl.col("rank").replace_strict(first, default=0, return_dtype=pl.Int64)


def _spans(run: Run) -> dict[int, tuple[int, int]]:
    """Numbers of the first and the last recorded call of each rank."""
    counted = run.calls.group_by("rank").len().with_columns(before=_lost_before(run))
    return {rank: (before + 1, before + count) for rank, count, before in counted.iter_rows()}


def _without_moved(a: list[_Key], b: list[_Key], found: Found) -> tuple[list[_Key], list[_Key]]:
    """What is left when calls of one function that stand at other lines in the other run are told together."""
    moved_a: list[_Key] = []
    moved_b: list[_Key] = []
    for function in dict.fromkeys((file, function, op) for file, function, _, op in a):
        of_a, of_b = ([key for key in keys if (key[0], key[1], key[3]) == function] for keys in (a, b))
        if len(of_a) == len(of_b):
            moved_a += of_a
            moved_b += of_b
    if moved_a:
        found.texts(Topic.CALLS, "same calls at other lines", _lines(moved_a), _lines(moved_b))
    return [key for key in a if key not in moved_a], [key for key in b if key not in moved_b]


def _lines(keys: list[_Key]) -> str:
    listed = list(dict.fromkeys(f"{pathlib.PurePath(file).name}:{line}" for file, _, line, _ in keys))
    return ", ".join(listed[:_MOST_LINES]) + (", ..." if len(listed) > _MOST_LINES else "")


def _place(key: _Key) -> str:
    file, function, line, op = key
    return f"{op} at {file}:{line} {function}"


def _sequences(a: Run, b: Run, found: Found) -> None:
    """Compare the calls of ranks that both have, number by number, in each group.

    Compared are the lowest few ranks of each group, and those that a verdict names.
    """
    name = "order of the calls"
    if a.is_recorded != b.is_recorded:
        why = "a recording of ours and another source number them differently"
        found.is_untold(Topic.CALLS, name, a=False, b=True, why=why)
        return
    of_a, of_b = (_numbered(run) for run in (a, b))
    callers = (
        of_a.select("group_name", "rank")
        .unique()
        .join(of_b.select("group_name", "rank").unique(), how="inner", on=["group_name", "rank"])
    )
    named = {rank for run in (a, b) for verdict in run.report.verdicts for rank in verdict.culprit_ranks}
    is_asked = (pl.col("rank").rank("ordinal").over("group_name") <= _MOST_RANKS) | pl.col("rank").is_in(sorted(named))
    asked = callers.filter(is_asked)
    both = of_a.join(asked, on=["group_name", "rank"], how="semi").join(
        of_b, on=["group_name", "rank", "seq"], how="inner", suffix="_b"
    )
    if both.is_empty():
        found.is_untold(Topic.CALLS, name, a=False, b=True, why="no rank of one group has calls in both")
        return
    agreed = _AGREED if a.trace.world_size == b.trace.world_size else _AGREED[:1]
    differing = pl.any_horizontal(pl.col(column).ne_missing(pl.col(f"{column}_b")) for column in agreed)
    differing_calls = both.filter(differing)
    first = differing_calls.sort("enter_ns", "seq", nulls_last=True).head(1)
    if first.is_empty():
        what = "operations" if len(agreed) == 1 else "calls"
        found.is_same(Topic.CALLS, f"order of the {what} ({both.height:,} compared)")
        return
    row = first.row(0, named=True)
    same = differing_calls.filter(pl.col("seq") == row["seq"], pl.col("group_name") == row["group_name"])["rank"]
    title = f"first other call: number {row['seq']:,} of {row['label']}, {ranks_text(same.to_list())}"
    found.texts(Topic.CALLS, title, _call(row, "", a), _call(row, "_b", b))


def _numbered(run: Run) -> pl.DataFrame:
    """Collectives, each number of a group once: of groups of one name that follow one another, the first one's."""
    collectives = run.calls.filter(~pl.col("op").is_in(sorted(words.P2P)))
    columns = ["group_name", "rank", "seq", "label", *_AGREED, "site", "enter_ns"]
    return collectives.select(columns).unique(["group_name", "rank", "seq"], keep="first", maintain_order=True)


def _call(row: dict[str, Any], suffix: str, run: Run) -> str:
    parts = [str(row[f"op{suffix}"])]
    if row[f"reduce_op{suffix}"]:
        parts.append(row[f"reduce_op{suffix}"])
    if row[f"numel{suffix}"]:
        parts.append(f"of {row[f'numel{suffix}']:,} {row[f'dtype{suffix}'] or 'elements'}")
    if row[f"root{suffix}"] is not None:
        parts.append(f"from or to rank {row[f'root{suffix}']}")
    site = row[f"site{suffix}"]
    known = run.trace.sites.filter(pl.col("site") == site) if site is not None else run.trace.sites.clear()
    for file, line in known.select("file", "line").iter_rows():
        parts.append(f"at {pathlib.PurePath(file).name}:{line}")
    return " ".join(parts)
