"""The recorder's life in a process: when there is one, and when there is none any more."""

from __future__ import annotations

from typing import ClassVar

import pytest

from roundk.hooks import config, goodbye, process


class FakeRecorder:
    made: ClassVar[list[FakeRecorder]] = []

    def __init__(self, config, rank, world_size, pending):
        self.rank, self.exit_file, self.stacks, self.closed = rank, "", None, 0
        self.made.append(self)

    def close(self):
        self.closed += 1


@pytest.fixture
def one(monkeypatch):
    monkeypatch.setattr(FakeRecorder, "made", [])
    monkeypatch.setattr(process, "Recorder", FakeRecorder)
    monkeypatch.setattr(goodbye, "arm", lambda path: None)
    return process.Process(config.Config("", 0, 30.0))


def test_after_the_end_nothing_is_opened(one):
    first = one.open_as(0, 2)
    one.end()
    assert (one.open_as(0, 2), one.open_as(1, 2), one.recorder) == (None, None, None)
    assert (FakeRecorder.made, first.closed) == ([first], 1)


def test_a_process_that_becomes_another_rank_starts_anew(one):
    first = one.open_as(0, 2)
    second = one.open_as(1, 2)
    assert (FakeRecorder.made, first.closed, second.closed) == ([first, second], 1, 0)
    assert one.open_as(1, 2) is second


def test_a_forked_child_of_an_ended_process_starts_anew(one):
    first = one.open_as(0, 2)
    one.end()
    one.forked()
    assert one.open_as(0, 2) not in (None, first)
