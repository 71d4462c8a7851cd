"""Which files are of one run: layouts that people's launch scripts really make, each with the runs that were in it."""

from __future__ import annotations

import io
import json
import os
import pathlib
import sys
import tarfile
import time
import types

import fsspec
import polars as pl
import pytest
from dumps import dump, entry, pickled
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roundk.analyze import sources
from roundk.analyze.batch import places
from roundk.analyze.batch.discover import discover
from roundk.analyze.batch.kinds import Kinds
from roundk.analyze.batch.tree import listed
from roundk.tracer import reader
from roundk.tracer.errors import RunError

DUMP = pickled(dump([entry(1)], world=16))
LOG = b"node-a:71:90 [0] NCCL INFO cudaDriverVersion 12040\n[rank0]: step 12 loss 3.2\n"
JUNK = bytes(range(128, 256)) * 40


def lay(folder, *names):
    """Files as they are called: dumps, logs, archives; `*N` at the end of a name stands for N ranks from 0."""
    for one in names:
        name, _, count = one.partition("*")
        for rank in range(int(count or 1)):
            path = folder / (name + (str(rank) if count else ""))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content(path.name))
    return folder


def content(name):
    if name.endswith((".tar.gz", ".tgz")):
        return archive({"nccl_trace_rank_0": DUMP})
    if name.endswith(".jsonl"):
        return b'{"kind": "alive", "time_ns": 5}\n{"kind":"process","rank":0,"job":"/10.0.0.1/29500","attempt":0}\n'
    if name == "run.json":
        return b'{"roundk_schema": 1}'
    if name.endswith((".out", ".err", ".log", ".txt", ".md", ".py")) or ".o" in name:
        return LOG
    return DUMP


def archive(files):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return packed.getvalue()


def ranks(first, count, folder):
    return [f"{folder}/nccl_trace_rank_{rank}" for rank in range(first, first + count)]


def found(*roots, **options):
    """Each run's name with the files that are its own, relative to the root."""
    runs = discover([str(root) for root in roots], **options).runs
    return {run.name: sorted(os.path.relpath(file.path, run.root) for file in run.files) for run in runs}


def names(*roots, **options):
    return sorted(found(*roots, **options))


def jobs(*roots):
    return {run.name: (run.job, run.attempt) for run in discover([str(root) for root in roots]).runs}


# What is one run


def test_dumps_and_logs_of_one_folder_are_one_run(tmp_path):
    lay(tmp_path / "job", "nccl_trace_rank_*8", "train.log", "dmesg.txt")
    assert {name: len(files) for name, files in found(tmp_path / "job").items()} == {"job": 10}


@pytest.mark.parametrize(
    "folder", ["logs", "slurm", "checkpoints", "comm_traces", "torch_nccl", "hang_detector", ".cache"]
)
def test_a_folder_called_by_a_part_of_a_run_is_part_of_the_run_above(tmp_path, folder):
    lay(tmp_path / "a", "nccl_trace_rank_*4", f"{folder}/rank3.log")
    lay(tmp_path / "b", "train.log", f"{folder}/rank_*4")
    assert {name: len(files) for name, files in found(tmp_path).items()} == {"a": 5, "b": 5}


def test_an_experiment_with_its_parts_in_folders_is_one_run(tmp_path):
    lay(
        tmp_path,
        "exp-a/logs/slurm/71.node1.log",
        "exp-a/checkpoints/_dump_*8",
        "exp-a/tensorboard/events.out.tfevents.1",
    )
    lay(tmp_path, "exp-b/logs/slurm/72.node1.log", "exp-b/checkpoints/_dump_*8")
    assert {name: len(files) for name, files in found(tmp_path).items()} == {"exp-a": 10, "exp-b": 9}


@pytest.mark.parametrize(
    "hosts",
    [
        ("nodeA", "nodeB"),
        ("ip-10-0-0-1", "ip-10-0-0-2"),
        ("frost", "ember"),
        ("0", "1"),
        ("h1.lab.internal", "h2.lab.internal"),
    ],
)
def test_folders_with_different_ranks_are_the_hosts_of_one_run(tmp_path, hosts):
    lay(tmp_path / "job", *ranks(0, 8, hosts[0]), *ranks(8, 8, hosts[1]))
    assert {name: len(files) for name, files in found(tmp_path).items()} == {"job": 16}


