"""The forms of a report: JSON by the contract, text that fits the terminal, the chart; the command and its codes."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest
from click.testing import CliRunner
from jobs import Job

from roundk.analyze import diagnose, sources
from roundk.analyze.case import build
from roundk.analyze.commands.analyze import command
from roundk.analyze.output import json as json_form
from roundk.analyze.output import text
from roundk.analyze.plot import MAX_LANES, draw
from roundk.tracer.errors import RunError

VERDICT_KEYS = {
    *("structure", "detail", "structure_confidence", "cause", "cause_confidence"),
    *("culprit_ranks", "culprit_hosts", "culprit_links", "group", "seq", "op", "onset_ns"),
    *("waiting_ranks", "victims", "occurrences", "summary"),
    *("evidence", "contradictions", "not_checked", "next_steps"),
}
COVERAGE_KEYS = {
    *("world_size", "ranks_seen", "ranks_missing", "ranks_empty"),
    *("truncated", "unreadable", "clock_error_ns", "sources"),
}


def hung(world=4, missing=1):
    job = Job(world).rounds(5).hang(without=[missing], gave_up=20)
    return job.trace(ended=job.clock + 1, exit_code=1)


def case_of(trace):
    return build(trace, now_ns=trace.ended_ns, stall_ns=diagnose.STALL_NS)


def test_json_has_exactly_the_keys_of_the_contract():
    report = json.loads(json_form.render(diagnose.report(case_of(hung()))))
    assert list(report) == ["schema", "status", "verdicts", "coverage"]
    assert report["schema"] == 1
    verdict = report["verdicts"][0]
    assert set(verdict) == VERDICT_KEYS
    assert set(report["coverage"]) == COVERAGE_KEYS
    assert verdict["group"] == {"name": "0", "desc": "default_pg", "size": 4}
    assert verdict["victims"] == {"ranks": 3, "groups": 1, "hosts": ["a"]}
    assert sorted(verdict["evidence"][0]) == ["rank", "source", "time_ns", "what"]
    assert verdict["culprit_ranks"] == [1]
    assert verdict["culprit_hosts"] == ["a"]


@pytest.mark.parametrize("width", [80, 120])
def test_text_says_it_first_and_fits(width):
    shown = text.render(diagnose.report(case_of(hung())), width=width)
    lines = shown.splitlines()
    assert max(map(len, lines)) <= width
    assert lines[0] == "FAILED  RANK_NOT_ENTERED (IDLE)"
    assert lines[2].startswith("Rank 1 never entered all_reduce #6")
    assert "\x1b" not in shown


def test_text_fits_one_screen():
    assert len(text.render(diagnose.report(case_of(hung()))).splitlines()) <= 40


@pytest.mark.parametrize("world", [4, 64, 300])
def test_chart_is_drawn_and_folds_what_cannot_be_read(tmp_path, world):
    case = case_of(hung(world, missing=world - 1))
    picture = tmp_path / "chart.svg"
    draw(case, diagnose.report(case), picture)
    drawn = picture.read_text()
    lanes = drawn.count("<!-- rank ")
    assert f"rank {world - 1} never entered all_reduce #6" in drawn
    assert lanes <= MAX_LANES + 1
    assert ("more ranks are not shown" in drawn) == (world > MAX_LANES)


@pytest.mark.parametrize("make", ["healthy", "nothing"])
def test_chart_of_a_run_with_nothing_to_show(tmp_path, make):
    job = Job().rounds(3) if make == "healthy" else Job()
    case = case_of(job.trace(ended=5, exit_code=0))
    draw(case, diagnose.report(case), tmp_path / "chart.png")
    assert (tmp_path / "chart.png").stat().st_size > 1000


def test_chart_of_an_unknown_form_is_an_error_that_says_what_to_try(tmp_path):
    case = case_of(hung())
    with pytest.raises(Exception, match=r"name a \.png or \.svg file"):
        draw(case, diagnose.report(case), tmp_path / "chart.nonsense")


@pytest.mark.parametrize(
    ("job", "code"),
    [
        (hung, 1),
        (lambda: Job().rounds(3).trace(ended=5, exit_code=0), 0),
        (lambda: Job().rounds(3).hang(gave_up=3).trace(ended=9, exit_code=1), 3),
    ],
)
def test_exit_codes(monkeypatch, tmp_path, job, code):
    monkeypatch.setattr(sources, "load", lambda _paths, _hints: (job(), []))
    result = CliRunner().invoke(command, [str(tmp_path), "--format", "json"])
    assert result.exit_code == code
    assert json.loads(result.stdout)["schema"] == 1


def test_usage_is_exit_code_2():
    assert CliRunner().invoke(command, []).exit_code == 2


def test_nothing_readable(tmp_path):
    with pytest.raises(RunError, match="there is no file here"):
        sources.load([str(tmp_path)])
    (tmp_path / "notes.txt").write_text("nothing of interest\n")
    with pytest.raises(RunError, match=r"none of the 1 file\(s\) here is anything that roundk reads"):
        sources.load([str(tmp_path)])
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(RunError, match=r"the 1 file\(s\) here are empty"):
        sources.load([str(tmp_path)])
    with pytest.raises(RunError, match="no such file"):
        sources.load([str(tmp_path / "absent")])


NEVER_ENTERED = pathlib.Path(__file__).parents[3] / "sample_traces" / "never_entered"


def analyze_into(stdout):
    """The command as a process of its own that prints to this file."""
    args = [sys.executable, "-m", "roundk", "analyze", str(NEVER_ENTERED)]
    return subprocess.run(args, check=False, stdout=stdout, stderr=subprocess.PIPE, text=True)


def test_report_that_cannot_be_written_is_a_message_and_not_a_traceback():
    with pathlib.Path("/dev/full").open("w") as full:
        done = analyze_into(full)
    assert done.returncode == 2
    assert done.stderr.startswith("roundk: the report cannot be written")
    assert len(done.stderr.splitlines()) == 1


def test_report_into_a_closed_pipe_is_no_traceback():
    reading, writing = os.pipe()
    os.close(reading)
    done = analyze_into(writing)
    os.close(writing)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


def test_picture_that_cannot_be_drawn_leaves_the_exit_code_of_the_verdict(tmp_path):
    result = CliRunner().invoke(command, [str(NEVER_ENTERED), "--plot", str(tmp_path / "none" / "chart.png")])
    assert result.exit_code == 1
    assert "RANK_NOT_ENTERED" in result.stdout
    assert result.stderr.startswith("roundk: ")
