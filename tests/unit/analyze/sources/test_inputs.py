"""What the user names becomes files to read: folders, globs, prefixes, archives, compressed files, standard input."""

from __future__ import annotations

import bz2
import ctypes
import gzip
import io
import lzma
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tarfile
import types
import zipfile

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from roundk.analyze import sources
from roundk.analyze.sources import inputs
from roundk.analyze.sources.inputs import Hints, Input
from roundk.tracer.errors import RunError

SAMPLES = pathlib.Path(__file__).parents[4] / "sample_traces"
DUMPS = {
    "nccl_trace_rank_0": b"zero",
    "nccl_trace_rank_10": b"ten",
    "sub/nccl_trace_rank_3": random.Random(3).randbytes(9_000),
}


@pytest.fixture
def scratch(tmp_path):
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "job"
    for name, content in DUMPS.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)
    return place


def contents(found):
    result = {}
    for item in found.inputs:
        with item.open() as stream:
            result[item.name] = stream.read()
    return result


def tar(path, mode):
    with tarfile.open(path, mode) as archive:
        for name, content in DUMPS.items():
            member = tarfile.TarInfo(f"./{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)


def compressed(name, content):
    if name == "zst":
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, "zstd") as stream:
            stream.write(content)
        return sink.getvalue().to_pybytes()
    return {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}[name](content)


def test_a_folder_stands_for_all_files_below_it(folder, scratch):
    found = inputs.find([str(folder)], scratch)
    assert contents(found) == DUMPS
    assert found.root == folder


def test_a_prefix_and_a_glob_stand_for_what_they_match(folder, scratch):
    for name in (f"{folder}/nccl_trace_rank_", f"{folder}/nccl_*", f"{folder}/*[0-9]"):
        found = inputs.find([name], scratch)
        assert sorted(contents(found)) == ["nccl_trace_rank_0", "nccl_trace_rank_10"], name


def test_a_glob_that_is_a_files_name_is_that_file(tmp_path, scratch):
    (tmp_path / "log[1]").write_bytes(b"x")
    assert contents(inputs.find([str(tmp_path / "log[1]")], scratch)) == {"log[1]": b"x"}
    assert contents(inputs.find([str(tmp_path / "log[")], scratch)) == {"log[1]": b"x"}


def test_several_names_keep_their_files_apart(folder, tmp_path, scratch):
    (tmp_path / "job.log").write_bytes(b"log")
    found = inputs.find([str(folder), str(tmp_path / "job.log"), str(folder)], scratch)
    assert contents(found) == {f"job/{name}": content for name, content in DUMPS.items()} | {"job.log": b"log"}
    assert found.root == tmp_path


def test_what_stands_for_nothing_is_an_error_that_names_it(tmp_path, scratch):
    with pytest.raises(RunError, match=re.escape(str(tmp_path / "absent"))):
        inputs.find([str(tmp_path / "absent")], scratch)


@pytest.mark.parametrize(("name", "mode"), [("a.tar", "w"), ("a.tgz", "w:gz"), ("a.tar.bz2", "w:bz2"), ("odd", "w:xz")])
def test_a_tar_archive_stands_for_its_files(tmp_path, scratch, name, mode):
    tar(tmp_path / name, mode)
    found = inputs.find([str(tmp_path / name)], scratch)
    assert contents(found) == {f"{name}!{member}": content for member, content in DUMPS.items()}
    assert not found.unreadable


def test_a_zip_archive_stands_for_its_files(tmp_path, scratch):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in DUMPS.items():
            archive.writestr(name, content)
    found = inputs.find([str(tmp_path / "a.zip")], scratch)
    assert contents(found) == {f"a.zip!{name}": content for name, content in DUMPS.items()}


def test_the_tensors_of_a_checkpoint_are_not_unpacked(tmp_path, scratch):
    torch.save({"weight": torch.zeros(1_000_000), "step": 7}, tmp_path / "model.pt")
    np.savez(tmp_path / "state.npz", np.zeros(1_000_000))
    found = inputs.find([str(tmp_path)], scratch)
    assert sum(len(content) for content in contents(found).values()) < 10_000, "two of 4 and 8 MB"
    assert any(name.startswith("model.pt!") for name in contents(found)), "a checkpoint is a zip"


