"""The forms of a report: JSON by the contract, text that fits the terminal, the chart; the command and its codes."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import pty
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner
from jobs import Job

from roundk.analyze import diagnose, sources
from roundk.analyze.case import build
from roundk.analyze.chart import MAX_LANES
from roundk.analyze.commands.analyze import command
from roundk.analyze.finding import Evidence
from roundk.analyze.output import json as json_form
from roundk.analyze.output import markdown, safe, text, words
from roundk.analyze.picture import pictures
from roundk.analyze.plot import draw
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
    with pytest.raises(RunError, match="1 file is here, and none is anything that roundk reads"):
        sources.load([str(tmp_path)])
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(RunError, match="1 file is here and empty"):
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


def test_picture_without_an_ending_is_a_png_of_that_name(tmp_path):
    result = CliRunner().invoke(command, [str(NEVER_ENTERED), "--plot", str(tmp_path / "chart")])
    assert result.exit_code == 1
    assert [path.name for path in tmp_path.iterdir()] == ["chart"]
    assert (tmp_path / "chart").read_bytes().startswith(b"\x89PNG")


def shown(case, **options):
    report = diagnose.report(case)
    return text.render(report, pictures(case, report), **options)


def test_text_is_in_the_order_of_what_is_asked_first():
    lines = shown(case_of(hung())).splitlines()
    order = ["FAILED  RANK_NOT_ENTERED (IDLE)", "Who waits for whom", "Next", "Evidence [time after the onset]"]
    order += ["Not checked", "`roundk explain RANK_NOT_ENTERED` tells what that means.", "Read: 4 of 4 ranks."]
    assert [line for line in lines if line in order] == order
    assert lines.index("Next") < 20
    wait = lines.index("Who waits for whom")
    assert lines[wait + 1] == "  ranks 0, 2, 3 in all_reduce #6 of group default_pg  -> rank 1 (not entered)"


def nested():
    """Rank 1 is missing in two groups; rank 0 waits for it, and therefore ranks 2, 4, 6 wait for rank 0."""
    job = Job(8)
    pairs = [job.group([2 * n, 2 * n + 1], f"tp{n}") for n in range(4)]
    even, odd = job.group([0, 2, 4, 6], "dp0"), job.group([1, 3, 5, 7], "dp1")
    for group in (*pairs, even, odd):
        job.round(group=group)
    job.hang(group=pairs[0], without=[1]).hang(group=odd, without=[1]).hang(group=even, without=[0])
    return case_of(job.trace(ended=200, exit_code=1))


def test_who_waits_through_others_is_told_behind():
    case = nested()
    (picture,) = pictures(case, diagnose.report(case))
    assert [(one.ranks, one.on) for one in picture.roots] == [((0,), (1,)), ((3, 5, 7), (1,))]
    assert [(one.ranks, one.on, one.state) for one in picture.behind] == [((2, 4, 6), (0,), "held up")]
    assert (picture.direct, picture.through) == ((0, 3, 5, 7), (2, 4, 6))
    assert "  ranks 2, 4, 6 in all_reduce #2 of group dp0  -> rank 0 (held up)" in shown(case).splitlines()


def test_many_rounds_behind_are_counted():
    job = Job(16)
    chain = [job.group([n, n + 1], f"g{n}") for n in range(15)]
    for group in chain:
        job.round(group=group)
    for number, group in enumerate(chain):
        job.hang(group=group, without=[number])
    case = case_of(job.trace(ended=200, exit_code=1))
    lines = shown(case).splitlines()
    assert "  rank 1 in all_reduce #2 of group g0  -> rank 0 (not entered)" in lines
    assert "  ranks 2-15 wait for these, in 14 more rounds of 14 groups" in lines


def test_circle_is_drawn_as_one():
    job = Job(4)
    one, other = job.group(range(4), "dp"), job.group(range(4), "tp")
    job.hang(only=[0, 1, 2], group=one).hang(only=[3], group=other)
    lines = shown(case_of(job.trace(ended=200, exit_code=1))).splitlines()
    at = lines.index("Who waits for whom, in a circle")
    assert lines[at + 1 : at + 3] == [
        "  ranks 0-2 in all_reduce #1 of group dp  -> rank 3 (in another of these)",
        "  rank 3 in all_reduce #1 of group tp  -> ranks 0-2 (in another of these)",
    ]


def test_round_that_lacks_nobody():
    case = case_of(Job().rounds(3).hang(gave_up=30).trace(ended=99, exit_code=1))
    assert "nobody is missing, nobody got out" in shown(case, width=120)


def test_evidence_that_ranks_share_is_told_once():
    pieces = [Evidence(f"rank {rank} was killed by SIGKILL", f"job.log:{rank + 7}", rank) for rank in range(3)]
    pieces.append(Evidence("node-a: port error", "job.log:7"))
    verdict = dataclasses.replace(diagnose.report(case_of(hung())).verdicts[0], evidence=tuple(pieces))
    assert [(piece.what, piece.source) for piece in words.pieces(verdict)] == [
        ("ranks 0-2 were killed by SIGKILL", "job.log:7, 8, 9"),
        ("node-a: port error", "job.log:7"),
    ]


@pytest.mark.parametrize(
    ("time_ns", "told"),
    [
        (9_490_000_000, "9.490 s of the trace"),
        (0, "0.000 s of the trace"),
        (1_795_947_737_101_999_999, "2026-11-29 10:22:17.101 UTC"),
    ],
)
def test_times_of_a_trace_with_its_own_beginning_are_no_dates(time_ns, told):
    assert words.clock(time_ns) == told


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("world", [2, 4, 64])
def test_text_fits_with_many_ranks(width, world):
    case = case_of(hung(world))
    assert max(map(len, shown(case, width=width).splitlines())) <= width


HOSTILE = "<img src=x onerror=alert(1)>|@all `x` *y* #5 [z](http://z)"


def test_markdown_has_tables_and_nothing_that_forges_link():
    case = case_of(hung())
    report = diagnose.report(case)
    told = markdown.render(report, pictures(case, report))
    assert told.startswith("### FAILED: RANK_NOT_ENTERED (IDLE)\n\n**Rank 1 never entered `all_reduce #6` of group")
    assert "| ranks 0, 2, 3 | in `all_reduce #6` of group default_pg | rank 1 (not entered) |" in told
    outside = re.sub(r"`[^`\n]*`", "", told.replace("\\`", ""))
    assert "#6" not in outside
    assert len(told.splitlines()) <= 50


def test_markdown_shows_hostile_names_as_they_are():
    line = safe.markdown(HOSTILE)
    outside = re.sub(r"(?<!\\)`[^`\n]*(?<!\\)`", "", line)
    assert "<" not in outside
    assert not re.search(r"@|(?<!\\)[|*\[]|#\d|://", outside)
    assert safe.markdown("a_b __init__") == r"a_b \__init_\_"


@pytest.mark.parametrize(
    ("args", "file", "start"),
    [
        (["--format", "text"], None, "FAILED  RANK_NOT_ENTERED"),
        (["--format", "json"], None, "{\n"),
        (["--format", "markdown"], None, "### FAILED"),
        (["--format", "html"], None, "<!DOCTYPE html>"),
        ([], "report.html", "<!DOCTYPE html>"),
        ([], "report.md", "### FAILED"),
        ([], "report.json", "{\n"),
        ([], "report.txt", "FAILED  RANK_NOT_ENTERED"),
        ([], "report.log", "FAILED  RANK_NOT_ENTERED"),
        ([], "report", "FAILED  RANK_NOT_ENTERED"),
        (["--format", "text"], "report.pdf", "FAILED  RANK_NOT_ENTERED"),
        (["--format", "json"], "report.html", "{\n"),
    ],
)
def test_each_form_printed_or_written_to_a_file(tmp_path, args, file, start):
    output = [] if file is None else ["-o", str(tmp_path / file)]
    result = CliRunner().invoke(command, [str(NEVER_ENTERED), *args, *output])
    assert result.exit_code == 1
    told = result.stdout if file is None else (tmp_path / file).read_text()
    assert told.startswith(start)
    assert "ank 2 never entered" in told
    if file is not None:
        assert result.stdout == ""
        assert result.stderr == f"roundk: the report is in {tmp_path / file}\n"


@pytest.mark.parametrize("file", ["report.pdf", "report.PDF", "report.html.gz"])
def test_an_ending_that_no_form_has_is_refused_with_those_there_are(tmp_path, file):
    result = CliRunner().invoke(command, [str(NEVER_ENTERED), "-o", str(tmp_path / file)])
    assert result.exit_code == 2
    assert ".html, .htm, .md, .markdown, .json, .txt" in result.stderr
    assert not (tmp_path / file).exists()


def test_report_that_cannot_be_written_to_its_file():
    done = subprocess.run(
        [sys.executable, "-m", "roundk", "analyze", str(NEVER_ENTERED), "-o", "/dev/full"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr == "roundk: /dev/full: the report cannot be written: No space left on device\n"


def test_page_is_not_poured_into_a_terminal():
    ours, theirs = pty.openpty()
    args = [sys.executable, "-m", "roundk", "analyze", str(NEVER_ENTERED), "--format", "html"]
    done = subprocess.run(args, check=False, stdout=theirs, stderr=subprocess.PIPE, text=True)
    os.close(ours)
    os.close(theirs)
    assert done.returncode == 2
    assert "-o report.html" in done.stderr


def test_text_on_standard_input_that_is_no_log_is_an_error_with_its_name():
    done = CliRunner().invoke(command, ["-"], input="hi\n")
    assert isinstance(done.exception, RunError), done.exception
    assert "nothing" in str(done.exception) or "none" in str(done.exception)
