"""The Ray engine without Ray: what it makes of lost workers, and of workers that are not fit."""

from __future__ import annotations

import sys
import types
from dataclasses import asdict

import pytest

from roundk.analyze.batch import judge_run, ray_engine
from roundk.analyze.batch.process import Limits
from roundk.analyze.batch.ray_engine import OnRay
from roundk.analyze.batch.run import Run
from roundk.tracer.errors import RoundkError

RUN = Run("a", "/nowhere", ("/nowhere/a",), ())
ERRORS = (
    "RayTaskError",
    "WorkerCrashedError",
    "NodeDiedError",
    "ObjectLostError",
    "OutOfMemoryError",
    "OutOfDiskError",
    "TaskUnschedulableError",
)


class StandIn(types.ModuleType):
    """Of Ray what the engine calls; each task ends as the next of `ends` says."""

    def __init__(self, ends):
        super().__init__("ray")
        self.ends = list(ends)
        self.asked = 0
        self.exceptions = types.SimpleNamespace(**{name: type(name, (Exception,), {}) for name in ERRORS})

    def init(self, **_):
        pass

    def shutdown(self):
        pass

    def cluster_resources(self):
        return {"CPU": 2.0}

    def remote(self, **_):
        return lambda task: types.SimpleNamespace(remote=self.submit)

    def submit(self, *_):
        self.asked += 1
        return self.asked

    def wait(self, references, timeout):
        return references[:1], references[1:]

    def get(self, reference):
        end = self.ends[reference - 1]
        if isinstance(end, str):
            raise getattr(self.exceptions, end)
        return end


@pytest.fixture
def judged(monkeypatch):
    def judged(*ends):
        ray = StandIn(ends)
        monkeypatch.setitem(sys.modules, "ray", ray)
        found = list(OnRay(None, Limits())([RUN], now_ns=0, started=lambda run: None))
        return found, ray.asked

    return judged


FINE = {"rows": [{"run": "a"}], "is_final": True}


@pytest.mark.parametrize("lost", ["WorkerCrashedError", "NodeDiedError", "ObjectLostError", "OutOfMemoryError"])
def test_the_run_of_a_lost_worker_is_given_to_another(judged, lost):
    found, asked = judged(lost, lost, lost, FINE)
    assert [(run.name, result.rows) for run, result in found] == [("a", ({"run": "a"},))]
    assert asked == 4


def test_after_three_more_it_is_reported_and_not_final(judged):
    found, asked = judged(*["WorkerCrashedError"] * 9)
    ((run, result),) = found
    assert asked == 4
    assert run is RUN
    assert not result.is_final
    assert result.rows[0]["status"] == "error"
    assert result.rows[0]["problem"] == "its worker was lost in each of 4 tries: WorkerCrashedError"


def test_an_unfit_worker_ends_the_batch(judged):
    with pytest.raises(RoundkError, match="roundk 0 is on worker"):
        judged({"unfit": "roundk 0 is on worker x"})


def test_a_worker_with_another_roundk_names_both():
    told = ray_engine._task()(asdict(RUN), 0, asdict(Limits()), "/", "99.0")
    assert f"roundk {judge_run.version()} is on worker" in told["unfit"]
    assert "99.0 here" in told["unfit"]


def test_a_worker_without_roundk_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "roundk.analyze.batch", None)
    told = ray_engine._task()(asdict(RUN), 0, asdict(Limits()), "/", "99.0")
    assert "roundk cannot be imported on worker" in told["unfit"]
    assert "install roundk 99.0 there" in told["unfit"]


def test_the_task_judges_in_the_folder_of_the_user(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/log").write_text("nothing of ours\n")
    run = Run("log", "runs", ("runs/log",), ())
    told = ray_engine._task()(asdict(run), 0, asdict(Limits()), str(tmp_path), judge_run.version())
    assert told["is_final"]
    assert told["rows"][0]["problem"].startswith("log: 1 file is here, and none is anything that roundk reads")
    told = ray_engine._task()(asdict(run), 0, asdict(Limits()), "/nowhere", judge_run.version())
    assert not told["is_final"]
    assert "not on the machine that judged it" in told["rows"][0]["problem"]


def test_without_ray_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RoundkError, match=r"pip install 'roundk\[ray\]'"):
        list(OnRay(None, Limits())([RUN], now_ns=0, started=lambda run: None))


def test_ray_can_be_looked_for_before_any_work(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RoundkError, match=r"pip install 'roundk\[ray\]'"):
        ray_engine.needed()


def test_nothing_to_do_asks_no_cluster(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert list(OnRay(None, Limits())([], now_ns=0, started=lambda run: None)) == []