@pytest.mark.parametrize("name", ["gz", "bz2", "xz", "zst"])
def test_a_compressed_file_is_read_plain(tmp_path, scratch, name):
    text = b"a line\n" * 100_000
    (tmp_path / f"rank_7.log.{name}").write_bytes(compressed(name, text))
    (item,) = inputs.find([str(tmp_path)], scratch).inputs
    with item.open() as stream:
        assert b"".join(iter(lambda: stream.read(1 << 16), b"")) == text
    assert item.head == text[: inputs.HEAD]
    assert Hints().rank(item) == 7


@pytest.mark.parametrize("cut", [20, 400, 7_000])
def test_of_a_cut_archive_the_whole_files_are_taken_and_it_is_told(tmp_path, scratch, cut):
    tar(tmp_path / "whole.tar", "w")
    (tmp_path / "cut.tgz").write_bytes(gzip.compress((tmp_path / "whole.tar").read_bytes(), mtime=0)[:-cut])
    found = inputs.find([str(tmp_path / "cut.tgz")], scratch)
    assert [one.path for one in found.unreadable] == ["cut.tgz"]
    for name, content in contents(found).items():
        assert DUMPS[name.removeprefix("cut.tgz!")].startswith(content)


def as_tar(path, members):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def as_zip(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)


def recording(top="", sample="skip"):
    """The files of a recorded run, as members of an archive."""
    run = SAMPLES / sample
    return [(top + path.relative_to(run).as_posix(), path.read_bytes()) for path in run.rglob("*") if path.is_file()]


@pytest.mark.parametrize("pack", [as_tar, as_zip])
@pytest.mark.parametrize(
    ("top", "below"), [("", ""), ("./", ""), ("skip/", "skip/"), ("/data/exp/skip/", "data/exp/skip/")]
)
def test_a_recording_in_an_archive_is_read_as_it_is_unpacked(tmp_path, pack, top, below):
    pack(tmp_path / "run.arc", recording(top))
    here, _ = sources.load([str(SAMPLES / "skip")])
    packed, _ = sources.load([str(tmp_path / "run.arc")])
    assert packed.calls.equals(here.calls)
    assert packed.calls.height > 0
    assert packed.ranks["source"].to_list() == [f"run.arc!{below}{one}" for one in here.ranks["source"]]
    assert packed.counters.drop("source").equals(here.counters.drop("source"))
    assert packed.sources == here.sources == {"run_directory": 1}
    assert not packed.unreadable


def test_a_recording_without_its_first_file_is_known_in_an_archive(tmp_path):
    as_tar(tmp_path / "run.tgz", [(name, content) for name, content in recording() if name != "run.json"])
    assert sources.load([str(tmp_path / "run.tgz")])[0].sources == {"run_directory": 1}


def test_logs_in_and_beside_a_recording_in_an_archive_are_read_too(tmp_path):
    logs = [("skip/h0/stdout-1.log", TIMEOUT.encode()), ("job.out", TIMEOUT.encode())]
    as_tar(tmp_path / "run.tgz", [*recording("skip/"), *logs])
    trace, parts = sources.load([str(tmp_path / "run.tgz")])
    assert trace.sources["run_directory"] == 1
    assert {name for part in parts for name in part.read} == {"run.tgz!skip/h0/stdout-1.log", "run.tgz!job.out"}


def test_another_tools_run_json_makes_no_recording(tmp_path, scratch):
    as_tar(tmp_path / "a.tgz", [("run.json", b'{"id": 7}'), ("h0/launcher-1.jsonl", b"{}\n"), ("job.log", b"x")])
    found = inputs.find([str(tmp_path / "a.tgz")], scratch)
    assert not found.runs
    assert len(found.inputs) == 3


def test_two_recordings_in_archives_are_refused_by_name(tmp_path):
    as_zip(tmp_path / "two.zip", [*recording("a/"), *recording("b/", "never_entered")])
    as_zip(tmp_path / "one.zip", recording())
    with pytest.raises(RunError, match=r"^2 runs .*two\.zip!a, .*two\.zip!b; unpack and name one"):
        sources.load([str(tmp_path / "two.zip")])
    with pytest.raises(RunError, match=r"^3 runs .*one\.zip[,;]"):
        sources.load([str(tmp_path / "two.zip"), str(tmp_path / "one.zip")])


def test_of_a_recording_and_its_archive_beside_the_unpacked_one_is_read(tmp_path):
    shutil.copytree(SAMPLES / "skip", tmp_path / "skip")
    as_tar(tmp_path / "skip.tgz", recording("skip/"))
    trace, _ = sources.load([str(tmp_path)])
    assert trace.ranks["source"][0].startswith("skip/h0/")


