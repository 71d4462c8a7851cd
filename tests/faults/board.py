"""What a job's ranks and the lab's driver tell each other: numbers in a mapped file, which cost a rank nothing."""

from __future__ import annotations

import enum
import mmap
import struct

_SLOT = struct.Struct("=5q")
_PID, _ROUND, _STATE, _ORDER, _AMOUNT = range(5)
_NUMBER = struct.Struct("=q")


class State(enum.IntEnum):
    """How far a rank's program is."""

    NOT_STARTED = 0
    STARTED = 1
    IN_ROUNDS = 2
    FINISHED = 3
    FAILED = 4


class Order(enum.IntEnum):
    """Faults that only the rank itself can make. The amount of the first two is in microseconds."""

    NONE = 0
    SLEEP = 1
    SLOW = 2
    SKIP = 3
    NEVER = 4


class Board:
    """The numbers of one job. A number has one writer."""

    def __init__(self, path, ranks, *, new=False):
        """Map the file; `new`: make it."""
        self.ranks = ranks
        size = _NUMBER.size + ranks * _SLOT.size
        with path.open("w+b" if new else "r+b") as file:
            if new:
                file.truncate(size)
            self._map = mmap.mmap(file.fileno(), size)

    def close(self):
        """Unmap the file."""
        self._map.close()

    def _at(self, rank, field):
        return _NUMBER.size + rank * _SLOT.size + field * _NUMBER.size

    def _get(self, rank, field):
        return _NUMBER.unpack_from(self._map, self._at(rank, field))[0]

    def _put(self, rank, field, value):
        _NUMBER.pack_into(self._map, self._at(rank, field), value)

    @property
    def should_stop(self):
        """Whether the job is to end in order."""
        return bool(_NUMBER.unpack_from(self._map, 0)[0])

    def stop(self):
        """Have the job end in order."""
        _NUMBER.pack_into(self._map, 0, 1)

    def started(self, rank, pid):
        """Tell that a rank's process runs."""
        self._put(rank, _PID, pid)
        self._put(rank, _STATE, State.STARTED)

    def pid(self, rank):
        """A rank's process."""
        return self._get(rank, _PID)

    def state(self, rank):
        """How far a rank is."""
        return State(self._get(rank, _STATE))

    def set_state(self, rank, state):
        """Tell how far a rank is."""
        self._put(rank, _STATE, state)

    def round(self, rank):
        """Rounds that a rank has begun."""
        return self._get(rank, _ROUND)

    def set_round(self, rank, number):
        """Tell how many rounds a rank has begun."""
        self._put(rank, _ROUND, number)

    @property
    def rounds(self):
        """Rounds that each rank has begun."""
        return [self.round(rank) for rank in range(self.ranks)]

    def order(self, rank, order, amount_s=0.0):
        """Have a rank make a fault at its next round."""
        self._put(rank, _AMOUNT, round(amount_s * 1e6))
        self._put(rank, _ORDER, order)

    def ordered(self, rank):
        """What fault a rank is to make, and how many seconds of it."""
        return Order(self._get(rank, _ORDER)), self._get(rank, _AMOUNT) / 1e6

    def done(self, rank):
        """Tell that a rank has made its fault."""
        self._put(rank, _ORDER, Order.NONE)
