"""Record the sample traces anew from real gloo jobs: `python sample_traces/record.py [NAME...]`, with roundk and torch.

The jobs run in a neutral folder under a neutral host name, so that what they record needs no rewriting: the paths in a
sample are those of `/tmp/demo`. Each sample's `expected.json` is written by hand, in `SAMPLES` below.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from typing import Any, NamedTuple

HERE = pathlib.Path(__file__).parent
SCRIPTS = HERE.parent / "tests" / "integration" / "scripts"
DEMO = pathlib.Path(tempfile.gettempdir()) / "demo"
HOST = "node-a"
LIMIT_S = 120
GROUP_TIMEOUT_S = 15


class Sample(NamedTuple):
    """A script of tests/integration/scripts, the fault planted in it, and what has to be said of the recording."""

    script: str
    fault: dict[str, str]
    expected: dict[str, Any]


def _fault(kind: str, rank: int, number: int = 6) -> dict[str, str]:
    return {"FAULT": kind, "FAULT_RANK": str(rank), "FAULT_ROUND": str(number)}


def _failed(structure: str, detail: str, cause: str, rank: int, seq: int, op: str) -> dict[str, Any]:
    return {
        "exit_code": 1,
        "status": "failed",
        "structure": structure,
        "detail": detail,
        "cause": cause,
        "culprit_ranks": [rank],
        "seq": seq,
        "op": op,
    }


# The seq follows from the script, and is what torch's Flight Recorder counts. DDP: the constructor makes 3 calls (the
# parameters are compared, then aligned), the first step 1, the second 2 to agree on buckets; from then on every step
# has 3 all_reduces. Its 6th step begins with call 3 + 1 + 2 + 4 * 3 + 1 = 19. FSDP2: 4 gathers and 2 reductions in
# every step; the 6th begins with call 5 * 6 + 1 = 31.
SAMPLES = {
    "healthy_ddp": Sample(
        "ddp",
        {},
        {
            "exit_code": 0,
            "status": "healthy",
            "structure": "HEALTHY",
            "detail": None,
            "cause": None,
            "culprit_ranks": [],
            "seq": None,
            "op": None,
        },
    ),
    "never_entered": Sample(
        "ddp", _fault("sleep", 2), _failed("RANK_NOT_ENTERED", "BUSY", "HOST_STALL", 2, 19, "all_reduce")
    ),
    "killed_rank": Sample(
        "fsdp2",
        _fault("kill", 3),
        _failed("RANK_NOT_ENTERED", "DEAD", "PROCESS_KILLED", 3, 31, "all_gather_into_tensor"),
    ),
    "size_mismatch": Sample(
        "manual", _fault("size", 2), _failed("SIGNATURE_MISMATCH", "SIZE", "CODE_DIVERGENCE", 2, 6, "all_reduce")
    ),
}


def record(name: str, sample: Sample) -> None:
    """Run the sample's job in the neutral folder and keep its run directory and its `expected.json`."""
    shutil.copy(SCRIPTS / f"{sample.script}.py", DEMO / "train.py")
    run = DEMO / "run"
    env = {
        **os.environ,
        "PATH": f"{DEMO / 'bin'}{os.pathsep}{DEMO / 'venv' / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(DEMO / "roundk"),
        "ROUNDK_HOST": HOST,
        "GROUP_TIMEOUT_S": str(GROUP_TIMEOUT_S),
        **sample.fault,
    }
    command = [
        "roundk",
        "run",
        "--no-logs",
        "--dir",
        "run",
        "--",
        "torchrun",
        "--standalone",
        "--nproc-per-node",
        "4",
        "train.py",
    ]
    subprocess.run(command, cwd=DEMO, env=env, timeout=LIMIT_S, check=False)
    for folder in run.glob("*/site-*"):
        shutil.rmtree(folder)  # the start-up code that `roundk run` gave to the job
    target = HERE / name
    shutil.rmtree(target, ignore_errors=True)
    shutil.move(run, target)
    (target / "expected.json").write_text(json.dumps(sample.expected, indent=2) + "\n")


def neutral_folder() -> None:
    """Make a folder with the scripts, this interpreter, torch and roundk under neutral paths."""
    site_packages = pathlib.Path(sysconfig.get_path("purelib"))
    library = DEMO / "venv" / "lib" / site_packages.parent.name
    for folder in (DEMO / "bin", DEMO / "venv" / "bin", library):
        folder.mkdir(parents=True)
    (DEMO / "python").symlink_to(sys.base_prefix)
    (DEMO / "roundk").symlink_to(HERE.parent / "src")
    (DEMO / "venv" / "pyvenv.cfg").write_text(f"home = {DEMO / 'python' / 'bin'}\n")
    interpreter = pathlib.Path(sys.executable).resolve().name
    (DEMO / "venv" / "bin" / "python").symlink_to(DEMO / "python" / "bin" / interpreter)
    (library / "site-packages").symlink_to(site_packages)
    for name, module in (("roundk", "roundk"), ("torchrun", "torch.distributed.run")):
        path = DEMO / "bin" / name
        # The scripts that pip installs name the interpreter by its true path.
        path.write_text(f'#!/bin/sh\nexec python -m {module} "$@"\n')
        path.chmod(0o755)
    shutil.copy(SCRIPTS / "faults.py", DEMO)


def main() -> None:
    """Record the samples named on the command line, or all."""
    neutral_folder()
    try:
        for name in sys.argv[1:] or SAMPLES:
            record(name, SAMPLES[name])
    finally:
        shutil.rmtree(DEMO)


if __name__ == "__main__":
    main()
