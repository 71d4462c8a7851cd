"""Logs are bounded, and the end of a stream is as safe as its beginning."""

from __future__ import annotations

import errno
import os
import pathlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundk.hooks.logfile import Log
from roundk.hooks.unrecorded import _ignores_environment

HEAD, PART = 100, 40


def parts(folder):
    return sorted(path for path in folder.iterdir() if path.name != "out.log")


def written(folder, data, size):
    log = Log(str(folder), "out", head=HEAD, part=PART)
    for at in range(0, len(data), size):
        log.write(data[at : at + size])
    log.close()
    return (folder / "out.log").read_bytes()


@given(st.integers(0, 400), st.integers(1, 90))
def test_beginning_and_end_are_kept_and_the_gap_is_told(tmp_path_factory, length, size):
    folder = tmp_path_factory.mktemp("log")
    data = random.Random(length).randbytes(length)
    head = written(folder, data, size)
    kept = {int(path.name.split(".")[1]): path.read_bytes() for path in parts(folder)}
    assert head[:HEAD] == data[:HEAD]
    assert len(kept) <= 2
    assert all(part and data[at : at + len(part)] == part for at, part in kept.items())
    assert max((at + len(part) for at, part in kept.items()), default=min(length, HEAD)) == length
    first = min(kept, default=length)
    if first <= HEAD:
        assert head == data[:HEAD]
    else:
        assert f"bytes {HEAD} to {first:015d} of this stream were not kept".encode() in head[HEAD:]


def test_after_an_error_the_log_stops_and_says_so_once(tmp_path, monkeypatch, capsys):
    log = Log(str(tmp_path), "out")
    log.write(b"before\n")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        log.write(b"lost\n")
    log.write(b"lost too\n")
    assert (tmp_path / "out.log").read_bytes() == b"before\n"
    assert capsys.readouterr().err.count("No space left on device") == 1


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("python train.py -I", None),
        ("python -I train.py", "-I"),
        ("python -uE -m train", "-uE"),
        ("python -mI", None),
        ("python -X importtime -E -c pass", "-E"),
        ("python -WI train.py", None),
        ("python -W ignore -u train.py -E", None),
        ("python -c -I", None),
        ("python", None),
    ],
)
def test_options_that_ignore_the_environment(line, option):
    assert _ignores_environment(line.split()) == option


def test_the_kept_logs_stay_below_64_mib():
    from roundk.hooks import logfile

    assert logfile.HEAD_BYTES + 2 * logfile.PART_BYTES <= 64 * 2**20


def test_no_log_is_written_where_the_folder_is_gone(tmp_path):
    with pytest.raises(FileNotFoundError):
        Log(str(pathlib.Path(tmp_path, "gone")), "out")
