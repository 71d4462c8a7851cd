"""Times on a device, with events that stand in for CUDA's: there is no GPU here (tests/device is for one)."""

from __future__ import annotations

import contextlib
import time

import pytest

from roundk.hooks import device, works
from roundk.tracer import ring, words

S = 10**9


class Event:
    """An event that happens when the test says so, at a device time of the test's choosing."""

    def __init__(self, **_):
        self.at_s = None
        self.recorded_on = []

    def record(self, stream="current"):
        self.recorded_on.append(stream)

    def query(self):
        return self.at_s is not None

    def elapsed_time(self, other):
        return (other.at_s - self.at_s) * 1e3


class Cuda:
    """The part of torch.cuda that is used."""

    def __init__(self):
        self.events = []
        self.capturing = False

    def Event(self, **options):  # noqa: N802
        self.events.append(Event(**options))
        return self.events[-1]

    def Stream(self):  # noqa: N802
        return "ours"

    def device(self, index):
        return contextlib.nullcontext(index)

    def is_current_stream_capturing(self):
        return self.capturing


class Work:
    """A Work that ends when the test says so, and whose wait would be a fault of ours."""

    def __init__(self):
        self.done = False

    def is_completed(self):
        return self.done


@pytest.fixture
def cuda():
    return Cuda()


@pytest.fixture
def segment(tmp_path):
    return ring.Segment.create(str(tmp_path / "s.arrow"), 4096, 0)


def entered(segment, times, coalescing=None):
    return segment.columns, segment.take(), times.mark(0, coalescing)


def row(segment, number=0):
    c = segment.columns
    return c.start_ns[number], c.end_ns[number], words.OUTCOMES[c.outcome[number]], c.is_timed[number]


def test_a_synchronous_call_starts_and_ends_by_events_on_its_stream(cuda, segment):
    times = device.DeviceTimes(cuda, lambda: True)
    call = entered(segment, times)
    times.watch(call, None)
    start, end = cuda.events
    assert start.recorded_on == end.recorded_on == ["current"]
    times.ask()
    assert row(segment) == (0, 0, "open", 1), "entered, and not started"
    start.at_s = 10.0
    before = time.time_ns()
    times.ask()
    began, ended, outcome, timed = row(segment)
    assert before <= began <= time.time_ns()
    assert (ended, outcome, timed) == (0, "open", 1), "started, and not finished"
    anchor = cuda.events[2]
    assert anchor.recorded_on == ["ours"], "device time is tied to wall time on a stream of ours, which is idle"
    anchor.at_s, tied = 10.0, time.time_ns()
    end.at_s = 9.0
    times.ask()
    assert row(segment)[2] == "completed"
    assert tied - 2 * S < row(segment)[1] < tied - 0.5 * S, "one second before the anchor"


def test_an_asynchronous_call_ends_with_its_work(cuda, segment):
    times, work = device.DeviceTimes(cuda, lambda: True), Work()
    times.watch(entered(segment, times), work)
    assert len(cuda.events) == 1, "no event behind a call that runs on another stream"
    cuda.events[0].at_s = 1.0
    times.ask()
    assert row(segment)[2] == "open"
    work.done = True
    times.ask()
    assert row(segment)[2] == "completed"


def test_nothing_is_recorded_during_capture(cuda, segment):
    times = device.DeviceTimes(cuda, lambda: True)
    cuda.capturing = True
    assert times.mark(0, None) == works.UNSEEN
    assert cuda.events == []


def test_a_capture_that_begins_inside_a_call(cuda, segment):
    times = device.DeviceTimes(cuda, lambda: True)
    call = entered(segment, times)
    cuda.capturing = True
    times.watch(call, None)
    cuda.events[0].at_s = 1.0
    times.ask()
    assert row(segment)[1:] == (0, "not_recorded", 0)


def test_without_a_capture_mode_of_its_own_the_thread_asks_nothing(cuda, segment):
    times = device.DeviceTimes(cuda, lambda: False)
    times.watch(entered(segment, times), Work())
    cuda.events[0].query = None  # asking would be a TypeError
    times.ask()
    assert row(segment) == (0, 0, "not_recorded", 0)
    assert times.mark(0, None) == works.UNSEEN, "and no further event is made"


def test_what_is_in_flight_is_bounded(cuda, segment):
    times = device.DeviceTimes(cuda, lambda: True)
    for _ in range(device._MOST_WATCHED + 2):
        times.watch((segment.columns, segment.take() % segment.rows, times.mark(0, None)), Work())
    assert len(times._watched) == device._MOST_WATCHED


def test_events_are_used_again(cuda, segment):
    times = device.DeviceTimes(cuda, lambda: True)
    for _ in range(5):
        times.watch(entered(segment, times), None)
        for event in cuda.events:
            event.at_s = 1.0
        times.ask()
        for event in cuda.events[:2]:
            event.at_s = None
    assert len(cuda.events) == 3, "one before, one behind, and the anchor"
