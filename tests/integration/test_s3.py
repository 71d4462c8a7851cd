"""Runs in an object store: a real S3 server over HTTP, that loses objects, throttles, cuts connections and refuses."""

from __future__ import annotations

import os
import pathlib
import time
import urllib.request

import boto3
import objectstore
import pytest
import s3fs
from dumps import T0, dump, entry, pickled

from roundk.analyze import diagnose, sources
from roundk.analyze.batch import places, remote
from roundk.analyze.batch.discover import discover
from roundk.analyze.case import build
from roundk.tracer.errors import RunError

SAMPLE = pathlib.Path(__file__).parents[2] / "sample_traces" / "never_entered"
NOW_NS = T0 + 3600 * 10**9
RANKS = 40


@pytest.fixture(scope="module")
def store():
    """The proxy before the server, with the environment that users of S3 set."""
    with pytest.MonkeyPatch.context() as patch, objectstore.server() as port, objectstore.proxy(port) as proxy:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        patch.setenv("AWS_ENDPOINT_URL", proxy.url)
        patch.setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "not a secret")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_MAX_ATTEMPTS", "1")  # of botocore within each of s3fs's: a throttled one takes 2 s, not 30
        s3fs.S3FileSystem.clear_instance_cache()
        yield proxy
        s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def client(store):
    """A client that goes past the proxy, with an empty bucket `runs`."""
    store.reset()
    made = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{store.port}")
    made.create_bucket(Bucket="runs")
    yield made
    store.reset()
    for one in made.list_objects_v2(Bucket="runs").get("Contents", []):
        made.delete_object(Bucket="runs", Key=one["Key"])
    made.delete_bucket(Bucket="runs")
    made.close()


@pytest.fixture
def hung(tmp_path):
    """Dumps of a job of which rank 7 did not enter the last round."""
    folder = tmp_path / "hung"
    folder.mkdir()
    for rank in range(RANKS):
        last = [] if rank == 7 else [entry(3, state="scheduled", time_discovered_completed_ns=None)]
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickled(dump([entry(1), entry(2), *last], world=RANKS)))
    return folder


@pytest.fixture
def dumps_in_store(client, hung):
    objectstore.upload(client, "runs", hung, "week1/hung/")
    (run,) = discover(["s3://runs/week1"]).runs
    return run


def verdict(paths):
    trace, _ = sources.load([str(path) for path in paths])
    report = diagnose.report(build(trace, now_ns=NOW_NS, stall_ns=diagnose.STALL_NS))
    first = report.verdicts[0]
    return report.status, first.structure, first.cause, first.culprit_ranks, first.op, first.seq, first.summary


# The same verdict as from the files


def test_a_run_directory_is_judged_as_from_the_disk(client, tmp_path):
    objectstore.upload(client, "runs", SAMPLE, "week1/never_entered/")
    (run,) = discover(["s3://runs/week1"]).runs
    assert (run.name, len(run.files)) == ("never_entered", sum(path.is_file() for path in SAMPLE.rglob("*")))
    got = places.fetched(run, tmp_path)
    assert got.problems == ()
    assert verdict(got.paths) == verdict([SAMPLE])
    assert verdict(got.paths)[3] == (2,)


def test_dumps_are_judged_as_from_the_disk(dumps_in_store, hung, tmp_path):
    got = places.fetched(dumps_in_store, tmp_path)
    assert got.problems == ()
    assert verdict(got.paths) == verdict([hung])
    assert verdict(got.paths)[3] == (7,)


def test_a_tree_is_listed_once_and_a_few_objects_are_looked_into(client, store):
    for run in range(12):
        for rank in range(10):
            client.put_object(Bucket="runs", Key=f"week1/run-{run}/odd_{rank}", Body=pickled(dump([entry(1)])))
        client.put_object(Bucket="runs", Key=f"week1/run-{run}/weights.safetensors", Body=b"\1" * 5000)
        client.put_object(Bucket="runs", Key=f"week1/run-{run}/", Body=b"")  # as consoles make folders
    runs = discover(["s3://runs/week1/"]).runs
    assert {run.name: len(run.files) for run in runs} == {f"run-{number}": 10 for number in range(12)}
    assert store.count("GET", "list-type=2") == 1
    assert store.count("GET", "odd_") == 1


def test_an_object_that_changed_makes_it_another_run(client, dumps_in_store):
    client.put_object(Bucket="runs", Key="week1/hung/nccl_trace_rank_3", Body=b"\x80\x02}.")
    (again,) = discover(["s3://runs/week1"]).runs
    assert again.fingerprint != dumps_in_store.fingerprint
    assert discover(["s3://runs/week1"]).runs == [again]