def test_the_names_of_an_archive_lead_nowhere_else(tmp_path, scratch):
    evil = b"RuntimeError: out of place"
    bad = ["../../out.log", "skip/../../../out.log", f"{tmp_path}/out.log", "skip/h0/" + "n" * 300 + ".log", "skip/h0"]
    as_tar(tmp_path / "run.tgz", [*recording("skip/"), *((name, evil) for name in bad)])
    before = {path for path in tmp_path.rglob("*") if not path.is_relative_to(scratch)}
    found = inputs.find([str(tmp_path / "run.tgz")], scratch)
    assert {path for path in tmp_path.rglob("*") if not path.is_relative_to(scratch)} == before
    assert all(item.path.is_relative_to(scratch) for item in found.inputs)
    (run,) = found.runs
    assert len(list(run.rglob("*.arrow"))) == len(list((SAMPLES / "skip").rglob("*.arrow"))) > 0
    assert {one.path for one in found.unreadable} == {f"run.tgz!{name}" for name in bad[3:]}


def test_links_of_an_archive_are_not_followed_into_a_recording(tmp_path, scratch):
    as_tar(tmp_path / "a.tgz", recording())
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name, content in recording():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        link = tarfile.TarInfo("h0/passwd.log")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    found = inputs.find([str(tmp_path / "a.tar")], scratch)
    assert len(found.runs) == 1
    assert not found.inputs


def test_the_last_of_members_with_one_name_counts(tmp_path, scratch):
    as_tar(tmp_path / "a.tgz", [*recording(), ("h0/stdout-1.log", b"old"), ("./h0/stdout-1.log", b"new")])
    found = inputs.find([str(tmp_path / "a.tgz")], scratch)
    assert [item.head for item in found.inputs] == [b"new"]


