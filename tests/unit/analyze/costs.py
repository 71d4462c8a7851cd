"""What reading costs, as far as that can be told beside everything else that a test run has in its memory."""

from __future__ import annotations

import gc
import time

TRIES = 3


def cheapest(read):
    """CPU seconds of the cheapest of some tries: the others pay for what the process does beside."""
    gc.collect()
    gc.disable()  # a collection goes over what all the tests before have left
    try:
        return min(_once(read) for _ in range(TRIES))
    finally:
        gc.enable()


def _once(read):
    start = time.process_time()
    read()
    return time.process_time() - start