# What goes wrong


def test_an_object_that_is_gone_is_told_and_the_rest_is_judged(client, dumps_in_store, tmp_path):
    client.delete_object(Bucket="runs", Key="week1/hung/nccl_trace_rank_30")
    got = places.fetched(dumps_in_store, tmp_path)
    (problem,) = got.problems
    assert problem.startswith("s3://runs/week1/hung/nccl_trace_rank_30: ")
    assert "is gone" in problem
    assert 7 in verdict(got.paths)[3]


def test_a_run_of_which_all_is_gone_gives_no_path(client, dumps_in_store, tmp_path):
    for rank in range(RANKS):
        client.delete_object(Bucket="runs", Key=f"week1/hung/nccl_trace_rank_{rank}")
    got = places.fetched(dumps_in_store, tmp_path)
    assert got.paths == ()
    assert len(got.problems) == RANKS


def test_throttling_and_cut_connections_that_end_cost_nothing_but_time(store, dumps_in_store, hung, tmp_path):
    def fault(method, path, number):
        if "rank_" not in path or number >= 3:
            return None
        return ("slow", "cut", "error")[number]

    store.fault = fault
    got = places.fetched(dumps_in_store, tmp_path)
    assert got.problems == ()
    assert verdict(got.paths) == verdict([hung])
    assert all(path.suffix != ".part" for path in tmp_path.rglob("*"))


def test_throttling_of_the_listing_that_ends(store, dumps_in_store):
    store.fault = lambda method, path, number: "slow" if "list-type" in path and number < 8 else None
    assert discover(["s3://runs/week1"]).runs == [dumps_in_store]


def test_one_object_that_is_always_throttled_is_told(store, dumps_in_store, tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "FIRST_WAIT_S", 0.1)
    store.fault = lambda method, path, number: "slow" if path.endswith("rank_12") else None
    got = places.fetched(dumps_in_store, tmp_path)
    (problem,) = got.problems
    assert "nccl_trace_rank_12: not to be had" in problem
    assert "reduce your request rate" in problem
    assert 7 in verdict(got.paths)[3]


def test_a_store_that_throttles_for_ever_holds_nothing_up(store, dumps_in_store, tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "PATIENCE_S", 3.0)
    store.fault = lambda method, path, number: "slow"
    began = time.monotonic()
    got = places.fetched(dumps_in_store, tmp_path)
    assert time.monotonic() - began < 40
    assert got.paths == ()
    assert "objects were not asked for: the store does not answer or throttles requests" in got.problems[-1]
    with pytest.raises(RunError, match="throttles requests"):
        discover(["s3://runs/week1"])


def test_an_object_that_may_not_be_read(store, dumps_in_store, tmp_path):
    store.fault = lambda method, path, number: "denied" if path.endswith("rank_12") else None
    got = places.fetched(dumps_in_store, tmp_path)
    (problem,) = got.problems
    assert "nccl_trace_rank_12: access is denied" in problem
    assert store.count("GET", "rank_12") == 1


def test_buckets_and_folders_that_are_not_there(client):
    with pytest.raises(RunError, match=r"s3://nowhere/x: .*no such bucket"):
        discover(["s3://nowhere/x"])
    with pytest.raises(RunError, match=r"s3://runs/nothing: no file"):
        discover(["s3://runs/nothing"])


def test_credentials_that_the_store_does_not_know(store, dumps_in_store, tmp_path):
    def require(count):
        url = f"http://127.0.0.1:{store.port}/moto-api/reset-auth"
        asked = urllib.request.Request(url, count, {"Content-Type": "text/plain"})
        with urllib.request.urlopen(asked) as reply:
            assert reply.status == 200

    require(b"0")  # after so many requests moto asks who is there
    try:
        with pytest.raises(RunError, match="access is denied"):
            discover(["s3://runs/week1"])
        got = places.fetched(dumps_in_store, tmp_path)
    finally:
        require(b"inf")
    assert got.paths == ()
    assert all("access is denied" in problem for problem in got.problems)


def test_no_credentials_at_all(store, dumps_in_store, monkeypatch, tmp_path):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    s3fs.S3FileSystem.clear_instance_cache()
    store.fault = lambda method, path, number: "denied"
    with pytest.raises(RunError, match="s3://runs/week1: it cannot be listed"):
        discover(["s3://runs/week1"])
    s3fs.S3FileSystem.clear_instance_cache()


def test_a_server_that_is_not_there(store, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(remote, "PATIENCE_S", 2.0)
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(RunError, match=r"does not answer.*127\.0\.0\.1:9"):
        discover(["s3://runs/week1"])
    s3fs.S3FileSystem.clear_instance_cache()