@pytest.mark.parametrize("runs", [("exp1", "exp2"), ("frost", "ember"), ("0", "1"), ("node1", "node2")])
def test_folders_with_the_same_ranks_are_runs(tmp_path, runs):
    lay(tmp_path, *ranks(0, 8, runs[0]), *ranks(0, 8, runs[1]))
    assert {name: len(files) for name, files in found(tmp_path).items()} == dict.fromkeys(runs, 8)


def test_hosts_of_one_run_some_with_a_dump_of_an_earlier_one(tmp_path):
    lay(tmp_path / "job", *ranks(0, 8, "node1"), *ranks(8, 8, "node2"), "node2/nccl_trace_rank_3")
    assert names(tmp_path) == ["job"]


def test_hosts_with_logs_only_are_told_by_their_names(tmp_path):
    lay(tmp_path / "a", "node-1/train.log", "node-2/train.log")
    lay(tmp_path / "b", "lr3e-4/train.log", "lr1e-3/train.log")
    assert names(tmp_path) == ["a", "b/lr1e-3", "b/lr3e-4"]


def test_runs_whose_hosts_have_folders(tmp_path):
    for run in ("exp1", "exp2"):
        lay(tmp_path / run, *ranks(0, 4, "nodeA"), *ranks(4, 4, "nodeB"), "train.log")
    assert {name: len(files) for name, files in found(tmp_path).items()} == {"exp1": 9, "exp2": 9}


def test_a_copied_sys_is_evidence_of_its_run(tmp_path):
    lay(tmp_path / "a", "nccl_trace_rank_*2")
    lay(tmp_path / "b", "nccl_trace_rank_*2")
    for counter in ("symbol_error", "link_downed"):
        path = tmp_path / "a/node1/sys/class/infiniband/mlx5_0/ports/1/counters" / counter
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("3\n")
    assert {name: len(files) for name, files in found(tmp_path).items()} == {"a": 4, "b": 2}


def test_a_folder_called_by_a_part_that_holds_a_run_is_not_mixed_with_others(tmp_path):
    lay(tmp_path, *ranks(0, 4, "slurm/incident-3"), "vision/incident-1/train.log")
    assert names(tmp_path) == ["slurm/incident-3", "vision/incident-1"]
    lay(tmp_path, *ranks(4, 4, "speech/incident-1"), *ranks(4, 4, "speech/incident-2"))
    assert names(tmp_path) == ["slurm/incident-3", "speech/incident-1", "speech/incident-2", "vision/incident-1"]


def test_dumps_of_a_job_and_dumps_of_none_in_one_folder(tmp_path):
    lay(tmp_path / "d", "dump_124_rank_*4", "nccl_trace_rank_*4")
    assert {run: len(files) for run, files in found(tmp_path).items()} == {"d/124": 4, "d/nccl_trace": 4}


# Run directories and archives


def test_a_run_directory_is_one_run_with_all_that_is_below(tmp_path):
    for run in ("x", "y"):
        lay(tmp_path / run, "run.json", "node-a/rank-00000-71.jsonl", "node-a/job.log", "node-b/rank-00001-72.jsonl")
    assert {name: len(files) for name, files in found(tmp_path).items()} == {"x": 4, "y": 4}


def test_a_run_directory_beside_the_log_of_its_job_is_one_run_with_it(tmp_path):
    lay(tmp_path / "exp", "train.log", "trace/run.json", "trace/node-a/rank-00000-71.jsonl")
    assert found(tmp_path) == {"exp": ["exp/trace/node-a/rank-00000-71.jsonl", "exp/trace/run.json", "exp/train.log"]}


def test_a_damaged_run_directory_is_a_run(tmp_path):
    lay(tmp_path / "whole", "run.json", "node-a/rank-00000-71.jsonl")
    for name, data in {
        "empty/run.json": b"",
        "nulls/run.json": b"\0" * 512,
        "cut/run.json": b'{"roundk_schema": 1',
    }.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(data)
    lay(tmp_path / "lost", "node-a/rank-00000-71.jsonl")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/run.json").write_text('{"lr": 0.1}')
    assert names(tmp_path) == ["cut", "empty", "lost", "nulls", "whole"]


def test_each_of_several_archives_is_a_run(tmp_path):
    lay(tmp_path, "run-001.tar.gz", "run-002.tar.gz", "README.md")
    (tmp_path / "run-003.tar.gz").write_bytes(content("x.tar.gz")[:60])
    assert names(tmp_path) == ["run-001.tar.gz", "run-002.tar.gz", "run-003.tar.gz"]


