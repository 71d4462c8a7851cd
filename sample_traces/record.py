"""Record the sample traces anew from real gloo jobs: `python sample_traces/record.py [NAME...]`, with roundk and torch.

The jobs run in a neutral folder under neutral host names, so that what they record needs no rewriting: the paths in a
sample are those of `/tmp/demo`. The samples of `lab_samples.py` need the fault lab: root, iproute2, nftables, ethtool
and a C compiler. The `expected.json` of the others is written by hand, in `SAMPLES` below.

Exit codes: 0; 1: roundk does not explain a new recording as it should, so the old one was kept; 2: nothing can be
recorded here.
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

import lab_samples
from trim import trim

HERE = pathlib.Path(__file__).parent
SCRIPTS = HERE.parent / "tests" / "integration" / "scripts"
DEMO = pathlib.Path(tempfile.gettempdir()) / "demo"
HOST = "node-a"
RANKS = 4
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
        "culprit_links": [],
        "seq": seq,
        "op": op,
        "must_not_blame": {"ranks": [other for other in range(RANKS) if other != rank], "hosts": []},
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
            "culprit_links": [],
            "seq": None,
            "op": None,
            "must_not_blame": {"ranks": list(range(RANKS)), "hosts": [HOST]},
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


def _env() -> dict[str, str]:
    """The variables that give a job the neutral names of interpreter, torch and roundk."""
    return {
        "PATH": f"{DEMO / 'bin'}{os.pathsep}{DEMO / 'venv' / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(DEMO / "roundk"),
    }


def record(name: str, sample: Sample) -> None:
    """Run the sample's job in the neutral folder and keep its run directory and its `expected.json`."""
    shutil.copy(SCRIPTS / f"{sample.script}.py", DEMO / "train.py")
    run = DEMO / "run"
    env = {
        **os.environ,
        **_env(),
        "ROUNDK_HOST": HOST,
        "GROUP_TIMEOUT_S": str(GROUP_TIMEOUT_S),
        **sample.fault,
    }
    # The links here are those of the recording machine, with its addresses: they are no part of a sample.
    options = ["--no-logs", "--no-links", "--dir", "run"]
    job = ["torchrun", "--standalone", "--nproc-per-node", str(RANKS), "train.py"]
    command = ["roundk", "run", *options, "--", *job]
    subprocess.run(command, cwd=DEMO, env=env, timeout=LIMIT_S, check=False)
    keep(name, run, sample.expected)


def keep(name: str, run: pathlib.Path, expected: dict[str, Any]) -> None:
    """Put a run directory and its `expected.json` in the place of a sample."""
    trim(run)
    target = HERE / name
    shutil.rmtree(target, ignore_errors=True)
    shutil.move(run, target)
    (target / "expected.json").write_text(json.dumps(expected, indent=2) + "\n")


def record_in_lab(names: list[str]) -> int:
    """Have the fault lab record samples; gives how many it could not, or that roundk does not explain."""
    recorded = lab_samples.record(names, DEMO, _env())
    bad = 0
    for name in names:
        if name not in recorded:
            bad += 1
            print(f"{name}: not recorded, the old sample is kept: the fault lab failed", file=sys.stderr)
        elif wrong := lab_samples.wrong(recorded[name]):
            bad += 1
            print(f"{name}: the old sample is kept; wrong in the new one: {'; '.join(wrong)}", file=sys.stderr)
        else:
            keep(name, lab_samples.run_of(recorded[name]), lab_samples.expected(recorded[name]))
    return bad


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


def main() -> int:
    """Record the samples named on the command line, or all."""
    names = sys.argv[1:] or [*SAMPLES, *lab_samples.SCENARIOS]
    if unknown := [name for name in names if name not in SAMPLES and name not in lab_samples.SCENARIOS]:
        known = ", ".join([*SAMPLES, *lab_samples.SCENARIOS])
        print(f"there is no sample {', '.join(unknown)}; there are {known}", file=sys.stderr)
        return 2
    of_lab = [name for name in names if name in lab_samples.SCENARIOS]
    neutral_folder()
    try:
        bad = record_in_lab(of_lab) if of_lab else 0
        for name in names:
            if name in SAMPLES:
                record(name, SAMPLES[name])
    except lab_samples.LabMissingError:
        print(f"nothing was recorded: these need the fault lab: {', '.join(of_lab)}", file=sys.stderr)
        print(f"without it, record these: {' '.join(SAMPLES)}", file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(DEMO)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
