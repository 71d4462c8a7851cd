"""Rows equal calls: whoever issues a collective, roundk has one row for it. Torch's Flight Recorder is the other count.

The Flight Recorder is asked inside the job before and after every section; what it is known to miscount on gloo is
written beside each section (`sections.Section`). The same test runs on another torch by `tests/torch214/run`.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re

import harness
import polars as pl
import pytest

from roundk.tracer import words
from roundk.tracer.reader import read_run

HERE = pathlib.Path(__file__).parent
DOCS = HERE.parents[2] / "docs" / "coverage.md"
RANKS = 2
UNRECORDED = ("send", "recv", "monitored_barrier", "gather_into_tensor")
COMPILED = "Dynamo does not know how to trace"


@dataclasses.dataclass
class Part:
    """One section on one rank: what the workload wrote of it, and our rows."""

    told: dict
    rows: pl.DataFrame

    @property
    def name(self):
        return self.told["name"]

    @property
    def calls(self):
        return self.told["recorded"] - self.told["surplus"] + self.told["unrecorded"]

    @property
    def dispatched(self):
        return self.rows.filter(~pl.col("op").is_in(list(words.PSEUDO)))

    @property
    def pseudo(self):
        return self.rows.filter(pl.col("op").is_in(list(words.PSEUDO)))


@dataclasses.dataclass
class Ran:
    torch: str
    ended: harness.Ended
    run: object
    parts: list


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("coverage")
    env = {"CHECKPOINT": str(folder / "checkpoint"), "TORCHINDUCTOR_CACHE_DIR": str(folder / "compiled")}
    job = harness.Job(
        harness.torchrun(HERE / "workload.py", folder, ranks=RANKS), cwd=folder, dir=folder / "run", env=env
    )
    try:
        ended = job.wait()
    finally:
        job.kill()
    assert ended.code == 0, ended.stderr
    run = read_run(folder / "run")
    calls = pl.from_arrow(run.calls).with_columns(pl.col("op", "outcome", "reduce_op").cast(pl.String))
    told = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]
    parts = [
        Part(
            part,
            calls.filter(pl.col("rank") == rank, pl.col("enter_ns").is_between(part["began_ns"], part["ended_ns"])),
        )
        for rank in range(RANKS)
        for part in told[rank]["sections"]
    ]
    return Ran(told[0]["torch"].partition("+")[0], ended, run, parts)


def test_every_section_ran(ran):
    assert len({part.name for part in ran.parts}) >= 40


def test_rows_equal_calls_but_for_those_below_the_dispatcher(ran):
    rows = [(part.name, part.dispatched.height) for part in ran.parts]
    assert rows == [(part.name, part.calls - part.told["below"]) for part in ran.parts]
    assert {part.name for part in ran.parts if part.told["below"]} == {"method_of_the_backend"}


def test_operations_are_those_of_the_flight_recorder_in_its_order(ran):
    for part in ran.parts:
        if not part.told["surplus"] and not part.told["below"]:
            ours = [_on_gloo(op) for op in part.dispatched["op"] if op not in UNRECORDED]
            assert ours == part.told["recorded_ops"], part.name


def _on_gloo(op):
    """The name under which the Flight Recorder keeps an operation on gloo, which makes few of many."""
    if op.startswith("reduce_scatter"):
        return "gloo:all_reduce"
    return "gloo:" + re.sub("_coalesced$|_into_tensor|_single$", "", op)


def test_calls_that_are_not_dispatched_are_rows_too(ran):
    assert [(part.name, part.pseudo["op"].to_list()) for part in ran.parts] == [
        (part.name, part.told["pseudo"]) for part in ran.parts
    ]
    pseudo = pl.concat(part.pseudo for part in ran.parts)
    failed = pseudo.filter(pl.col("outcome") == "failed")
    assert set(failed["op"]) == {"split_group"}
    assert failed["issued_ns"].is_null().all()
    ended = pseudo.filter(pl.col("outcome") != "failed")
    assert set(ended["outcome"]) == {"completed"}
    assert (ended["issued_ns"] == ended["end_ns"]).all()


def test_control_groups_hold_them_and_number_them_by_themselves(ran):
    groups = pl.from_arrow(ran.run.groups).select("group", "name", "desc", "ranks")
    calls = pl.from_arrow(ran.run.calls).with_columns(pl.col("op").cast(pl.String)).join(groups, on="group")
    control = pl.col("desc") == words.CONTROL
    assert set(calls.filter(control)["op"]) <= words.PSEUDO
    assert not set(calls.filter(~control)["op"]) & words.PSEUDO
    first = calls.filter(control, pl.col("ranks").list.len() == RANKS).sort("rank", "group", "seq")
    seqs = first.group_by("rank", "group", maintain_order=True).agg("seq", "op")
    assert all(row["seq"] == list(range(1, len(row["seq"]) + 1)) for row in seqs.to_dicts())
    assert seqs["op"].list.first().to_list() == ["init_process_group"] * 2 * RANKS  # once more after it was destroyed
    by_rank = [seqs.filter(pl.col("rank") == rank)["op"].to_list() for rank in range(RANKS)]
    assert by_rank[0] == by_rank[1]


def test_the_reduction_is_known_where_python_issued_the_call(ran):
    named = {part.name: part.dispatched["reduce_op"].to_list() for part in ran.parts}
    assert named["reductions"] == ["MAX", "MIN", "PRODUCT", "BAND", "SUM"]
    assert named["reduce_scatter"] == ["SUM", "SUM"]
    assert named["methods_of_the_group"] == ["SUM", None, None]
    assert None in named["data_parallel"]  # the reducer is C++, and the dispatcher hides the reduction: see the docs


def test_call_sites_are_lines_of_the_workload(ran):
    sites = pl.from_arrow(ran.run.sites).select("site", "file")
    rows = pl.concat(part.rows for part in ran.parts).join(sites, on="site")
    assert {pathlib.Path(file) for file in rows["file"]} == {
        HERE / f"{name}.py" for name in ("calls", "models", "workload")
    }
    compiled = [part.rows["site"].is_null().any() for part in ran.parts if part.name.startswith("compiled")]
    assert not any(compiled)


def test_nothing_is_lost_and_nothing_is_said(ran):
    ranks = pl.from_arrow(ran.run.ranks)
    assert ranks["data"].to_list() == ["present"] * RANKS
    assert ranks["calls_lost"].to_list() == [0] * RANKS
    assert ranks["recorder_off"].is_null().all()
    assert not ran.run.unreadable
    said = [line for line in ran.ended.stderr.splitlines() if "roundk" in line or COMPILED in line]
    assert [line.partition(" rank(s)")[0] for line in said] == [f"roundk: recorded {RANKS}"]


def test_the_table_in_the_docs_is_what_was_seen(ran):
    """One line per section, `rows of calls` for both ranks together in the column of each torch that was run."""
    lines = [line.strip("|").split("|") for line in DOCS.read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line] for line in lines]
    header = next(line for line in cells if line[0] == "section")
    if ran.torch not in header:
        pytest.skip(f"the docs have no column for torch {ran.torch}")
    column = header.index(ran.torch)
    documented = {line[0]: line[column] for line in cells if len(line) == len(header) and line is not header}
    seen = {}
    for part in ran.parts:
        rows, calls, pseudo = seen.get(part.name, (0, 0, 0))
        seen[part.name] = (rows + part.dispatched.height, calls + part.calls, pseudo + part.pseudo.height)
    written = {
        name.replace("_", " "): f"{rows} of {calls}" + (f", {pseudo} pseudo" if pseudo else "")
        for name, (rows, calls, pseudo) in seen.items()
    }
    documented.pop("---", None)
    assert documented == written, "\n".join(f"| {name} | {cell} |" for name, cell in written.items())