def test_one_archive_beside_dumps_is_of_their_run(tmp_path):
    lay(tmp_path / "a", "nccl_trace_rank_*4", "logs.tar.gz")
    lay(tmp_path / "b", "nccl_trace_rank_*4")
    assert {name: len(files) for name, files in found(tmp_path).items()} == {"a": 5, "b": 4}


def test_archives_called_as_hosts_are_one_run(tmp_path):
    lay(tmp_path / "a", "node1.tgz", "node2.tgz")
    lay(tmp_path / "b", "node1.tgz", "node2.tgz")
    assert {name: len(files) for name, files in found(tmp_path).items()} == {"a": 2, "b": 2}


def test_an_archive_beside_what_was_unpacked_from_it_is_left_out(tmp_path):
    lay(tmp_path, "run-1.tar.gz", *ranks(0, 2, "run-1"), *ranks(0, 2, "run-2"))
    told = discover([str(tmp_path)])
    assert [run.name for run in told.runs] == ["run-1", "run-2"]
    assert "run-1.tar.gz" in told.problems[0]


def test_a_root_that_is_an_archive_or_a_log(tmp_path):
    lay(tmp_path, "run-001.tar.gz", "odd.name")
    assert names(tmp_path / "run-001.tar.gz", tmp_path / "odd.name") == ["odd.name", "run-001.tar.gz"]


# Many jobs in one folder


def test_logs_and_dumps_of_many_slurm_jobs_in_one_folder(tmp_path):
    lay(tmp_path, "slurm-123.out", "slurm-124.out", "nccl_flightrecorder_123_rank*4", "nccl_flightrecorder_124_rank*4")
    lay(tmp_path, "dump_125_rank_*4", "driver.log")
    told = discover([str(tmp_path)])
    assert {run.name: (run.job, len(run.files)) for run in told.runs} == {
        "123": ("123", 5),
        "124": ("124", 5),
        "125": ("125", 4),
    }
    assert len(told.problems) == 1
    assert "driver.log" in told.problems[0]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (("slurm-7.out", "slurm-8.out"), {"7", "8"}),
        (("slurm-123_7.out", "slurm-123_8.out"), {"123_7", "123_8"}),
        (("train-123.out", "train-123.err", "train-124.out", "train-124.err"), {"123", "124"}),
        (("llama-70b-4711.out", "llama-70b-4712.out"), {"4711", "4712"}),
        (("train.o51234", "train.e51234", "train.o51235"), {"51234", "51235"}),
        (("job_91.log", "job_92.log"), {"91", "92"}),
        (("88123.log", "88124.log"), {"88123", "88124"}),
        (("jobA-master-0.log", "jobA-worker-0.log", "jobB-master-0.log"), {"jobA", "jobB"}),
        (("train_20261101_120000.log", "train_20261102_120000.log"), {None}),
    ],
)
def test_job_ids_in_the_names_of_logs(tmp_path, files, expected):
    lay(tmp_path, *files)
    assert {job for job, _ in jobs(tmp_path).values()} == expected
    assert len(names(tmp_path)) == (len(expected) if expected != {None} else 2)


@pytest.mark.parametrize(
    "files",
    [
        ("rank-0.log", "rank-1.log"),
        ("stdout.0", "worker-0.log", "worker-1.log"),
        ("node-1001.log", "node-1002.log"),
        ("gpu1234.err", "gpu1235.err"),
        ("nid001234-pid4711.log", "nid001235-pid4712.log"),
        ("a.log", "b.log"),
        ("host-port-29500.log", "host-port-29501.log"),
    ],
)
def test_numbers_that_are_no_job_s(tmp_path, files):
    lay(tmp_path / "r", *files)
    assert jobs(tmp_path) == {"r": (None, None)}


def test_prefixes_of_dumps_tell_runs_apart_where_ranks_are_the_same(tmp_path):
    lay(tmp_path / "a", "small_rank_*4", "large_rank_*4")
    lay(
        tmp_path / "b",
        *(f"b/dump_node1_{rank}".removeprefix("b/") for rank in range(4)),
        *(f"dump_node2_{r}" for r in range(4, 8)),
    )
    lay(tmp_path / "c", "nccl_trace_rank_*4", "comm_lib_trace_rank_*4", "_dump_*4")
    assert {name: len(files) for name, files in found(tmp_path).items()} == {
        "a/large": 4,
        "a/small": 4,
        "b": 8,
        "c": 12,
    }


