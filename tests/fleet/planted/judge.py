"""The table of a batch against the plan of its tree: right, honestly undetermined, unreadable as planned, or wrong."""

from __future__ import annotations

import collections
from dataclasses import dataclass

from planted.plan import NOTHING

MARKS = ("right", "undetermined", "unreadable", "wrong")
UNDETERMINED = "UNDETERMINED"


@dataclass(frozen=True)
class Mark:
    """What the rows of one run are worth.

    Attributes:
        run: Its name.
        planned: The cause it is planned under: the one counted, where that is one of those planted.
        counted: The cause that the table counts it under; None: none.
        mark: One of `MARKS`.
        why: What is wrong, in words.
    """

    run: str
    planned: str
    counted: str | None
    mark: str
    why: str = ""


def judge(planned, rows):
    """The mark of a run, by the rows that the table has of it."""
    truth = planned.truth
    if not rows:
        return Mark(planned.run, truth.causes[0], None, "wrong", "it is not in the table")
    root = min(rows, key=lambda row: row["verdict"])
    mark, why = _mark(planned, rows, root)
    counted = root["cause"]
    under = counted if counted in truth.causes else truth.causes[0]
    return Mark(planned.run, under, counted, mark, why)


def _mark(planned, rows, root):
    said = f"{root['structure']} {root['structure_confidence']}, {root['cause']} {root['cause_confidence']}"
    wrong = _wrong_at_all(planned, rows, root)
    if wrong:
        return "wrong", f"{wrong}: {said}"
    if planned.readable == NOTHING or (root["structure"] is None and planned.damage is not None):
        return "unreadable", ""
    if root["cause"] == UNDETERMINED or root["status"] == "undetermined":
        return "undetermined", ""
    wrong = _wrong_answer(planned, root)
    return ("wrong", f"{wrong}: {said}: {root['summary']}") if wrong else ("right", "")


def _wrong_at_all(planned, rows, root):
    """What must not be, whatever is said of the cause; empty: nothing."""
    if planned.is_told and not _is_told(root):
        return f"{planned.damage}, and nothing says so"
    if planned.readable == NOTHING and (root["cause"] not in (None, UNDETERMINED) or any(map(_named, rows))):
        return "nothing of it can be read"
    for row in rows:
        if row["structure_confidence"] == "high" and (others := _innocents(planned.truth, row, excused=())):
            return f"names {', '.join(others)} at high confidence"
    return ""


def _wrong_answer(planned, root):
    """What is wrong with a cause that is told; empty: nothing."""
    truth = planned.truth
    if root["cause"] not in truth.causes:
        return f"not what was planted ({truth.kind})"
    if others := _innocents(truth, root, excused=truth.lost):
        return f"names {', '.join(others)}"
    # At low confidence, a way of saying it that comes close (a skipped call for another order) is no wrong answer.
    is_sure = planned.damage is None and root["structure_confidence"] != "low"
    if is_sure and truth.structures and root["structure"] not in truth.structures:
        return f"not the structure that was planted ({truth.kind})"
    return ""


def _is_told(root):
    if root["unreadable"] and not root["problem"]:
        return False  # a number is no reason
    return bool(root["problem"]) or bool(root["ranks_empty"] or root["ranks_truncated"])


def _named(row):
    return [*row["culprit_ranks"], *row["culprit_hosts"], *row["culprit_links"]]


def _innocents(truth, row, *, excused):
    """Whoever a row names and has nothing to do with the fault."""
    named = [rank for rank in row["culprit_ranks"] if rank not in excused]
    found = [f"rank {rank}" for rank in named if _is_other(rank, truth.guilty_ranks, truth.innocent_ranks)]
    found += [host for host in row["culprit_hosts"] if _is_other(host, truth.guilty_hosts, truth.innocent_hosts)]
    for link in row["culprit_links"]:
        end = f"{link['host']}/{link['device']}"
        is_there = truth.links is None or end in truth.links
        if not is_there or _is_other(link["host"], truth.guilty_hosts, truth.innocent_hosts):
            found.append(end)
    return found


def _is_other(one, guilty, innocent):
    return one in innocent or (guilty is not None and one not in guilty)


def marks(plan, rows):
    """The marks of all runs of a plan; `rows` are those of the whole table, as dicts."""
    by_run = collections.defaultdict(list)
    for row in rows:
        by_run[row["run"]].append(row)
    return [judge(planned, by_run[planned.run]) for planned in plan.runs]


def strangers(plan, rows):
    """Runs of the table that nobody planned."""
    return sorted({row["run"] for row in rows} - {planned.run for planned in plan.runs})


def table(found):
    """Per planned cause: how many were planned, and what became of them; as rows of text."""
    by_cause = collections.defaultdict(collections.Counter)
    for one in found:
        by_cause[one.planned][one.mark] += 1
    rows = [(cause, counts.total(), *(counts[mark] for mark in MARKS)) for cause, counts in sorted(by_cause.items())]
    return [*rows, ("all", *(sum(row[at] for row in rows) for at in range(1, 2 + len(MARKS))))]


def as_text(rows):
    lines = [f"{'planned cause':<20}{'runs':>6}{'right':>8}{'undetermined':>14}{'unreadable':>12}{'wrong':>7}"]
    lines += [f"{row[0]:<20}{row[1]:>6}{row[2]:>8}{row[3]:>14}{row[4]:>12}{row[5]:>7}" for row in rows]
    return "\n".join(lines)


def as_markdown(rows):
    lines = ["| planned cause | runs | right | undetermined | unreadable | wrong |", "|---|--:|--:|--:|--:|--:|"]
    return "\n".join([*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows)])
