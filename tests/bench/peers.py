"""roundk, torchfrtrace and NVRx side by side: who is named, case by case.

`python tests/bench/peers.py [--cases DIR ...] [--nvrx-python PYTHON] [--markdown] [NAME ...]`

Cases are those of `tests/corpus/cases`, and of any DIR that holds an `expected.json`: a list of objects with `name`,
`paths` (relative to DIR), `structure` (acceptable names) and optionally `ranks` (who is to be named).

torchfrtrace is that of the installed torch; without the package tabulate, which torch does not require, that of 2.13
ends with a NameError on some cases, so have it beside. NVRx is the module
`nvidia_resiliency_ext.attribution.trace_analyzer.fr_attribution` of this Python or, as its needs may clash, of another
one named by `--nvrx-python`; releases up to 0.4.1 on PyPI do not have it. Both read pickled Flight Recorder dumps only:
they get the dumps of a case under names that they understand (`rank_<r>`), and cases without any are not for them.
Where torchfrtrace refuses a set for a rank without a dump it is run again with `--allow-incomplete-ranks`.

How an answer is judged, the same for all three. A case expects some ranks to be named, or nobody, and that something is
wrong or nothing:

    right     exactly the expected ranks are named; or nobody is, as expected, and that something is wrong is told
              where it is, and not told where it is not
    wrong     others are named, or not all; or something is told of a job in which nothing is wrong
    silent    something is wrong and nothing is told: exit code 0 without a finding, or no rank where there is one
    crashed   it ended with an error of its own
    n/a       the tool does not read what the case has

So much and no more is asked of text that has neither a structure nor a confidence. Of roundk the last column says
whether its structure, cause and all other fields of the expected verdict hold as well. torchfrtrace names ranks by
`missing ranks: {...}` and `Culprit rank r`; NVRx by the column `Missing Ranks` of its table and `hanging ranks: [...]`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import pathlib
import re
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass

import measured

CORPUS = pathlib.Path(__file__).parents[1] / "corpus"
HELPS = (CORPUS, CORPUS.parent / "unit" / "analyze")
"""Where the programs that make inputs find each other, as `pythonpath` of pytest says."""
ANSWERS = ("expect.txt", "expected.json", "fault_injection.log")
TOOLS = ("roundk", "torchfrtrace", "NVRx")
HOWS = ("right", "wrong", "silent", "crashed")
QUIET = {"HEALTHY", "IN_PROGRESS"}

ROUNDK = (sys.executable, "-m", "roundk", "analyze", "--format", "json")
TORCHFRTRACE = (sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", "--prefix", "rank_")
NVRX = "nvidia_resiliency_ext.attribution.trace_analyzer.fr_attribution"

MISSING = re.compile(r"missing ranks: \{([\d, ]+)\}")
CULPRIT = re.compile(r"Culprit rank (\d+)")
TOLD = re.compile(
    r"Not all ranks joining|has errors|Input/output mismatch|Too many mismatches|does not have a coalesced end"
)
HANGING = re.compile(r"hanging ranks: \[([\d, ]*)\]")
CPU_LIMIT_S = 300


@dataclass(frozen=True)
class Case:
    """A job's remains, and what is to be said of them.

    Attributes:
        roots: Fields of acceptable first verdicts.
    """

    name: str
    paths: list[pathlib.Path]
    roots: list[dict]

    @property
    def ranks(self):
        """The sets of ranks that may be named."""
        return [set(root.get("culprit_ranks", [])) for root in self.roots]

    @property
    def is_quiet(self):
        """Nothing is wrong."""
        return all(root.get("structure") in QUIET for root in self.roots)

    @property
    def names_ranks(self):
        """It says who is to be named: an expected verdict without that field leaves it open."""
        return all("culprit_ranks" in root or root.get("structure") in QUIET for root in self.roots)


@dataclass(frozen=True)
class Answer:
    """What a tool said."""

    named: set[int]
    is_told: bool
    crash: str = ""
    verdict: dict | None = None


def corpus(scratch):
    """The cases of the corpus, their inputs made where a program makes them."""
    sys.path[:0] = map(str, HELPS)
    spec = importlib.util.spec_from_file_location("test_corpus", CORPUS / "test_corpus.py")
    tests = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tests)
    for folder in sorted(path for path in (CORPUS / "cases").iterdir() if (path / "expected.json").is_file()):
        made = scratch / folder.name
        made.mkdir()
        expected = json.loads((folder / "expected.json").read_text())
        yield Case(folder.name, [tests.inputs_of(folder, made)], expected["roots"])


def listed(folder):
    """The cases of a folder with one list of them."""
    for case in json.loads((folder / "expected.json").read_text()):
        root = {"structure": case["structure"]} | ({"culprit_ranks": case["ranks"]} if "ranks" in case else {})
        roots = [{**root, "structure": one} for one in case["structure"]]
        yield Case(case["name"], [folder / path for path in case["paths"]], roots)


def files(paths):
    for path in paths:
        yield from sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]


def given(case, folder):
    """The case's inputs without its answers, and its dumps apart under plain names; None: it has none."""
    inputs, dumps = folder / "inputs", folder / "dumps"
    inputs.mkdir()
    dumps.mkdir()
    for path in case.paths:
        if path.is_dir():
            shutil.copytree(path, inputs, ignore=shutil.ignore_patterns(*ANSWERS), dirs_exist_ok=True)
        else:
            shutil.copy(path, inputs)
    for path in files([inputs]):
        numbers = re.findall(r"\d+", path.name.split(".", 1)[0])
        if numbers and path.read_bytes()[:1] == b"\x80":
            shutil.copy(path, dumps / f"rank_{int(numbers[-1])}")
    return inputs, dumps if any(dumps.iterdir()) else None


