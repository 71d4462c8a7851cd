"""How far a batch is, in a log and on a terminal."""

from __future__ import annotations

import io

import pytest

from roundk.analyze.batch import progress
from roundk.analyze.batch.progress import Progress
from roundk.analyze.batch.run import Run

FINE = [{"status": "failed", "problem": None}]
PARTLY = [{"status": "failed", "problem": "rank_3 is cut short"}]
UNJUDGED = [{"status": "error", "problem": "it is empty"}]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def run(name):
    return Run(name, "/runs", (), ())


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_log_gets_a_line_every_half_minute(clock):
    told = io.StringIO()
    one = Progress(100, columns=80, stream=told)
    with one:
        for number in range(100):
            one.started(run(str(number)))
            clock[0] += 1
            one.judged(run(str(number)), UNJUDGED if number == 3 else FINE)
    assert told.getvalue().splitlines() == [
        "roundk: 0/100 runs, 0 problems",
        "roundk: 30/100 runs, 1 problem, about 70.0 s left",
        "roundk: 60/100 runs, 1 problem, about 40.0 s left",
        "roundk: 90/100 runs, 1 problem, about 10.0 s left",
    ]
    assert one.counts == "100 of 100 runs: 99 judged, 1 not judged"


def test_what_was_kept_does_not_make_the_rest_look_quick(clock):
    one = Progress(110, columns=80, stream=io.StringIO())
    for _ in range(90):
        one.kept(FINE)
    with one:
        for number in range(10):
            one.started(run(str(number)))
            clock[0] += 6
            one.judged(run(str(number)), FINE)
    assert one.text == "100/110 runs, 0 problems, about 60.0 s left"
    assert one.counts == "100 of 110 runs: 10 judged, 90 kept from before"


def test_a_terminal_shows_the_run_that_takes_longest(clock):
    told = Terminal()
    one = Progress(3, columns=40, stream=told)
    with one:
        one.started(run("slow"))
        one.started(run("quick\x1b[2J"))
        one.judged(run("quick\x1b[2J"), FINE)
    shown = told.getvalue().split("\r")
    assert shown[-2] == "1/3 runs, 0 problems, now: slow\x1b[K"
    assert shown[-1] == "\x1b[K"


def test_names_cannot_steer_the_terminal(clock):
    told = Terminal()
    one = Progress(1, columns=200, stream=told)
    with one:
        one.started(run("a\x1b[2J\nb"))
    assert "now: a\\x1b[2J\\nb\x1b[K" in told.getvalue()
    assert "\x1b[2J" not in told.getvalue()


def test_nothing_left_to_do_says_nothing(clock):
    told = io.StringIO()
    one = Progress(1, columns=80, stream=told)
    one.kept(UNJUDGED)
    with one:
        pass
    assert told.getvalue() == ""
    assert one.counts == "1 of 1 run: 0 judged, 1 not judged"


def test_the_counts_are_those_of_the_report_and_add_up():
    one = Progress(9, columns=80, stream=io.StringIO())
    assert one.counts == "none of 9 runs is judged yet"
    for rows in (FINE, FINE, FINE, UNJUDGED):
        one.kept(rows)
    for rows in (FINE, PARTLY, UNJUDGED, FINE):
        one.judged(run("a"), rows)
    assert one.counts == (
        "8 of 9 runs: 3 judged, 3 kept from before, 2 not judged; 1 judged without some of their files"
    )