def test_dumps_of_the_hosts_processes_are_one_run(tmp_path):
    lay(tmp_path / "r", "nccl_dump_node1_4711_0", "nccl_dump_node1_4712_1", "nccl_dump_node2_4711_2")
    assert jobs(tmp_path) == {"r": (None, None)}


def test_a_job_s_folder_of_dumps_gets_the_job_s_log(tmp_path):
    lay(tmp_path, "slurm-88123.out", "slurm-88124.out", *ranks(0, 4, "nccl_fr/88123"), *ranks(0, 4, "nccl_fr/88124"))
    assert {run.job: len(run.files) for run in discover([str(tmp_path)]).runs} == {"88123": 5, "88124": 5}


# Attempts


def test_torchrun_s_attempts_are_runs_of_one_job(tmp_path):
    for attempt in (0, 1):
        lay(tmp_path, *(f"logs/77_x8d2k1qa/attempt_{attempt}/{rank}/stderr.log" for rank in range(4)))
    lay(tmp_path, "logs/none_k2j3h4g5/attempt_0/0/stderr.log")
    assert jobs(tmp_path / "logs") == {
        "77_x8d2k1qa/attempt_0": ("77", 0),
        "77_x8d2k1qa/attempt_1": ("77", 1),
        "none_k2j3h4g5/attempt_0": ("none_k2j3h4g5", 0),
    }


def test_agents_of_one_job_s_hosts_that_log_side_by_side_are_one_run(tmp_path):
    lay(tmp_path, "logs/77_x8d2k1qa/attempt_0/0/stderr.log", "logs/77_b3n4m5l6/attempt_0/0/stderr.log")
    lay(tmp_path, "logs/77_z9y8x7w6/attempt_0/0/stderr.log")
    os.utime(tmp_path / "logs/77_z9y8x7w6/attempt_0/0/stderr.log", (1e9, 1e9))  # the same id, years before
    assert sorted(len(files) for files in found(tmp_path).values()) == [1, 2]


def test_dumps_beside_torchrun_s_logs_are_the_last_attempt_s(tmp_path):
    lay(
        tmp_path / "exp",
        "nccl_trace_rank_*4",
        "logs/77_x8d2k1qa/attempt_0/0/stderr.log",
        "logs/77_x8d2k1qa/attempt_1/0/stderr.log",
    )
    runs = {run.attempt: len(run.files) for run in discover([str(tmp_path)]).runs}
    assert runs == {0: 1, 1: 5}


@pytest.mark.parametrize(
    ("folders", "expected"),
    [
        (("big/attempt_0", "big/attempt_1"), {("big", 0), ("big", 1)}),
        (("big/restart-1", "big/restart-2"), {("big", 1), ("big", 2)}),
        (("big", "big-retry1", "big-retry2"), {("big", None), ("big", 1), ("big", 2)}),
        (("job-77", "job-78"), {("77", None), ("78", None)}),
        (("slurm-77_attempt_2", "slurm-77_attempt_3"), {("77", 2), ("77", 3)}),
        (("pretrain-881234", "pretrain-881235"), {("881234", None), ("881235", None)}),
        (("pretrain-001", "pretrain-002"), {(None, None)}),
        (("2026-11-01-pretrain", "2026-11-02-pretrain"), {(None, None)}),
        (("checkpoint-10000", "checkpoint-20000"), {(None, None)}),
    ],
)
def test_jobs_and_attempts_in_the_names_of_folders(tmp_path, folders, expected):
    for folder in folders:
        lay(tmp_path / "all", *ranks(0, 4, folder))
    assert set(jobs(tmp_path).values()) == expected
    assert len(jobs(tmp_path)) == len(folders)


def test_a_run_directory_says_its_rendezvous_and_attempt_itself(tmp_path):
    for name, job in {
        "a": "u7-9/10.0.0.1/29500",
        "b": "u7-9/10.0.0.2/29500",
        "c": "/10.0.0.1/29500",
        "d": "none/x/1",
    }.items():
        lay(tmp_path / name, "run.json", "node-a/rank-00000-71.jsonl")
        line = {"kind": "process", "schema": 1, "rank": 0, "job": job, "attempt": 3}
        (tmp_path / name / "node-a/rank-00000-71.jsonl").write_text('{"kind":"alive"}\n' + json.dumps(line) + "\n")
    assert jobs(tmp_path) == {"a": ("u7-9", 3), "b": ("u7-9", 3), "c": (None, None), "d": (None, None)}


# What is no run


