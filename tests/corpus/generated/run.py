"""The property test at any length: made-up jobs, each with a planted fault, analysed and judged.

python tests/corpus/generated/run.py --count 20000 --seed 1 --jobs 2      a table per kind of fault
python tests/corpus/generated/run.py --seed 17 --show                     one job: truth, inputs, report
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import json
import multiprocessing
import pathlib
import shutil
import sys
import tempfile
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
for folder in (HERE.parent, HERE.parents[1] / "unit" / "analyze"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from generated import emit, generate  # noqa: E402 - the path is set first
from generated.judge import LEVELS, judge  # noqa: E402

from roundk.tracer.errors import RunError  # noqa: E402

BELOW = "a/b/c/job"
"""The analysis looks for a run directory a few folders up too, and other programs make and remove theirs in /tmp."""

MARKS = ("right", "honest", "wrong", "crash")


def one(seed, folder):
    """A job of a seed made, analysed and judged: (kind, form, mark, innocents, why)."""
    case = generate.make(seed)
    form, report_of = emit.leave(case, folder)
    report = report_of()
    verdict = judge(case, report)
    return case, form, report, verdict


def outcome(seed):
    """The same as plain values, a crash included; inputs are not kept."""
    top = pathlib.Path(tempfile.mkdtemp(prefix="generated-"))
    folder = top / BELOW
    folder.mkdir(parents=True)
    try:
        case, form, report, verdict = one(seed, folder)
    except RunError as error:
        # Exit 2: all that is left is cut short or empty.
        return {
            "seed": seed,
            "kind": "nothing left",
            "form": "?",
            "mark": "honest",
            "innocents": None,
            "why": str(error),
        }
    except Exception:  # noqa: BLE001 - any error of the analysis is what is looked for
        return {
            "seed": seed,
            "kind": "?",
            "form": "?",
            "mark": "crash",
            "innocents": None,
            "why": traceback.format_exc(),
        }
    finally:
        shutil.rmtree(top, ignore_errors=True)
    root = report.verdicts[0]
    said = f"{root.structure.value} {list(root.culprit_ranks)} {root.structure_confidence.value}"
    why = f"{said}; {verdict.why}; truth: {case.truth.what}"
    return {
        "seed": seed,
        "kind": case.truth.kind,
        "form": form,
        "mark": verdict.mark,
        "innocents": verdict.innocents,
        "why": why,
        "said": root.structure.value,
    }


def table(outcomes):
    """Rows per kind: jobs, shares, innocents by confidence."""
    lines = [f"{'fault':<16}{'jobs':>7}{'right':>9}{'honest':>9}{'wrong':>9}{'crash':>7}   innocents: high medium low"]
    kinds = collections.defaultdict(list)
    for row in outcomes:
        kinds[row["kind"]].append(row)
    for kind, rows in [*sorted(kinds.items()), ("all", outcomes)]:
        marks = collections.Counter(row["mark"] for row in rows)
        blamed = collections.Counter(row["innocents"] for row in rows)
        shares = "".join(f"{100 * marks[mark] / len(rows):8.1f}%" for mark in MARKS[:3])
        levels = " ".join(f"{blamed[level]:>6}" for level in LEVELS)
        lines.append(f"{kind:<16}{len(rows):>7}{shares}{marks['crash']:>7}              {levels}")
    return "\n".join(lines)


def run(seeds, jobs, kept=None):
    """Outcomes of these seeds; each is written to the open file `kept` too, as it comes."""
    with contextlib.ExitStack() as stack:
        if jobs > 1:
            fresh = multiprocessing.get_context("spawn")  # what forks has threads by now
            pool = stack.enter_context(concurrent.futures.ProcessPoolExecutor(jobs, mp_context=fresh))
            found = pool.map(outcome, seeds, chunksize=20)
        else:
            found = map(outcome, seeds)
        outcomes = []
        for row in found:
            outcomes.append(row)
            if kept is not None:
                kept.write(json.dumps(row) + "\n")
                kept.flush()
        return outcomes


def show(seed):
    from roundk.analyze.output import text

    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"generated-{seed}-")) / BELOW
    folder.mkdir(parents=True)
    case, form, report, verdict = one(seed, folder)
    print(f"seed {seed}: {case.truth.kind}, {case.style}, {case.world} ranks, {form}, gloo-like: {case.is_blocking}")
    print(f"truth: {case.truth.what}; guilty {sorted(case.truth.guilty)}; inputs in {folder}")
    for rank, nodes in case.run.calls.items():
        ended = [node for node in nodes if node.end is not None and node.end <= case.cut]
        open_ones = [node for node in nodes if node.enter <= case.cut and node not in ended]
        shown = [
            f"{n.call.op} g{n.call.group}" + (f" peer {n.call.peer}" if n.call.peer is not None else "")
            for n in open_ones
        ]
        print(f"  rank {rank}: {len(ended)} done; open: {shown[:4]} {case.run.halted.get(rank, '')}")
    print(text.render(report, width=120))
    print(json.dumps({"mark": verdict.mark, "innocents": verdict.innocents, "why": verdict.why}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1, help="number of jobs")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first; the others follow")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--show", action="store_true", help="show one job")
    parser.add_argument("--out", type=pathlib.Path, help="keep every outcome as a JSON line in this file")
    parser.add_argument("--kind", help="list only this kind")
    parser.add_argument("--list", type=int, default=40, help="how many wrong ones are listed")
    arguments = parser.parse_args()
    if arguments.show:
        show(arguments.seed)
        return
    begin = time.monotonic()
    with contextlib.ExitStack() as stack:
        kept = None if arguments.out is None else stack.enter_context(arguments.out.open("w"))
        outcomes = run(range(arguments.seed, arguments.seed + arguments.count), arguments.jobs, kept)
    with contextlib.suppress(BrokenPipeError):
        print(table(outcomes))
        bad = [row for row in outcomes if row["mark"] in ("wrong", "crash") or row["innocents"]]
        bad = [row for row in bad if arguments.kind in (None, row["kind"])]
        bad.sort(key=lambda row: (row["mark"] != "crash", row["innocents"] != "high", row["innocents"] is None))
        for row in bad[: arguments.list]:
            print(f"{row['seed']} {row['kind']} {row['form']} {row['mark']} innocents {row['innocents']}: {row['why']}")
        print(f"{len(outcomes)} jobs in {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
