"""The tables of the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import polars as pl

from roundk.analyze.case import Case
from roundk.analyze.chart import group_of
from roundk.analyze.output import words
from roundk.analyze.output.safe import Html, element
from roundk.analyze.phrases import duration, number_of, ranks_text
from roundk.analyze.verdict import Report, Verdict

_BEFORE: Final = 6
_AFTER: Final = 3
"""Rounds that are listed before the verdict's and after it."""

_MAX_GROUPS: Final = 40
_MAX_LISTED: Final = 200

Row = tuple[Sequence[str], bool]
"""Cells, and whether the row is what it is all about."""


def evidence(verdict: Verdict) -> Html:
    """What carries a verdict, with file and record."""
    rows = [((piece.what, piece.offset, piece.source), False) for piece in words.pieces(verdict)]
    return _table(("what", "after the onset", "where it stands"), rows, kinds=("", "n", "m"))


def verdicts(report: Report) -> Html:
    """All verdicts of a report, a line each."""
    rows = []
    for at, verdict in enumerate(report.verdicts):
        told = dict(words.facts(verdict))
        who = told.get("culprit") or told.get("finding", "")
        rows.append(
            ((words.name(verdict), told.get("cause", ""), who, told.get("where", ""), told.get("onset", "")), not at)
        )
    return _table(("verdict", "cause", "culprit", "where", "onset"), rows)


def rounds(case: Case, verdict: Verdict) -> Html:
    """The rounds of the verdict's group before and after its own."""
    group = group_of(case, verdict)
    if group is None or verdict.seq is None:
        return Html("")
    near = case.rounds.filter(
        pl.col("group") == group.key, pl.col("seq") >= verdict.seq - _BEFORE, pl.col("seq") <= verdict.seq + _AFTER
    )
    ops = dict(
        case.calls.filter(pl.col("group") == group.key, ~pl.col("p2p"), pl.col("seq").is_in(near["seq"].to_list()))
        .group_by("seq")
        .agg(pl.col("op").cast(pl.String).first())
        .iter_rows()
    )
    rows = [
        (
            (
                f"#{row['seq']}",
                ops.get(row["seq"], ""),
                f"{row['entered']:,} of {row['size']:,}",
                f"{row['completed']:,}",
                f"{row['failed']:,}",
                f"{row['open']:,}",
                words.offset(row["first_enter_ns"], verdict.onset_ns),
                "" if row["skew_ns"] is None else duration(row["skew_ns"]),
                f"{row['last_rank']}",
            ),
            row["seq"] == verdict.seq,
        )
        for row in near.iter_rows(named=True)
    ]
    heads = (
        "round",
        "op",
        "entered",
        "completed",
        "failed",
        "open",
        "first enter",
        "spread of enters",
        "last to enter",
    )
    return _table(heads, rows, kinds=("n", "", *("n",) * 7))


def frontier(case: Case, verdict: Verdict) -> Html:
    """The groups in which somebody is behind, the verdict's first."""
    own = group_of(case, verdict)
    wanted = set() if own is None else {own.key}
    reach = (
        case.frontier.filter(~pl.col("group").is_in(sorted(case.control_groups - wanted)))
        .with_columns(furthest=pl.col("last_entered").max().over("group"))
        .filter(pl.col("furthest") > 0)
    )
    late = (
        reach.filter(pl.col("last_entered") < pl.col("furthest"))
        .group_by("group", "furthest")
        .agg(
            ranks=pl.col("rank").filter("sure").sort(),
            least=pl.col("last_entered").filter("sure").min(),
            most=pl.col("last_entered").filter("sure").max(),
            untold=pl.col("rank").filter(~pl.col("sure")).sort(),
        )
        .with_columns(is_own=pl.col("group").is_in(sorted(wanted)))
        .sort("is_own", pl.col("ranks").list.len() > 0, "group", descending=[True, True, False], nulls_last=True)
    )
    rows: list[Row] = []
    for row in late.head(_MAX_GROUPS).iter_rows(named=True):
        group = case.groups[row["group"]]
        reached = f"#{row['least']}" + (f" to #{row['most']}" if row["most"] != row["least"] else "")
        behind = f"{ranks_text(row['ranks'])} (at {reached})" if row["ranks"] else "nobody for certain"
        untold = ranks_text(row["untold"]) if row["untold"] else ""
        cells = (group.text.removeprefix("group "), f"{len(group.ranks):,}", f"#{row['furthest']}", behind, untold)
        rows.append((cells, row["group"] in wanted))
    if late.height > _MAX_GROUPS:
        rows.append(
            ((f"{number_of(late.height - _MAX_GROUPS, 'more group')} with somebody behind", "", "", "", ""), False)
        )
    level = reach["group"].n_unique() - late.height
    if level:
        rows.append(((f"{number_of(level, 'group')} with all members level", "", "", "", ""), False))
    return _table(("group", "size", "furthest", "behind", "not told of"), rows, kinds=("", "n", "n", "", ""))


def coverage(case: Case, report: Report) -> Html:
    """What the analysis had before it."""
    have = report.coverage
    (_, read), *rest = words.coverage(have)
    rows: list[Row] = [(("ranks read", read), False)]
    rows += [((label, text), False) for label, text in rest if label != "unreadable"]
    rows += [(("sources", ", ".join(f"{kind}: {count:,}" for kind, count in have.sources.items())), False)]
    if case.trace.command:
        rows.append((("command", " ".join(case.trace.command)), False))
    error = have.clock_error_ns
    rows.append((("clocks", "not compared" if error is None else f"compared, within {duration(error)}"), False))
    rows += [((f"unreadable: {one.path}", one.why), False) for one in have.unreadable[:_MAX_LISTED]]
    if len(have.unreadable) > _MAX_LISTED:
        rows.append((("unreadable", f"{len(have.unreadable) - _MAX_LISTED:,} more"), False))
    return _table(("", ""), rows)


def _table(heads: Sequence[str], rows: Iterable[Row], kinds: Sequence[str] = ()) -> Html:
    rows = list(rows)
    # A column that says nothing is left out.
    used = [at for at in range(len(heads)) if any(cells[at] for cells, _ in rows)]
    kinds = kinds or [""] * len(heads)
    made = [
        element(
            "tr", *(element("td", cells[at], class_=kinds[at] or None) for at in used), class_="hot" if hot else None
        )
        for cells, hot in rows
    ]
    if not made:
        return Html("")
    head = element("tr", *(element("th", heads[at], class_=kinds[at] or None) for at in used))
    top = [element("thead", head)] if any(heads) else []
    return element("div", element("table", *top, element("tbody", *made)), class_="scroll")