def test_stray_files_beside_runs_make_no_run_of_the_root(tmp_path):
    for number in range(30):
        lay(tmp_path, *ranks(0, 4, f"run{number}"))
    lay(tmp_path, "README.md", "notes.txt", "launch.sh", "driver.log", "logs/driver.log")
    told = discover([str(tmp_path)])
    assert {run.name for run in told.runs} == {f"run{number}" for number in range(30)}
    assert ["driver.log" in problem for problem in told.problems] == [True, True]


def test_files_that_nothing_reads_make_no_run(tmp_path):
    lay(
        tmp_path,
        *ranks(0, 2, "real"),
        "docs/README.md",
        "code/train.py",
        "eval/model.safetensors",
        "tb/events.out.tfevents.17",
    )
    (tmp_path / "eval/results.json").write_text('{"accuracy": 0.7}')
    (tmp_path / "eval/metrics.csv").write_text("step,loss,lr\n1,2.0,0.1\n")
    (tmp_path / "eval/notes_of_mine").write_text("Bought milk.\n")
    (tmp_path / "eval/table.parquet").write_bytes(b"PAR1" + JUNK)
    (tmp_path / "eval/blob").write_bytes(JUNK)
    assert names(tmp_path) == ["real"]


def test_content_counts_where_the_name_says_nothing(tmp_path):
    lay(tmp_path, "a/trace_of_zero", "b/output")
    (tmp_path / "b/output").write_bytes(LOG)
    (tmp_path / "c").mkdir()
    (tmp_path / "c/memo").write_text("remember the milk\n")
    assert names(tmp_path) == ["a", "b"]


def test_runs_of_damaged_and_empty_files_are_runs(tmp_path):
    lay(tmp_path, *ranks(0, 4, "whole"))
    for name, data in {"empty": b"", "junk": JUNK, "cut": DUMP[:30]}.items():
        lay(tmp_path, *ranks(0, 4, name))
        for path in (tmp_path / name).iterdir():
            path.write_bytes(data)
    (tmp_path / "log").mkdir()
    (tmp_path / "log/slurm-8.out").touch()
    assert names(tmp_path) == ["cut", "empty", "junk", "log", "whole"]


def test_links_and_folders_that_cannot_be_listed(tmp_path):
    root = lay(tmp_path / "root", *ranks(0, 2, "run1"), *ranks(0, 2, "run2"), ".git/logs/refs.log")
    lay(tmp_path / "elsewhere", "run3/nccl_trace_rank_*2")
    (root / "latest").symlink_to(root / "run2")
    (root / "run2/nccl_trace_rank_2").symlink_to(tmp_path / "elsewhere/run3/nccl_trace_rank_1")
    (root / "run1/up").symlink_to(root)
    (root / "run1/self").symlink_to("self")
    (root / "there").symlink_to(tmp_path / "elsewhere")
    (root / "gone").symlink_to(tmp_path / "nowhere")
    (root / "empty/in/empty").mkdir(parents=True)
    os.mkfifo(root / "pipe")
    assert {name: len(files) for name, files in found(root).items()} == {"run1": 2, "run2": 3, "there/run3": 2}


def test_a_folder_that_may_not_be_read_is_told(tmp_path, monkeypatch):
    root = lay(tmp_path / "root", *ranks(0, 2, "run1"), *ranks(0, 2, "run2"))
    scandir = os.scandir

    def refuse(path):
        if str(path).endswith("run2"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)  # root reads everything
    told = discover([str(root)])
    assert [run.name for run in told.runs] == ["run1"]
    assert any("run2" in problem and "Permission denied" in problem for problem in told.problems)


def test_linked_folders_of_a_run_are_named_for_the_analysis_to_follow(tmp_path, scratch):
    lay(tmp_path, *ranks(8, 8, "disk/b"), *ranks(0, 8, "runs/r/nodeA"))
    (tmp_path / "runs/r/nodeB").symlink_to(tmp_path / "disk/b")
    (run,) = discover([str(tmp_path / "runs")]).runs
    assert len(run.files) == 16
    trace, _ = sources.load(places.fetched(run, scratch).paths)
    assert trace.ranks.filter(pl.col("source").is_not_null())["rank"].to_list() == list(range(16))


@pytest.fixture
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("scratch")