def roundk(inputs):
    run = measured.run([*ROUNDK, str(inputs)], cpu_limit_s=CPU_LIMIT_S)
    start = run.out.find("{")
    if run.code not in (0, 1, 3) or start < 0:
        return Answer(set(), False, _last(run.out))
    report = json.JSONDecoder().raw_decode(run.out[start:])[0]
    named = {rank for verdict in report["verdicts"] for rank in verdict["culprit_ranks"]}
    is_told = report["status"] not in ("healthy", "in_progress")
    return Answer(named, is_told, verdict=report["verdicts"][0])


def torchfrtrace(dumps):
    run = measured.run([*TORCHFRTRACE, str(dumps)], cpu_limit_s=CPU_LIMIT_S)
    if run.code and "Missing dump files" in run.out:
        run = measured.run([*TORCHFRTRACE, "--allow-incomplete-ranks", str(dumps)], cpu_limit_s=CPU_LIMIT_S)
    if run.code:
        return Answer(set(), False, _last(run.out))
    named = {int(rank) for ranks in MISSING.findall(run.out) for rank in ranks.split(",")}
    named |= set(map(int, CULPRIT.findall(run.out)))
    return Answer(named, bool(named or TOLD.search(run.out)))


def nvrx(python, dumps):
    run = measured.run([python, "-m", NVRX, "--fr-path", str(dumps), "-p", "rank_*", "--emit-stdout"])
    if run.code:
        return Answer(set(), False, _last(run.out))
    named, column = set(), None
    for line in run.out.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if "Missing Ranks" in cells:
            column = cells.index("Missing Ranks")
        elif column is not None and len(cells) > column:
            named |= set(map(int, re.findall(r"\d+", cells[column])))
    for ranks in HANGING.findall(run.out):
        named |= set(map(int, re.findall(r"\d+", ranks)))
    return Answer(named, bool(named))


def answers_on(inputs, dumps, nvrx_python):
    answers = {"roundk": roundk(inputs)}
    if dumps is not None:
        answers["torchfrtrace"] = torchfrtrace(dumps)
        if nvrx_python is not None:
            answers["NVRx"] = nvrx(nvrx_python, dumps)
    return answers


