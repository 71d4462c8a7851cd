"""The process that judges one run: `python -P -m roundk.analyze.batch.child SPEC RESULT PARENT`.

It dies with its parent, whatever ends that. An error in it is not caught: it ends with a traceback, which its parent
reads.
"""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
import signal
import sys
from typing import Any, Final

from roundk.analyze.batch.run import File, Run

_PR_SET_PDEATHSIG: Final = 1
"""Source: Linux, include/uapi/linux/prctl.h."""


def _die_with(parent: int) -> None:
    """Have the kernel end this process when its parent is gone."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it went before the kernel was asked
        os.kill(os.getpid(), signal.SIGKILL)


def main(spec: pathlib.Path, result: pathlib.Path, parent: int) -> None:
    """Judge the run that a file describes.

    Args:
        spec: JSON: `run` and `now_ns`.
        result: JSON to write: `rows` and `is_final`.
        parent: Process id of who waits for it.
    """
    _die_with(parent)
    from roundk.analyze.batch import judge_run  # only now: what is loaded takes a second

    told = json.loads(spec.read_text(encoding="utf-8"))
    scratch = spec.parent / "fetched"
    scratch.mkdir()
    judged = judge_run.judged(run_of(told["run"]), now_ns=told["now_ns"], scratch=scratch)
    result.write_text(json.dumps({"rows": judged.rows, "is_final": judged.is_final}), encoding="utf-8")


def run_of(told: dict[str, Any]) -> Run:
    """The run that `dataclasses.asdict` made this of."""
    files = tuple(File(**file) for file in told.pop("files"))
    return Run(**{**told, "paths": tuple(told["paths"])}, files=files)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3]))
