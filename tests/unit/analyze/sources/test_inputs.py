"""What the user names becomes files to read: folders, globs, prefixes, archives, compressed files, standard input."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import random
import re
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