def test_of_a_cut_archive_of_a_recording_the_rest_is_read(tmp_path):
    as_tar(tmp_path / "run.tgz", sorted(recording("skip/")))
    whole = (tmp_path / "run.tgz").read_bytes()
    (tmp_path / "run.tgz").write_bytes(whole[: len(whole) // 2])
    trace, _ = sources.load([str(tmp_path / "run.tgz")])
    assert trace.calls.height > 0
    assert [one.path for one in trace.unreadable][-1] == "run.tgz"


def test_an_archive_inside_an_archive_is_refused_in_words(tmp_path, scratch):
    tar(tmp_path / "inner.tar", "w")
    with tarfile.open(tmp_path / "outer.tar", "w") as archive:
        archive.add(tmp_path / "inner.tar", "inner.tar")
    found = inputs.find([str(tmp_path / "outer.tar")], scratch)
    assert not found.inputs
    (refused,) = found.unreadable
    assert refused.path == "outer.tar!inner.tar"
    assert "unpack it" in refused.why


def test_an_archive_that_would_fill_the_disk_is_not_unpacked(tmp_path, scratch, monkeypatch):
    monkeypatch.setattr(inputs.shutil, "disk_usage", lambda _: types.SimpleNamespace(free=1 << 20))
    with tarfile.open(tmp_path / "bomb.tgz", "w:gz") as archive:
        member = tarfile.TarInfo("zeros")
        member.size = 64 << 20
        archive.addfile(member, io.BytesIO(bytes(64 << 20)))
    found = inputs.find([str(tmp_path / "bomb.tgz")], scratch)
    assert not found.inputs
    assert "free space" in found.unreadable[0].why
    assert sum(file.stat().st_size for file in scratch.rglob("*") if file.is_file()) <= 2 << 20


def test_what_is_no_file_is_told_and_not_opened(tmp_path, scratch):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "dangling").symlink_to(tmp_path / "absent")
    (tmp_path / "file").write_bytes(b"x")
    found = inputs.find([str(tmp_path)], scratch)
    assert "file" in contents(found)
    assert {one.path for one in found.unreadable} == {"pipe", "dangling"}


def test_what_is_no_file_in_a_recording_is_told_and_not_opened(tmp_path):
    run = tmp_path / "run"
    shutil.copytree(SAMPLES / "skip", run)
    (segment,) = (run / "h3").glob("rank-*.arrow")
    (stacks,) = (run / "h0").glob("*.stacks")
    (code,) = (run / "h1").glob("*.exit")
    (side,) = (run / "h1").glob("rank-*.jsonl")
    links = next((run / "h2").glob("links-*.arrow"))
    new = [
        run / "job.log",
        run / "h0" / "stdout-9.log",
        run / "h0" / "rank-00009-1.fr",
        run / "h2" / "launcher-5.jsonl",
    ]
    for path in (segment, stacks, code, side, *new):
        path.unlink(missing_ok=True)
        os.mkfifo(path)
    links.unlink()
    links.symlink_to("/dev/zero")
    (run / "endless.log").symlink_to("/dev/zero")
    trace, _ = sources.load([str(run)])
    assert trace.sources == {"run_directory": 1}
    paths = [segment, stacks, code, side, links, run / "endless.log", *new]
    told = {one.path for one in trace.unreadable if one.why == "it is not a regular file"}
    assert told == {path.relative_to(run).as_posix() for path in paths}


def test_a_first_file_that_is_no_file_is_not_waited_for(tmp_path):
    shutil.copytree(SAMPLES / "skip", tmp_path / "run")
    (tmp_path / "run" / "run.json").unlink()
    os.mkfifo(tmp_path / "run" / "run.json")
    assert sources.load([str(tmp_path)])[0].sources == {"run_directory": 1}


@pytest.mark.parametrize("where", ["run", "host", "above"])
def test_a_path_that_is_not_utf8_is_read(tmp_path, where):
    odd = os.fsdecode(b"odd\xff")
    run = tmp_path / odd / "run" if where == "above" else tmp_path / (odd if where == "run" else "run")
    shutil.copytree(SAMPLES / "skip", run)
    if where == "host":
        (run / "h0").rename(run / odd)
    (run / "h1" / os.fsdecode(b"l\xfe.log")).write_text(TIMEOUT)
    trace, parts = sources.load([str(tmp_path) if where == "above" else str(run)])
    assert trace.calls.height == sources.load([str(SAMPLES / "skip")])[0].calls.height
    assert trace.counters.height > 0
    assert not trace.unreadable
    places = {"run": "h0/", "host": "odd\\xff/", "above": "odd\\xff/run/h0/"}
    assert trace.ranks["source"][0].startswith(places[where])
    assert [name.endswith("h1/l\\xfe.log") for part in parts for name in part.read] == [True]


@pytest.mark.parametrize("name", ["zst", "gz"])
def test_a_name_that_is_not_utf8_keeps_its_rank(tmp_path, scratch, name):
    (tmp_path / os.fsdecode(b"dump_3\x80." + name.encode())).write_bytes(compressed(name, b"text"))
    (item,) = inputs.find([str(tmp_path / "dump*")], scratch).inputs
    assert (item.head, item.name, Hints().rank(item)) == (b"text", f"dump_3\\x80.{name}", 3)


def without_rights():
    """Takes from this process what lets root read everything."""
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, of linux/capability.h
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


def roundk(*args):
    command = [sys.executable, "-m", "roundk", *map(str, args)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, preexec_fn=without_rights)
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture
def closed(tmp_path):
    """A run directory of somebody else's; `chmod` it."""
    path = tmp_path / "closed"
    shutil.copytree(SAMPLES / "skip", path)
    yield path
    path.chmod(0o755)


@pytest.mark.parametrize("mode", [0o000, 0o111])
@pytest.mark.parametrize("command", [["analyze"], ["show"], ["links"], ["diff", SAMPLES / "skip"]])
def test_a_folder_that_may_not_be_listed_is_an_error_that_says_so(closed, mode, command):
    closed.chmod(mode)
    done = roundk(*command, closed)
    assert (done.returncode, done.stderr) == (2, f"roundk: {closed}: cannot be listed: Permission denied\n")


def test_what_is_in_a_folder_that_may_not_be_entered_is_told(closed):
    closed.chmod(0o444)
    done = roundk("show", closed)
    assert done.returncode == 2
    assert "h0: cannot be listed: Permission denied" in done.stderr
    done = roundk("show", closed / "h0")
    assert (done.returncode, done.stderr) == (2, f"roundk: {closed / 'h0'}: Permission denied\n")


@pytest.mark.parametrize("mode", [0o000, 0o111])
def test_a_folder_that_may_not_be_listed_is_told_beside_others(closed, mode):
    (closed.parent / "job.log").write_text(TIMEOUT)
    closed.chmod(mode)
    done = roundk("show", closed, closed.parent / "job.log")
    assert done.returncode == 0
    assert done.stdout.count("closed: cannot be listed: Permission denied") == 1
    assert "job_log" in done.stdout


def test_a_host_that_may_not_be_listed_is_told_once(closed):
    (closed / "h1").chmod(0o000)
    done = roundk("show", closed)
    (closed / "h1").chmod(0o755)
    assert done.returncode == 0
    assert done.stdout.count("Permission denied") == 1


def test_links_that_go_round_are_told(tmp_path, scratch):
    (tmp_path / "round").symlink_to("round")
    found = inputs.find([str(tmp_path / "round")], scratch)
    assert [one.path for one in found.unreadable] == ["round"]


def test_files_of_a_host_are_a_recordings_also_where_the_path_is_relative(scratch, monkeypatch):
    monkeypatch.chdir(SAMPLES / "skip")
    found = inputs.find(["h0"], scratch)
    assert [path.resolve() for path in found.runs] == [SAMPLES / "skip"]
    assert not found.inputs, "the recorder's own files are the reader's"


def test_a_url_is_an_error_that_says_who_reads_it(scratch):
    with pytest.raises(RunError, match="only `roundk batch` reads URLs"):
        inputs.find(["s3://bucket/run"], scratch)


def test_standard_input_is_an_input(scratch, monkeypatch):
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO(b"a log")))
    assert contents(inputs.find(["-"], scratch)) == {"standard input": b"a log"}


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("nccl_trace_rank_3", 3),
        ("_dump_12.json", 12),
        ("trace_node02_5", 5),
        ("nccl_trace_rank_container-node02_5", 5),
        ("a.tar.gz!dumps/rank_7.pickle", 7),
        ("comm_lib_trace", None),
    ],
)
def test_the_rank_is_the_last_number_of_the_name(name, rank, tmp_path):
    assert Hints().rank(Input(name, tmp_path)) == rank


