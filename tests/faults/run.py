"""The fault lab as a command: `python tests/faults/run.py --runs 5` runs every scenario and prints verdict by truth.

Needs root, iproute2, nftables, ethtool and a C compiler. Exit code 0: the goals are met, see `GOALS`; 1: they are not;
2: nothing could be run.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import pathlib
import random
import shutil
import statistics
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass

import lab
import recording
import scenarios
import verdicts
from job import Zygote

GOALS = {"structure": 0.98, "cause": 0.95}
"""Least shares of runs in which that is right. No innocent host may be named at high confidence in any."""
ALWAYS = frozenset({"decoy_flap", "decoy_stop", "flap_stop"})
"""Scenarios of which every run must be right in all."""
PAIRS = {"flap-vs-straggler": (("flap_1s", "flap_3s"), ("sleep_3s", "slow_rank", "stop_3s"))}
_SIDES = {"SLOW_TRANSFER": 0, "STRAGGLER": 1}


@dataclass(frozen=True)
class Outcome:
    """One run with its judgement; None where the lab itself failed."""

    scenario: str
    form: str
    judged: verdicts.Judged | None
    without: verdicts.Judged | None
    wall_s: float
    failure: str = ""


def main():
    """Run what the arguments name."""
    arguments = _arguments()
    if reason := lab.missing(wire=True):
        sys.stderr.write(f"the fault lab cannot run here: {reason}\n")
        return 2
    started = time.strftime("%Y-%m-%d")
    with contextlib.ExitStack() as stack:
        stack.enter_context(lab.only_one())
        folder = arguments.keep or pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="roundk-lab-")))
        zygote = stack.enter_context(Zygote())
        outcomes = [_once(zygote, folder, arguments, *one) for one in _order(arguments)]
    text = _confusions(outcomes, arguments) if arguments.pair else _table(outcomes, started)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n", encoding="utf-8")
    return 0 if (_no_confusion(outcomes, arguments) if arguments.pair else _met(outcomes)) else 1


def _arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1, help="runs of each scenario in each form (default 1)")
    parser.add_argument("--scenario", nargs="+", choices=sorted(scenarios.ALL), metavar="NAME", help="only these")
    parser.add_argument("--form", nargs="+", default=["4x1"], help="hosts x ranks on each: 4x1, 4x2 (default 4x1)")
    parser.add_argument("--seed", default="0", help="of all parameters (default 0)")
    parser.add_argument("--pair", choices=sorted(PAIRS), help="runs of two kinds in random order: are they told apart?")
    parser.add_argument("--without-links", action="store_true", help="judge each run without its link samples too")
    parser.add_argument("--keep", type=pathlib.Path, metavar="DIR", help="keep every run there, with its truth")
    parser.add_argument("--out", type=pathlib.Path, metavar="FILE", help="write the table there too")
    return parser.parse_args()


def _order(arguments):
    """Scenario, form and number of each run."""
    if not arguments.pair:
        names = arguments.scenario or list(scenarios.ALL)
        return [(name, form, n) for name in names for form in arguments.form for n in range(arguments.runs)]
    kinds = PAIRS[arguments.pair]
    forms = arguments.form
    chosen = [(kind[n % len(kind)], forms[n % len(forms)], n) for kind in kinds for n in range(arguments.runs)]
    random.Random(arguments.seed).shuffle(chosen)
    return chosen


def _once(zygote, folder, arguments, scenario, form, number):
    place = folder / f"{scenario}-{form}-{number}"
    shutil.rmtree(place, ignore_errors=True)
    began = time.monotonic()
    try:
        recorded = recording.record(zygote, scenario, place, form=form, seed=f"{arguments.seed}-{number}")
    except lab.LabError as error:
        outcome = Outcome(scenario, form, None, None, time.monotonic() - began, str(error))
    else:
        try:
            outcome = _judged(recorded, place, arguments)
        except Exception:  # noqa: BLE001 - an error of the analysis fails this run, and loses no other
            outcome = Outcome(scenario, form, None, None, time.monotonic() - began, traceback.format_exc())
    _tell(outcome, number)
    if not arguments.keep:
        shutil.rmtree(place, ignore_errors=True)
    return outcome


def _judged(recorded, place, arguments):
    report = verdicts.analyze(recorded.run, recorded.now_ns)
    (place / "verdict.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    judged = verdicts.judge(report, recorded.truth, recorded.form)
    without = None
    if arguments.without_links:
        report = verdicts.analyze_without_links(recorded.run, recorded.now_ns)
        (place / "verdict-without-links.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        without = verdicts.judge(report, recorded.truth, recorded.form, links=False)
    wrong = [*judged.wrong, *(without.wrong if without else ())]
    (place / "wrong.json").write_text(json.dumps(wrong) + "\n", encoding="utf-8")
    return Outcome(recorded.scenario, recorded.form, judged, without, recorded.wall_s)


def _tell(outcome, number):
    if outcome.judged is None:
        said = f"LAB FAILED: {outcome.failure}"
    else:
        said = outcome.judged.told + ("" if outcome.judged.right else f"  WRONG: {', '.join(outcome.judged.wrong)}")
        if outcome.without is not None and not outcome.without.right:
            said += f"  WITHOUT LINKS {outcome.without.told}: {', '.join(outcome.without.wrong)}"
    sys.stderr.write(f"{outcome.scenario} {outcome.form} #{number} {outcome.wall_s:.1f} s: {said}\n")
    sys.stderr.flush()


def _met(outcomes):
    shares = {what: _share(outcomes, what) for what in GOALS}
    without = [o.without.right for o in outcomes if o.judged is not None and o.without is not None]
    innocents = any(o.judged is not None and o.judged.innocents for o in outcomes)
    missed = any(o.scenario in ALWAYS and not (o.judged is not None and o.judged.right) for o in outcomes)
    shares_met = all(shares[what] >= least for what, least in GOALS.items())
    return shares_met and not innocents and not missed and all(without)


def _share(outcomes, what):
    """Share of runs in which something is right; a run that the lab failed at is not."""
    return sum(o.judged is not None and bool(getattr(o.judged, what)) for o in outcomes) / len(outcomes)


def _table(outcomes, date):
    with_without = any(o.without is not None for o in outcomes)
    columns = ["scenario", "form", "runs", "structure", "cause", "culprit", "all right", "innocents"]
    columns += [*(["without links"] if with_without else []), "seconds", "verdicts"]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    keys = list(dict.fromkeys((o.scenario, o.form) for o in outcomes))
    rows = [(*key, [o for o in outcomes if (o.scenario, o.form) == key]) for key in keys]
    for scenario, form, own in [*rows, ("**all**", "", outcomes)]:
        lines.append("| " + " | ".join(_row(scenario, form, own, with_without)) + " |")
    failed = sum(o.judged is None for o in outcomes)
    return "\n".join([f"{date}, {len(outcomes)} runs, {failed} that the lab itself failed at.", "", *lines])


def _row(scenario, form, own, with_without):
    told = collections.Counter(o.judged.told if o.judged else "lab failed" for o in own)
    cells = [scenario, form, str(len(own))]
    cells += [f"{100 * _share(own, what):.0f} %" for what in ("structure", "cause", "culprit", "right")]
    cells.append(str(sum(bool(o.judged and o.judged.innocents) for o in own)))
    if with_without:
        judged = [o.without for o in own if o.without is not None]
        cells.append(f"{sum(one.right for one in judged)} of {len(judged)}")
    cells.append(f"{statistics.median(o.wall_s for o in own):.1f}")
    cells.append("" if scenario == "**all**" else ", ".join(f"{what} x{n}" for what, n in told.most_common()))
    return cells


def _confused(outcome, arguments):
    """What a run of a pair was taken for: 0 or 1, its own kind or the other; None: neither."""
    if outcome.judged is None:
        return None
    return _SIDES.get(outcome.judged.report["verdicts"][0]["structure"])


def _own_side(outcome, arguments):
    return next(side for side, kind in enumerate(PAIRS[arguments.pair]) if outcome.scenario in kind)


def _no_confusion(outcomes, arguments):
    return all(_confused(o, arguments) == _own_side(o, arguments) for o in outcomes)


def _confusions(outcomes, arguments):
    lines = ["| was | taken for a link | taken for a straggler | neither |", "|---|---|---|---|"]
    for side, kind in enumerate(PAIRS[arguments.pair]):
        taken = collections.Counter(_confused(o, arguments) for o in outcomes if _own_side(o, arguments) == side)
        lines.append(f"| {' / '.join(kind)} | {taken[0]} | {taken[1]} | {taken[None]} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
