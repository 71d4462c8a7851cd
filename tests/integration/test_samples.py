"""Every recorded sample is explained as its `expected.json` says, and tells nothing about where it was recorded.

`expected.json` has the report's `exit_code` and `status`, and of its first verdict the fields below; of these a list of
words means that each is right. `also` holds further verdicts, in no order; `must_not_blame` those that no verdict may
name; `says` what the first verdict must mention.

    structure, detail, cause, seq, op   as the report has them
    culprit_ranks                       exactly these
    culprit_links                       at least one of these, and no other
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import time

import harness
import pytest

from roundk.analyze import diagnose, sources
from roundk.analyze.output import json as json_output

ROOT = pathlib.Path(__file__).parents[2] / "sample_traces"
SAMPLES = sorted(path.parent for path in ROOT.glob("*/expected.json"))
NAMES = [sample.name for sample in SAMPLES]
KEYS = {"structure", "detail", "cause", "culprit_ranks", "culprit_links", "seq", "op"}
OTHER_KEYS = {"exit_code", "status", "also", "must_not_blame", "says"}
LARGEST_BYTES = 400_000
ALL_BYTES = 5_000_000
OF_JOB = ("GLOO_", "NCCL_", "TORCH_", "OMP_")
OPEN = (None, "UNDETERMINED")
SURE = ("none", "low", "medium", "high")
OF_ONE_HOST = {"healthy_ddp", "killed_rank", "never_entered", "size_mismatch"}
OF_THE_LAB = {
    "decoy_flap",
    "decoy_stop",
    "flap_stop",
    "half_cpu",
    "link_down",
    "link_flap",
    "loss",
    "mtu",
    "one_way",
    "rate",
    "reorder",
    "skip",
    "slow_both",
    "slow_rank",
    "stop",
    "stop_3s",
}


@functools.cache
def analysis_of(sample):
    return harness.analyze(sample)


def expected_of(sample):
    expected = json.loads((sample / "expected.json").read_text())
    for one in (expected, *expected.get("also", [])):
        assert set(one) <= KEYS | OTHER_KEYS
    return expected


def words(value):
    return value if isinstance(value, list) else [value]


def links_of(verdict):
    return {(link["host"], link["device"]) for link in verdict["culprit_links"]}


def is_so(verdict, wanted):
    told = [verdict[key] in words(wanted[key]) for key in KEYS - {"culprit_ranks", "culprit_links"} if key in wanted]
    named, may_be = links_of(verdict), links_of(wanted)
    links = named <= may_be and bool(named) == bool(may_be)
    return all(told) and links and verdict["culprit_ranks"] == wanted["culprit_ranks"]


def blamed(report, innocent):
    """Who is named though innocent."""
    for verdict in report["verdicts"]:
        yield from set(verdict["culprit_ranks"]) & set(innocent["ranks"])
        yield from {*verdict["culprit_hosts"], *(host for host, _ in links_of(verdict))} & set(innocent["hosts"])


def test_the_samples_are_there():
    assert set(NAMES) == OF_ONE_HOST | OF_THE_LAB


@pytest.mark.parametrize("sample", SAMPLES, ids=NAMES)
def test_a_sample_is_explained_as_expected(sample):
    expected = expected_of(sample)
    analysis = analysis_of(sample)
    report, shown = analysis.report, json.dumps(analysis.report["verdicts"], indent=1)
    assert (analysis.code, report["status"]) == (expected["exit_code"], expected["status"])
    also = expected.get("also", [])
    if also:
        for wanted in (expected, *also):
            assert any(is_so(verdict, wanted) for verdict in report["verdicts"]), shown
    else:
        assert is_so(analysis.verdict, expected), shown
    assert not list(blamed(report, expected["must_not_blame"])), shown
    for text in expected.get("says", []):
        assert text in json.dumps(analysis.verdict), shown
    assert report["coverage"]["unreadable"] == []


@pytest.mark.parametrize("sample", SAMPLES, ids=NAMES)
def test_without_link_counters_nothing_turns_wrong(sample, tmp_path):
    """What the counters alone can tell stays open, and the report says that they are missing."""
    expected = expected_of(sample)
    copy = tmp_path / sample.name
    shutil.copytree(sample, copy, ignore=shutil.ignore_patterns("links-*"))
    trace, _ = sources.load([str(copy)])
    report = json.loads(json_output.render(diagnose.diagnose(trace, now_ns=time.time_ns())))
    full = analysis_of(sample).report
    shown = json.dumps(report["verdicts"], indent=1)
    assert not list(blamed(report, expected["must_not_blame"])), shown
    wanted = [expected, *expected.get("also", [])]
    for verdict in report["verdicts"]:
        same = [one for one in wanted if verdict["structure"] in words(one["structure"])]
        assert same or verdict["structure"] == "INSUFFICIENT_EVIDENCE", shown
        assert all(verdict["cause"] in (*OPEN, *words(one["cause"])) for one in same), shown
        assert all(verdict["culprit_ranks"] in ([], one["culprit_ranks"]) for one in same), shown
        assert not verdict["culprit_links"], shown
        before = [one for one in full["verdicts"] if one["structure"] == verdict["structure"]]
        assert all(SURE.index(verdict["cause_confidence"]) <= SURE.index(one["cause_confidence"]) for one in before)
        if verdict["structure"] != "HEALTHY":
            assert "no link counters" in " ".join(verdict["not_checked"]), shown


@pytest.mark.parametrize("sample", SAMPLES, ids=NAMES)
def test_a_sample_is_neutral_and_small(sample):
    files = [path for path in sample.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < LARGEST_BYTES
    for path in files:
        data = path.read_bytes()
        for name in re.findall(rb'[\w.-]*/(?:root|home|work|Users|opt|tmp)/[^\s"]*', data):
            assert name.startswith(b"/tmp/demo/"), path
        assert str(ROOT.parent).encode() not in data, path
    for path in sample.glob("*/rank-*.jsonl"):
        header = json.loads(path.read_text().split("\n")[1])
        assert (header["host"], header["host_full"]) == (path.parent.name, path.parent.name)
    for path in sample.glob("*/*.jsonl"):
        for line in map(json.loads, path.read_text().splitlines()):
            assert all(name.startswith(OF_JOB) for name in line.get("settings", ())), path
            assert line["kind"] != "start" or "versions" not in line, path
    hosts = {"node-a"} if sample.name in OF_ONE_HOST else {"h0", "h1", "h2", "h3"}
    assert {path.name for path in sample.iterdir() if path.is_dir()} == hosts
    assert {path.parent.name for path in sample.glob("*/links-*.arrow")} == hosts - {"node-a"}
    assert f"`{sample.name}`" in (ROOT / "README.md").read_text()


def test_a_new_sample_tells_nothing_of_the_machine_that_recorded_it(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    settings = {
        "GLOO_SOCKET_IFNAME": "eth0",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/tmp/demo/run/dump_",
        "NCCL_TOPO_FILE": "/data/cluster/topo.xml",
        "LD_LIBRARY_PATH": "/usr/local/cuda/lib64",
        "LD_PRELOAD": "libjemalloc.so",
        "CUDA_HOME": "/usr/local/cuda",
        "NVIDIA_VISIBLE_DEVICES": "GPU-0123",
    }
    environment = {"kind": "environment", "settings": settings, "left_out": 3, "versions": {"roundk": "1"}}
    start = {"kind": "start", "host": "node-a", "command": ["train.py"], "versions": {"kernel": "6.1.0-corp"}}
    (tmp_path / "node-a").mkdir()
    for name, line in (("rank-00000-1.jsonl", environment), ("launcher-2.jsonl", start)):
        state = json.dumps({"kind": "alive", "time_ns": 1})
        (tmp_path / "node-a" / name).write_text(f"{state}\n{json.dumps(line)}\n" + "\0" * 100)
    importlib.import_module("trim").trim(tmp_path)
    kept = [path.read_text() for path in sorted((tmp_path / "node-a").iterdir())]
    state, launcher = map(json.loads, kept[0].splitlines())
    assert (state["kind"], launcher["command"], "versions" in launcher) == ("alive", ["train.py"], False)
    assert json.loads(kept[1].splitlines()[1]) == {
        "kind": "environment",
        "settings": {name: settings[name] for name in ("GLOO_SOCKET_IFNAME", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")},
        "left_out": 0,
        "versions": {"roundk": "1"},
    }


def test_all_samples_together_are_small():
    assert sum(path.stat().st_size for path in ROOT.rglob("*") if path.is_file()) < ALL_BYTES


def test_the_readme_shows_what_the_sample_gives():
    command = "roundk analyze sample_traces/never_entered"
    full = [*harness.ROUNDK, *command.split()[1:]]
    env = {**os.environ, "COLUMNS": "80"}
    done = subprocess.run(full, cwd=ROOT.parent, env=env, capture_output=True, text=True, check=False)
    assert f"$ {command}\n{done.stdout}```" in (ROOT.parent / "README.md").read_text()