def batched(folder):
    """What a batch leaves where it writes: the lock, results, the table, and what was cut short of either."""
    (folder / "done").mkdir(parents=True, exist_ok=True)
    (folder / "roundk-batch.lock").write_text("process 1 on here\n")
    for name in ("r1-0123456789ab.json", "r2-0123456789ab.json.part"):
        # What would be read as a log, or change what the run is.
        (folder / "done" / name).write_bytes(LOG)
    for name in ("runs.parquet", "runs.parquet.part"):
        (folder / name).write_bytes(b"PAR1")
    return folder


@pytest.mark.parametrize("out", ["", "teamA", "teamA/r1", "teamA/r1/nodeA", "teamA/out", "roundk-batch"])
def test_a_folder_that_a_batch_wrote_to_keeps_its_runs(tmp_path, out, scratch):
    lay(tmp_path, *ranks(0, 2, "teamA/r1/nodeA"), *ranks(2, 2, "teamA/r1/nodeB"), *ranks(0, 2, "teamB/r1"))
    before = discover([str(tmp_path)]).runs
    assert [run.name for run in before] == ["teamA/r1", "teamB/r1"]
    batched(tmp_path / out)
    after = discover([str(tmp_path)]).runs
    assert [(run.name, run.fingerprint) for run in after] == [(run.name, run.fingerprint) for run in before]
    trace, seen = sources.load(places.fetched(after[0], scratch).paths)
    assert trace.ranks.filter(pl.col("source").is_not_null())["rank"].to_list() == [0, 1, 2, 3]
    assert "0123456789ab" not in str(seen)


def test_a_folder_of_ones_own_that_is_called_as_that_of_a_batch_is_looked_into(tmp_path):
    lay(tmp_path, *ranks(0, 2, "done/r1"), *ranks(0, 2, "done/r2"))
    batched(tmp_path)
    assert names(tmp_path) == ["done/r1", "done/r2"]


def test_nothing_but_what_a_batch_wrote_is_nothing(tmp_path):
    batched(tmp_path)
    with pytest.raises(RunError, match="no file is below it"):
        discover([str(tmp_path)])


OVERLAPS = (
    ("a", "a/b"),
    ("a/b", "a"),
    ("a", "alink"),
    ("alink", "a"),
    ("a", "./a/../a"),
    ("a", "a/b/r1"),
    ("a", "a/b/r1/nccl_trace_rank_0"),
    ("a/b/r1/nccl_trace_rank_0", "a"),
    ("a", "a/x.tar.gz"),
    ("alink/x.tar.gz", "a"),
    ("a", "file://{here}/a"),
    ("a/b/../x.tar.gz", "a/x.tar.gz", "a"),
)


@pytest.mark.parametrize("roots", OVERLAPS, ids=" ".join)
def test_roots_that_overlap_give_every_run_once(tmp_path, monkeypatch, roots):
    monkeypatch.chdir(tmp_path)
    lay(tmp_path / "a", *ranks(0, 2, "b/r1"), *ranks(0, 2, "b/r2"), *ranks(0, 2, "c/r1"), "x.tar.gz")
    (tmp_path / "alink").symlink_to("a")
    told = discover([root.format(here=tmp_path) for root in roots])
    assert [run.name for run in told.runs] == ["b/r1", "b/r2", "c/r1", "x.tar.gz"]


@pytest.mark.parametrize("roots", [("a", "a/b"), ("a/b", "a")])
def test_a_root_that_holds_only_the_other_one_is_no_error(tmp_path, monkeypatch, roots):
    monkeypatch.chdir(tmp_path)
    lay(tmp_path / "a", *ranks(0, 2, "b/r1"), *ranks(0, 2, "b/r2"))
    assert [run.name for run in discover(roots).runs] == ["b/r1", "b/r2"]


def test_a_root_without_runs_is_an_error_still(tmp_path):
    lay(tmp_path / "a", *ranks(0, 2, "r1"), "empty/notes.md")
    (tmp_path / "a/none").mkdir()
    (tmp_path / "b").mkdir()
    with pytest.raises(RunError, match="b: no file is below it"):
        discover([str(tmp_path / "a"), str(tmp_path / "b")])


def test_a_file_that_the_folder_around_it_makes_nothing_of_is_a_run_where_it_is_named(tmp_path):
    lay(tmp_path, *ranks(0, 2, "r1"), *ranks(0, 2, "r2"), "job.txt")
    (tmp_path / "job.txt").write_text("nothing of ours\n")
    assert names(tmp_path, tmp_path / "job.txt") == ["job.txt", "r1", "r2"]