def _last(out):
    return next((line.strip() for line in reversed(out.splitlines()) if line.strip()), "no output")


def judged(case, answer):
    """`right`, `wrong`, `silent` or `crashed`."""
    if answer.crash:
        return "crashed"
    if case.is_quiet:
        return "wrong" if answer.is_told or answer.named else "right"
    if not answer.is_told:
        return "silent"
    if any(answer.named == ranks for ranks in case.ranks):
        return "right"
    return "wrong" if answer.named else "silent"


def holds(case, answer):
    """Whether all fields of an acceptable verdict are as expected."""
    found = answer.verdict or {}
    return any(all(found.get(key) == value for key, value in root.items()) for root in case.roots)


def has_nvrx(python):
    return not measured.run([python, "-c", f"import {NVRX}"]).code


def row(case, answers):
    """The cells of a case: how each tool did, and what it named where that was not right."""
    cells = [case.name, "/".join(dict.fromkeys(root.get("structure", "any") for root in case.roots))]
    expected = case.ranks[0]
    cells.append(("ranks " + ", ".join(map(str, sorted(expected)))) if expected else "nobody")
    for tool in TOOLS:
        answer = answers.get(tool)
        if answer is None:
            cells.append("n/a")
            continue
        how = judged(case, answer)
        told = answer.crash[:60] if how == "crashed" else ""
        if how == "wrong":
            told = "names " + ", ".join(map(str, sorted(answer.named)[:6])) if answer.named else "tells of a fault"
        cells.append(f"{how}: {told}" if told else how)
    cells.append("yes" if answers["roundk"].verdict and holds(case, answers["roundk"]) else "no")
    return cells


def show(cells, *, markdown):
    if markdown:
        text = "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    else:
        widths = (34, 28, 14, 24, 40, 24, 8)
        text = " ".join(cell[:width].ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
    print(text, flush=True)


def summary(counts):
    return f"{sum(counts.values())} cases, {', '.join(f'{counts[how]} {how}' for how in HOWS)}" if counts else "not run"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="cases; all where none is named")
    parser.add_argument("--cases", type=pathlib.Path, action="append", default=[], help="folder of more cases")
    parser.add_argument("--nvrx-python", default=sys.executable, help="Python that has NVRx")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--only-dumps", action="store_true", help="leave out cases that only roundk reads")
    asked = parser.parse_args()
    with_nvrx = has_nvrx(asked.nvrx_python)
    if importlib.util.find_spec("tabulate") is None:
        print("There is no tabulate: torchfrtrace crashes where it would print a table.", file=sys.stderr)
    counts = {tool: Counter() for tool in TOOLS}
    all_fields = 0
    show(("case", "structure", "to be named", *TOOLS, "fields"), markdown=asked.markdown)
    if asked.markdown:
        print("|---" * 7 + "|")
    with tempfile.TemporaryDirectory(prefix="peers-") as scratch:
        made = pathlib.Path(scratch, "made")
        made.mkdir()
        cases = [*corpus(made), *(case for folder in asked.cases for case in listed(folder))]
        for number, case in enumerate(cases):
            if (asked.names and case.name not in asked.names) or not case.names_ranks:
                continue
            folder = pathlib.Path(scratch, str(number))
            folder.mkdir()
            inputs, dumps = given(case, folder)
            if dumps is None and asked.only_dumps:
                continue
            answers = answers_on(inputs, dumps, asked.nvrx_python if with_nvrx else None)
            for tool, answer in answers.items():
                counts[tool][judged(case, answer)] += 1
            all_fields += holds(case, answers["roundk"])
            show(row(case, answers), markdown=asked.markdown)
    print()
    for tool in TOOLS:
        print(f"{tool}: {summary(counts[tool])}")
    print(f"All fields of the expected verdict hold in {all_fields} of {sum(counts['roundk'].values())} (roundk).")
    if not with_nvrx:
        print(f"{asked.nvrx_python} has no {NVRX}.")


if __name__ == "__main__":
    main()
