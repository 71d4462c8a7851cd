"""The folder of a host: its name as a file name, another one for each host."""

from __future__ import annotations

import pathlib

import pytest

from roundk.tracer import rundir


@pytest.fixture
def named(monkeypatch):
    def name(full):
        monkeypatch.setenv(rundir.HOST_VARIABLE, full)
        return rundir.host_name()

    return name


@pytest.mark.parametrize(
    ("full", "folder"),
    [
        ("node-7.cluster", "node-7.cluster"),
        ("gpu_01", "gpu_01"),
        ("a b/c", "a_b_c"),
        (".hidden", "hidden"),
        ("..", "host"),
    ],
)  # fmt: skip
def test_ascii_names(named, full, folder):
    assert named(full) == folder


@pytest.mark.parametrize("full", ["日本", "中国", "knoten-ä", "ホスト1"])
def test_letters_of_any_script_stay(named, full):
    assert named(full) == full


def test_what_is_replaced_or_cut_off_still_tells_hosts_apart(named):
    full = ["कि", "की", "🙂", "🙃", "x\udcff", "x\udcfe", "n" * 300, f"{'n' * 300}x", "日" * 100, f"{'日' * 100}本"]
    names = [named(one) for one in full]
    assert len(set(names)) == len(names)
    assert all(named(one) == name for one, name in zip(full, names, strict=True))


@pytest.mark.parametrize("full", ["n" * 255, "日" * 255, "🙂" * 255, "日本\udcff" * 80])
def test_a_file_system_takes_every_name(named, full, tmp_path):
    named(full)
    folder = pathlib.Path(rundir.prepare(str(tmp_path)))
    assert folder.is_dir()
    (folder / f"nccl-{folder.name}-4194304.log").touch()


def test_where_file_names_are_not_utf8_they_stay_ascii(named, monkeypatch):
    monkeypatch.setattr(rundir.sys, "getfilesystemencoding", lambda: "iso8859-1")
    first, second = named("日本"), named("中国")
    assert (first + second).isascii()
    assert first != second
