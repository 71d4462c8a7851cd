"""The samples that the fault lab of `tests/faults` records: which of its scenarios, and what is expected of each."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
from typing import Any

LAB = pathlib.Path(__file__).parents[1] / "tests" / "faults"
FORM = "4x1"
HOSTS = 4
"""One rank on each, so a rank and its host have one number."""
SEED = "samples"
"""Of all parameters: which host, which rank, how much."""
_CANNOT = 2
"""Exit code of the lab where nothing can be run."""

SCENARIOS = {
    "link_flap": "flap_1s",
    "link_down": "link_down",
    "decoy_flap": "decoy_flap",
    "decoy_stop": "decoy_stop",
    "flap_stop": "flap_stop",
    "stop_3s": "stop_3s",
    "stop": "stop",
    "half_cpu": "half_cpu",
    "slow_rank": "slow_rank",
    "slow_both": "slow_both",
    "skip": "skip",
    "loss": "loss",
    "rate": "rate",
    "reorder": "reorder",
    "one_way": "one_way",
    "mtu": "mtu",
}
"""The lab's scenario by the name of the sample."""


class LabMissingError(Exception):
    """The lab cannot run on this machine."""


def record(names: list[str], folder: pathlib.Path, env: dict[str, str]) -> dict[str, pathlib.Path]:
    """Run the scenarios of samples in a copy of the lab, so that what they record names no other place.

    Args:
        names: Of samples.
        folder: Where the copy and what it records go.
        env: With the interpreter and roundk under the names that the samples shall show.

    Returns:
        By sample, the folder with the run that was recorded, its truth, and what is wrong in the verdict on it. A
        sample at which the lab itself failed is left out.

    Raises:
        LabMissingError: there is no lab on this machine.
    """
    shutil.copytree(LAB, folder / "faults", ignore=shutil.ignore_patterns("__pycache__", "test_*"))
    runs = folder / "lab"
    runs.mkdir()
    wanted = [SCENARIOS[name] for name in names]
    options = ["--form", FORM, "--seed", SEED, "--without-links", "--keep", str(runs)]
    command = ["python", str(folder / "faults" / "run.py"), *options, "--scenario", *wanted]
    done = subprocess.run(command, cwd=folder, env={**os.environ, **env}, check=False)
    if done.returncode == _CANNOT:
        raise LabMissingError
    places = {name: runs / f"{SCENARIOS[name]}-{FORM}-0" for name in names}
    return {name: place for name, place in places.items() if (place / "wrong.json").exists()}


def wrong(place: pathlib.Path) -> list[str]:
    """What roundk says that is not true of a recorded run."""
    return [str(what) for what in json.loads((place / "wrong.json").read_text())]


def run_of(place: pathlib.Path) -> pathlib.Path:
    """The run directory in such a folder; of a job that hangs, the copy that was made meanwhile."""
    return place / "hanging" if (place / "hanging").exists() else place / "run"


def expected(place: pathlib.Path) -> dict[str, Any]:
    """The `expected.json` of a recorded run: from what was done to the job, not from what roundk says of it."""
    recorded = json.loads((place / "truth.json").read_text())
    truth = recorded["truth"]
    first, *others = truth["expected"]
    guilty = _guilty(truth)
    must_not = {
        "ranks": sorted(set(range(HOSTS)) - {rank for one in truth["expected"] for rank in one["ranks"]}),
        "hosts": [host for host in map(_host, range(HOSTS)) if host not in guilty],
    }
    found = {**_outcome(first["structures"], hung=recorded["hung"]), **_verdict(first), "must_not_blame": must_not}
    if others:
        found["also"] = [_verdict(one) for one in others]
    if truth["event"]:
        found["says"] = truth["event"]
    return found


def _host(number: int) -> str:
    return f"h{number}"


def _guilty(truth: dict[str, Any]) -> set[str]:
    links = [link for one in truth["expected"] for link in one["links"]] + truth["tolerated"]
    return {host for host, _ in links} | {_host(rank) for one in truth["expected"] for rank in one["ranks"]}


def _outcome(structures: list[str], *, hung: bool) -> dict[str, Any]:
    if structures == ["HEALTHY"]:
        return {"exit_code": 0, "status": "healthy"}
    if structures in (["SLOW_TRANSFER"], ["STRAGGLER"]):
        return {"exit_code": 1, "status": "slow"}
    return {"exit_code": 1, "status": "stuck" if hung else "failed"}


def _verdict(one: dict[str, Any]) -> dict[str, Any]:
    not_inside = one["structures"] == ["RANK_NOT_ENTERED"]
    details = one["details"] if not_inside else [None, *one["details"]]
    return {
        "structure": _any_of(one["structures"]),
        "detail": _any_of(details),
        "cause": _any_of(one["causes"]),
        "culprit_ranks": one["ranks"],
        "culprit_links": [{"host": host, "device": device} for host, device in one["links"]],
    }


def _any_of(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else values
