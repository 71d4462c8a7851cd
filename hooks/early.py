"""What a process has to say that has no files of its own, or may have lost them: in a file beside the others'.

Its rank is the one that its environment gives it; without that there is no saying whom it is about.
"""

from __future__ import annotations

import os
import time
from typing import Any

from roundk.tracer import rundir


def note(run: str, kind: str, **fields: Any) -> None:
    """Write a line about this process with the time.

    Raises:
        OSError: it cannot be written.
    """
    rank = os.environ.get("RANK", "")
    if not rank.isdigit():
        return
    folder = rundir.prepare(run)
    about = {
        "kind": kind,
        "time_ns": time.time_ns(),
        "pid": os.getpid(),
        "rank": int(rank),
        "world_size": int(os.environ.get("WORLD_SIZE") or 0) or None,
    }
    file = rundir.LineFile(os.path.join(folder, f"early-{os.getpid()}.jsonl"))
    file.append({**about, **rundir.generation(os.environ), **fields})
