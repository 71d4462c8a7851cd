"""A tree of failed runs made, judged by one `roundk batch`, and compared with the plan of what was planted.

python tests/fleet/prove.py --runs 300 --seed 1         a table per planted cause; exit 1 where anything is wrong
python tests/fleet/prove.py --runs 300 --folder DIR     the same, and the tree, table and report are kept
python tests/fleet/prove.py --runs 60 --kill            the batch is killed half way and started again, too
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
for folder in (HERE, HERE.parent / "corpus", HERE.parent / "unit" / "analyze"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from planted import batches, judge, tree  # noqa: E402 - the path is set first
from planted import plan as plans  # noqa: E402

INTERRUPTED = ("failed", "stuck", "undetermined")


def problems(plan, rows, report):
    """What is wrong with a table and its report, given the plan, in sentences; empty: nothing."""
    found = judge.marks(plan, rows)
    told = [f"{one.run}: {one.why}" for one in found if one.mark == "wrong"]
    told += [f"{run} is in the table and was not planted" for run in judge.strangers(plan, rows)]
    told += _jobs(plan, rows)
    told += _counts(found, rows, report)
    told += _damaged(plan, rows, report)
    return told


def _jobs(plan, rows):
    """Jobs and attempts, where the names of the tree tell them."""
    roots = {row["run"]: row for row in rows if row["verdict"] == 0}
    return [
        f"{one.run}: job {row['job']}, attempt {row['attempt']}, not {one.job}, {one.attempt}"
        for one in plan.runs
        if one.job is not None
        and (row := roots.get(one.run)) is not None
        and (row["job"], row["attempt"]) != (one.job, one.attempt)
    ]


def _counts(found, rows, report):
    """The counts of the table and of the report against those of the plan: what was planned less what is honestly open.

    The report counts interruptions and slow runs apart; the plan's counts are taken run by run, from the marks.
    """
    roots = {row["run"]: row for row in rows if row["verdict"] == 0}
    planned = collections.Counter(one.planned for one in found)
    honest = collections.Counter(one.planned for one in found if one.mark in ("undetermined", "unreadable"))
    counted = collections.Counter(row["cause"] for row in roots.values())
    told = []
    for cause in sorted(planned | collections.Counter({c: 1 for c in counted if c not in (None, "UNDETERMINED")})):
        # One that was left undetermined may all the same be counted under its cause, at low confidence.
        open_ = sum(one.planned == cause and one.mark == "undetermined" and one.counted == cause for one in found)
        if counted[cause] != planned[cause] - honest[cause] + open_:
            told.append(f"{cause}: {counted[cause]} in the table, {planned[cause]} planned, {honest[cause]} left open")
    for name, statuses in (("by_cause", INTERRUPTED), ("slow_by_cause", ("slow",))):
        listed = report["interruptions"][name] if name == "by_cause" else report[name]
        said = {one["name"]: one["count"] for one in listed}
        mine = collections.Counter(
            one.counted for one in found if one.run in roots and roots[one.run]["status"] in statuses
        )
        if said != mine:
            told.append(f"the report's {name} says {said}; by the plan it is {dict(mine)}")
        total = sum(one["count"] for one in listed)
        if listed and any(one["total"] != total for one in listed):
            told.append(f"the counts of the report's {name} sum to {total}, and it says {listed[0]['total']}")
    return told


def _damaged(plan, rows, report):
    """The report lists the runs that have a reason in the table; those of which nothing is left are among them."""
    with_reason = {row["run"]: row["problem"] for row in rows if row["verdict"] == 0 and row["problem"] is not None}
    listed = {one["run"]: one["problem"] for one in report["problems"]}
    told = [f"the report lists {sorted(listed)}; the table has a problem at {sorted(with_reason)}"]
    told = told if listed != with_reason else []
    lost = {one.run for one in tree.unreadable(plan)}
    told += [f"{run}: nothing of it can be read, and the report does not list it" for run in sorted(lost - set(listed))]
    # Of generated jobs some dumps are cut short from the beginning.
    sound = {one.run for one in plan.runs if one.damage is None and one.source != "generated"}
    return told + [
        f"{run}: it is not damaged, and the report says {listed[run]}" for run in sorted(sound & set(listed))
    ]


def killed(runs, out, count, whole):
    """What is wrong with a batch that is killed once `count` runs are finished, and then started again."""
    before = batches.kill_half_way(runs, out, count)
    rows, _, said = batches.batch(runs, out)
    after = batches.finished(out)
    anew = [name for name, at in before.items() if after.get(name) != at]
    told = [f"finished before it was killed, and done again: {', '.join(sorted(anew))}"] if anew else []
    if rows != whole:
        told.append("the table of the batch that was killed and started again is another one")
    return told, len(before), said.strip().splitlines()[-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, help="runs at a time")
    parser.add_argument("--folder", type=pathlib.Path, help="keep all here; a tree that is there is used again")
    parser.add_argument("--kill", action="store_true", help="kill a second batch half way, and start it again")
    parser.add_argument("--markdown", action="store_true", help="the table as it stands in the docs")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fleet-") as scratch:
        sys.exit(prove(arguments, arguments.folder or pathlib.Path(scratch) / "a"))


def prove(arguments, folder):
    begin = time.monotonic()
    if (folder / "plan.json").exists():
        plan = plans.read(folder / "plan.json")
    else:
        plan = tree.make(folder, arguments.runs, arguments.seed)
    made = time.monotonic()
    more = [] if arguments.jobs is None else ["--jobs", arguments.jobs]
    rows, report, said = batches.batch(folder / "runs", folder / "out", "--html", folder / "report.html", *more)
    (folder / "report.json").write_text(json.dumps(report, indent=1))
    print(said.strip().splitlines()[-1])
    told = problems(plan, rows, report)
    show = judge.as_markdown if arguments.markdown else judge.as_text
    print(show(judge.table(judge.marks(plan, rows))))
    damaged = sum(one.damage is not None for one in plan.runs)
    took = f"made in {made - begin:.0f} s, judged in {time.monotonic() - made:.0f} s"
    print(f"{len(plan.runs)} runs ({damaged} damaged) {took}")
    if arguments.kill:
        wrong, count, last = killed(folder / "runs", folder / "out-killed", len(plan.runs) // 2, rows)
        print(f"killed with {count} of {len(plan.runs)} runs finished, then: {last}")
        told += wrong
    for one in told:
        print(f"WRONG {one}")
    return 1 if told else 0


if __name__ == "__main__":
    main()
