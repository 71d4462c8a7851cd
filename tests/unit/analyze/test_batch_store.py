"""The folder of a batch: what is kept counts only for the same files and the same roundk."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from dataclasses import replace

import polars as pl
import pyarrow.parquet as pq
import pytest

from roundk.analyze.batch import judge_run, store
from roundk.analyze.batch.judge_run import Result, failed
from roundk.analyze.batch.run import File, Run
from roundk.analyze.batch.table import RUNS
from roundk.tracer.errors import RoundkError

RUN = Run("job-1/0", "/runs", ("/runs/job-1/0",), (File("/runs/job-1/0/dump", 10, "1"),), "1", 0)


@pytest.fixture
def opened(tmp_path):
    with store.opened(tmp_path / "out") as one:
        yield one


def keep(opened, run=RUN, problem="it is empty"):
    result = Result((failed(run, problem),), is_final=True)
    opened.keep(run, result)
    return result


def file(opened):
    (only,) = (opened.folder / "done").iterdir()
    return only


def test_a_finished_run_is_kept(opened):
    result = keep(opened)
    assert opened.kept(RUN) == list(result.rows)


@pytest.mark.parametrize(
    "other",
    [
        replace(RUN, files=(replace(RUN.files[0], version="2"),)),
        replace(RUN, files=(replace(RUN.files[0], size=11),)),
        replace(RUN, files=(*RUN.files, File("/runs/job-1/0/log", 1, "1"))),
        replace(RUN, attempt=1),
        replace(RUN, name="job-2/0"),
    ],
)
def test_another_run_or_changed_files_are_judged_anew(opened, other):
    keep(opened)
    assert opened.kept(other) is None


def test_another_roundk_judges_anew(opened, monkeypatch):
    keep(opened)
    monkeypatch.setattr(store, "version", lambda: "99.0")
    assert opened.kept(RUN) is None


def test_an_accident_is_not_kept(opened):
    opened.keep(RUN, Result((failed(RUN, "ended at its time limit"),), is_final=False))
    assert opened.kept(RUN) is None


@pytest.mark.parametrize("content", ["", "{", "null", "[]", '{"of": 1}', '{"rows": []}'])
def test_a_damaged_file_is_judged_anew(opened, content):
    keep(opened)
    file(opened).write_text(content)
    assert opened.kept(RUN) is None


def test_a_cut_file_is_judged_anew_wherever_it_is_cut(opened):
    keep(opened)
    whole = file(opened).read_bytes()
    for size in range(0, len(whole), 7):
        file(opened).write_bytes(whole[:size])
        assert opened.kept(RUN) is None
    file(opened).write_bytes(whole)
    assert opened.kept(RUN) is not None


def test_rows_of_other_columns_are_judged_anew(opened):
    keep(opened)
    told = json.loads(file(opened).read_text())
    del told["rows"][0]["summary"]
    file(opened).write_text(json.dumps(told))
    assert opened.kept(RUN) is None


def test_names_that_differ_only_in_what_no_file_may_be_called_are_apart(opened):
    other = replace(RUN, name="job-1_0")
    long = replace(RUN, name="x/" * 2000)
    for number, run in enumerate([RUN, other, long]):
        keep(opened, run, str(number))
    assert [opened.kept(run)[0]["problem"] for run in (RUN, other, long)] == ["0", "1", "2"]


def test_the_table_is_sorted_and_of_the_schema(opened):
    order = [("b", 0), ("a", 1), ("a", 0)]
    rows = [{**failed(replace(RUN, name=name), "x"), "verdict": number} for name, number in order]
    frame = opened.finish(rows)
    assert frame.select("run", "verdict").rows() == [("a", 0), ("a", 1), ("b", 0)]
    read = pq.read_schema(opened.table)
    assert read.equals(RUNS)
    assert read.metadata[b"roundk_batch"] == b"1"
    assert [field.metadata[b"doc"] for field in read] == [field.metadata[b"doc"] for field in RUNS]
    assert pl.read_parquet(opened.table).equals(frame)
    first = opened.table.read_bytes()
    opened.finish(reversed(rows))
    assert opened.table.read_bytes() == first


def test_a_name_that_is_no_utf8_can_be_kept_and_written(opened):
    run = replace(RUN, name="job-\udcff")
    result = keep(opened, run)
    assert opened.kept(run) == list(result.rows)
    assert opened.finish(result.rows)["run"].to_list() == ["job-\\xff"]


def test_two_batches_do_not_share_a_folder(opened):
    code = "import pathlib, sys; from roundk.analyze.batch import store; f = store.opened(pathlib.Path(sys.argv[1]))"
    command = [sys.executable, "-c", f"{code}; f.__enter__()", str(opened.folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "another batch works here (process " in done.stderr
    assert "--out" in done.stderr


def test_a_folder_can_be_used_again(tmp_path):
    for _ in range(2):
        with store.opened(tmp_path):
            pass


def test_a_folder_that_cannot_be_made_is_an_error_in_words(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RoundkError, match="the folder of the batch cannot be made"), store.opened(tmp_path / "file"):
        pass


def test_a_full_disk_is_an_error_in_words(opened, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pathlib.Path, "write_bytes", full)
    with pytest.raises(RoundkError, match="it cannot be written: No space left on device"):
        keep(opened)


def test_a_full_disk_leaves_the_old_file_and_nothing_beside_it(tmp_path, monkeypatch):
    page = tmp_path / "report.html"
    store.written(page, b"old")
    write = pathlib.Path.write_bytes

    def full(path, content):
        write(path, content[:2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pathlib.Path, "write_bytes", full)
    with pytest.raises(RoundkError, match=r"report\.html: it cannot be written: No space left on device"):
        store.written(page, b"new page")
    assert page.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [page]


def test_a_link_stays_one_and_its_target_is_written(tmp_path):
    (tmp_path / "to").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "to/page")
    store.written(tmp_path / "link", b"page")
    assert (tmp_path / "to/page").read_bytes() == b"page"
    assert (tmp_path / "link").is_symlink()


def test_a_folder_in_place_of_a_result_is_told_and_stops_nothing(opened):
    keep(opened)
    path = file(opened)
    path.unlink()
    path.mkdir()
    assert opened.kept(RUN) is None
    keep(opened)
    assert opened.kept(RUN) is None
    assert opened.problems == [f"{path}: a folder stands where the result is kept; it will be judged again"]


def test_a_folder_in_place_of_the_table_is_told_at_the_beginning(tmp_path):
    (tmp_path / "runs.parquet").mkdir()
    with pytest.raises(RoundkError, match="a folder stands where the table is written"), store.opened(tmp_path):
        pass


def test_the_version_is_that_of_the_package():
    import roundk

    assert judge_run.version() == roundk.__version__
