"""How often the sampler of a host's links reads what, and for how long it may do so closely."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from roundk.tracer.linkstore import Store

CREDIT_S, EARNED, _ENOUGH_S = 120.0, 0.1, 5.0
"""Seconds of fast reading that a host has at first and at most, earns per second, and needs to begin again: a job whose
calls always take long, or that hangs for hours, must not push out with it what was recorded before."""


class Readable(Protocol):
    """What a round reads: `ids` of its counters; `is_gone`: the device is."""

    ids: list[int]
    is_gone: bool

    def read(self, store: Store) -> None:
        """Read it, and store what has changed."""


@dataclass
class Round:
    """What is read together, how often, and when next.

    A round that takes more than its `share` of a core comes less often: a driver that asks its firmware for every value
    may take a hundred times what memory does.
    """

    period_s: float
    share: float
    every_s: float = 0.0
    due: float = math.inf
    began: float = -math.inf
    look: int = 0
    readings: list[Readable] = field(default_factory=list)

    def read(self, store: Store) -> bool:
        """Read them; whether one is of a device that is gone."""
        now, begin_ns, cpu_s = time.monotonic(), time.time_ns(), time.thread_time()
        in_time = now - self.began <= 2 * self.every_s
        for reading in self.readings:
            reading.read(store)
        if self.readings:
            store.looked(self.look, begin_ns, in_time=in_time)
        is_first, self.began = self.began == -math.inf, now
        self.every_s = self.period_s if is_first else max(self.period_s, (time.thread_time() - cpu_s) / self.share)
        self.due = max(self.due + self.every_s, now + self.every_s / 2)
        return any(reading.is_gone for reading in self.readings)

    def set(self, readings: list[Readable], store: Store) -> None:
        """Read these from now on."""
        self.readings = readings
        self.began = -math.inf
        self.name(store)

    def name(self, store: Store) -> None:
        """Tell anew which counters its looks cover."""
        self.look = store.look([number for reading in self.readings for number in reading.ids])


@dataclass
class Credit:
    """How long fast reading may still go on."""

    left_s: float = CREDIT_S
    is_spent: bool = False
    _at: float = field(default_factory=time.monotonic)

    def may(self, *, wanted: bool) -> bool:
        """Whether to read fast until the next look."""
        now = time.monotonic()
        passed, self._at = now - self._at, now
        self.left_s = min(CREDIT_S, self.left_s + EARNED * passed)
        if wanted and not self.is_spent:
            self.left_s -= passed
            self.is_spent = self.left_s <= 0
        elif self.left_s >= _ENOUGH_S:
            self.is_spent = False
        return wanted and not self.is_spent
