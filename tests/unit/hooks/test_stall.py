"""When stalls are told: rows of a real segment, by a clock of the test's."""

from __future__ import annotations

import pytest

from roundk.hooks import stall
from roundk.tracer import ring, words


class Job:
    """A process that makes calls, and is looked at four times a second."""

    def __init__(self, path, monkeypatch):
        self.now_ns = 10**18
        monkeypatch.setattr(stall.time, "time_ns", lambda: self.now_ns)
        self.watch = stall.StallWatch(2.0)
        self.segment = ring.Segment.create(path, 4096, 0)
        self.watch.follow(self.segment)
        self.timeout_s = float("inf")
        self.told = []
        self._began_ns = self.now_ns

    def enter(self):
        row = self.segment.take()
        self.segment.columns.enter_ns[row] = self.now_ns
        self.segment.columns.commit[row] = row + 1
        return row

    def end(self, row):
        self.segment.columns.end_ns[row] = self.now_ns
        self.segment.columns.outcome[row] = words.COMPLETED

    def call(self):
        self.end(self.enter())

    def wait(self, seconds, calling=False):
        for _ in range(int(seconds * 4)):
            self.now_ns += 250_000_000
            if calling:
                self.call()
            self.watch.shorten(self.timeout_s)
            found = self.watch.look()
            if found:
                self.told.append(((self.now_ns - self._began_ns) / 1e9, found.call))


@pytest.fixture
def job(tmp_path, monkeypatch):
    return Job(str(tmp_path / "s.arrow"), monkeypatch)


def test_a_call_that_stays_in_flight_is_told_again_after_twice_the_time(job):
    job.enter()
    job.wait(20)
    assert job.told == [(2.25, 1), (4.75, 1), (9.75, 1), (19.75, 1)]


def test_a_receive_posted_ahead_of_a_healthy_job_is_told_as_rarely(job):
    job.timeout_s = 1_800.0
    job.enter()
    job.wait(20, calling=True)
    assert job.told == [(2.25, 1), (4.75, 1), (9.75, 1), (19.75, 1)]


def test_a_receive_posted_ahead_does_not_hide_a_call_that_stalls(job):
    job.enter()
    job.wait(100, calling=True)
    before = len(job.told)
    row = job.enter()
    job.wait(4)
    assert job.told[before:] == [(102.25, row + 1)]


def test_a_receive_posted_ahead_does_not_hide_that_no_call_is_made_any_more(job):
    job.enter()
    job.wait(100, calling=True)
    before = len(job.told)
    job.wait(40)
    assert job.told[before:] == [(102.25, None)]


def test_a_receive_that_is_the_last_call_is_one_stall_and_not_a_quiet_one_too(job):
    job.call()
    job.enter()
    job.wait(4)
    assert job.told == [(2.25, 2)]


def test_all_calls_in_flight_are_one_stall(job):
    for _ in range(5):
        job.enter()
        job.wait(0.25)
    job.wait(2.5)
    assert job.told == [(2.25, 1)]


def test_a_stall_that_passes_by_itself_doubles_the_limit(job):
    for _ in range(3):
        row = job.enter()
        job.wait(3)
        job.end(row)
    assert job.told == [(2.25, 1)]
    job.enter()
    job.wait(5)
    assert job.told == [(2.25, 1), (13.25, 4)]


def test_a_quiet_process_is_told_once(job):
    job.wait(10)
    assert job.told == [], "it has made no call yet"
    job.call()
    job.wait(40)
    assert job.told == [(12.25, None)]


def test_the_quiet_after_a_stall_that_passed_is_told(job):
    row = job.enter()
    job.wait(3)
    job.end(row)
    job.wait(20)
    assert job.told == [(2.25, 1), (7.25, None)]


def test_a_groups_timeout_lowers_the_limit(job):
    job.timeout_s = 1.0
    job.enter()
    job.wait(1)
    assert job.told == [(0.75, 1)]