@pytest.mark.parametrize("roots", [("a", "a/x"), ("a/x/", "a"), ("a", "a"), ("a",)])
def test_roots_in_a_store_that_overlap_and_what_a_batch_wrote_there(roots):
    fsspec = pytest.importorskip("fsspec")
    store = fsspec.filesystem("memory")
    store.store.clear()
    names = ("x/r1/nccl_trace_rank_0", "x/r2/nccl_trace_rank_0", "y/nccl_trace_rank_0", "x/roundk-batch.lock")
    for name in (*names, "x/done/r1-0123456789ab.json", "x/runs.parquet"):
        store.pipe(f"/bucket/a/{name}", content(name))
    told = discover([f"memory://bucket/{root}" for root in roots])
    assert [(run.name, [file.path for file in run.files]) for run in told.runs] == [
        (run, [f"memory:///bucket/a/{run}/nccl_trace_rank_0"]) for run in ("x/r1", "x/r2", "y")
    ]


FOLDERS = (
    "exp1",
    "exp2",
    "nodeA",
    "nodeB",
    "logs",
    "slurm",
    "fr",
    "0",
    "1",
    "frost",
    "attempt_0",
    "attempt_1",
    "77_abcdefgh",
)
FILES = (
    *(f"nccl_trace_rank_{rank}" for rank in range(4)),
    "dump_123_rank_0",
    "dump_124_rank_0",
    "slurm-123.out",
    "train.log",
)
PATHS = st.lists(
    st.tuples(st.lists(st.sampled_from(FOLDERS), max_size=3).map("/".join), st.sampled_from(FILES))
    .map("/".join)
    .map(lambda path: path.lstrip("/")),
    min_size=1,
    max_size=12,
    unique=True,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(PATHS)
def test_no_dump_is_lost_and_no_file_is_of_two_runs(tmp_path, paths):
    root = tmp_path / str(len(list(tmp_path.iterdir())))
    for path in paths:
        lay(root, path)
    told = discover([str(root)])
    taken = [file.path for run in told.runs for file in run.files]
    assert len(taken) == len(set(taken))
    lost = {str(root / path) for path in paths} - set(taken)
    assert all(path.endswith((".out", ".log")) for path in lost)
    for path in lost:
        assert any(path.rsplit("/", 1)[-1] in problem or " more: " in problem for problem in told.problems)
    assert len({run.name for run in told.runs}) == len(told.runs)
    for run in told.runs:  # what the analysis reads below its paths is what the run says it has
        below = {file for file in taken if any(file == path or file.startswith(path + "/") for path in run.paths)}
        assert below == {file.path for file in run.files}


# Roots, names, patterns


def test_roots_that_hold_nothing_are_named(tmp_path):
    (tmp_path / "empty/er").mkdir(parents=True)
    lay(tmp_path, "docs/README.md")
    for name in ("nowhere", "empty", "docs"):
        with pytest.raises(RunError, match=name):
            discover([str(tmp_path / name)])


def test_names_are_unique_over_several_roots(tmp_path):
    for root in ("week1", "week2"):
        lay(tmp_path / root, *ranks(0, 2, "exp1"))
    lay(tmp_path / "week2", *ranks(0, 2, "exp2"))
    assert names(tmp_path / "week1", tmp_path / "week2") == ["exp2", "week1/exp1", "week2/exp1"]
    assert names(tmp_path / "week1", tmp_path / "week1") == ["exp1"]
    assert len(names(tmp_path / "week1", tmp_path)) == 3


def test_a_pattern_says_what_a_run_is(tmp_path):
    lay(tmp_path, *ranks(0, 2, "a/x"), *ranks(2, 2, "a/y"), *ranks(0, 2, "b/z/deep"), "b/one.log", "b/two.log")
    assert names(tmp_path) != names(tmp_path, run_glob="*/*")
    assert names(tmp_path, run_glob="*/*") == ["a/x", "a/y", "b/one.log", "b/two.log", "b/z"]
    assert names(tmp_path, run_glob="**/*.log") == ["b/one.log", "b/two.log"]
    assert names(tmp_path, run_glob="**/deep") == ["b/z/deep"]
    assert names(tmp_path, run_glob="[ac]/?") == ["a/x", "a/y"]
    with pytest.raises(RunError, match="nothing below it matches"):
        found(tmp_path, run_glob="c/*")


def test_a_run_is_another_once_a_file_of_it_changed(tmp_path):
    lay(tmp_path, *ranks(0, 2, "a"), *ranks(0, 2, "b"))
    before = {run.name: run.fingerprint for run in discover([str(tmp_path)]).runs}
    with (tmp_path / "a/nccl_trace_rank_0").open("ab") as file:
        file.write(b"more")
    os.utime(tmp_path / "b/nccl_trace_rank_0", ns=(1, 1))
    after = {run.name: run.fingerprint for run in discover([str(tmp_path)]).runs}
    assert [name for name in before if before[name] != after[name]] == ["a", "b"]
    assert discover([str(tmp_path)]) == discover([str(tmp_path)])


# Cost


def test_of_files_with_one_name_a_few_are_read_and_not_all(tmp_path, monkeypatch):
    lay(tmp_path / "r", "odd_*500")
    read = []
    monkeypatch.setattr("roundk.analyze.batch.tree.Tree.head", lambda self, file, size: read.append(file) or DUMP)
    (tree,) = listed([str(tmp_path / "r")])
    assert len(Kinds(tree).of(tree.top)) == 500
    assert len(read) == 1


def test_three_hundred_runs_are_found_in_seconds(tmp_path):
    for number in range(300):
        folder = tmp_path / f"run-{number:03d}"
        folder.mkdir()
        for rank in range(64):
            (folder / f"nccl_trace_rank_{rank}").touch()
    began = time.monotonic()
    assert len(discover([str(tmp_path)]).runs) == 300
    assert time.monotonic() - began < 20  # a second on an idle machine


# Gathering and fetching


def test_a_job_among_others_in_one_folder_is_analysed_alone(tmp_path, scratch):
    for job, rank in ((123, 0), (123, 1), (124, 0), (124, 1)):
        lay(tmp_path, f"dump_{job}_rank_{rank}")
    run, _ = discover([str(tmp_path)]).runs
    trace, _ = sources.load(places.fetched(run, scratch).paths)
    assert sorted(set(trace.ranks["source"].drop_nulls())) == ["dump_123_rank_0", "dump_123_rank_1"]


@pytest.fixture
def memory():
    """A store in memory, emptied."""
    store = fsspec.filesystem("memory")
    store.store.clear()
    store.pseudo_dirs[:] = [""]
    yield store
    store.store.clear()
    store.pseudo_dirs[:] = [""]


def test_objects_are_fetched_under_their_names(memory, scratch):
    for host, first in (("nodeA", 0), ("nodeB", 2)):
        for rank in (first, first + 1):
            memory.pipe_file(f"/bucket/job/{host}/nccl_trace_rank_{rank}", DUMP)
    memory.pipe_file("/bucket/job/model.safetensors", JUNK * 1000)
    memory.pipe_file("/bucket/other/nccl_trace_rank_0", DUMP)
    runs = discover(["memory://bucket"]).runs
    assert [run.name for run in runs] == ["job", "other"]
    got = places.fetched(runs[0], scratch)
    assert got.problems == ()
    trace, _ = sources.load(got.paths)
    assert trace.ranks["rank"].to_list()[:4] == [0, 1, 2, 3]
    assert min(trace.ranks["source"].drop_nulls()) == "nodeA/nccl_trace_rank_0"
    assert not list(scratch.rglob("*.safetensors"))


def test_a_run_directory_of_one_host_keeps_its_form(memory, scratch):
    memory.pipe_file("/bucket/runs/x/node-a/rank-00000-71.jsonl", content("rank-00000-71.jsonl"))
    (run,) = discover(["memory://bucket/runs"]).runs
    (path,) = places.fetched(run, scratch).paths
    assert reader.is_run(pathlib.Path(path))


def test_what_a_disk_cannot_hold_is_not_fetched(memory, scratch, monkeypatch):
    memory.pipe_file("/bucket/job/nccl_trace_rank_0", DUMP)
    (run,) = discover(["memory://bucket"]).runs
    monkeypatch.setattr("shutil.disk_usage", lambda path: types.SimpleNamespace(free=len(DUMP)))
    got = places.fetched(run, scratch)
    assert got.paths == ()
    assert "TMPDIR" in got.problems[0]


@pytest.mark.parametrize("package", ["fsspec", "s3fs"])
def test_a_url_without_its_package_says_what_to_install(monkeypatch, package):
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)  # another test may have used it
    monkeypatch.setitem(sys.modules, package, None)  # importing it fails
    with pytest.raises(RunError, match=r"pip install 'roundk\[remote\]'"):
        discover(["s3://bucket/runs"])


def test_a_url_of_no_known_kind_is_named():
    with pytest.raises(RunError, match="nosuch"):
        discover(["nosuch://x/y"])