def test_a_pattern_of_the_users_finds_the_rank(tmp_path):
    hints = Hints(re.compile(r"r(\d+)-of"))
    assert hints.rank(Input("x/r12-of-64.dump", tmp_path)) == 12
    assert hints.rank(Input("x/12.dump", tmp_path)) is None


@given(
    st.binary(max_size=600),
    st.sampled_from([b"", b"\x1f\x8b\x08", b"BZh9", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd", b"PK\x03\x04"]),
)
def test_any_bytes_are_an_input_or_unreadable(tmp_path_factory, content, magic):
    place = tmp_path_factory.mktemp("any")
    (place / "file").write_bytes(magic + content)
    (place / "scratch").mkdir()
    found = inputs.find([str(place / "file")], place / "scratch")
    for item in found.inputs:
        assert isinstance(item.head, bytes)
    assert found.inputs or found.unreadable


@pytest.mark.parametrize("name", ["gz", "bz2", "xz", "zst"])
@pytest.mark.parametrize("where", [0.02, 0.5, 0.98])
def test_a_damaged_file_does_not_keep_the_others_from_being_read(tmp_path, name, where):
    whole = bytearray(compressed(name, random.Random(1).randbytes(300_000)))
    at = int(len(whole) * where)
    whole[at : at + 40] = bytes(40)
    (tmp_path / f"dump_1.{name}").write_bytes(whole)
    (tmp_path / "job.log").write_text("[rank0]: RuntimeError: NCCL WARN nothing\n" + TIMEOUT)
    trace, parts = sources.load([str(tmp_path)])
    assert trace.facts.height >= 1
    assert any(part.kind == "job_log" for part in parts)


TIMEOUT = (
    "[rank0]:[E626 10:42:17.101223001 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600031 milliseconds "
    "before timing out.\n"
)


@pytest.mark.parametrize("kind", ["w:gz", "w:xz"])
def test_a_damaged_archive_is_told(tmp_path, scratch, kind):
    tar(tmp_path / "a.tar", kind)
    whole = bytearray((tmp_path / "a.tar").read_bytes())
    whole[len(whole) // 2 : len(whole) // 2 + 30] = bytes(30)
    (tmp_path / "a.tar").write_bytes(whole)
    found = inputs.find([str(tmp_path / "a.tar")], scratch)
    assert [one.path for one in found.unreadable] == ["a.tar"]


def test_a_pattern_that_finds_no_number_finds_no_rank(tmp_path):
    for pattern in ("(.*)", r"(\D+)", r"()"):
        assert Hints(re.compile(pattern)).rank(Input("x/r12.dump", tmp_path)) is None
