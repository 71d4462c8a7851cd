"""`roundk show` on the handed cases: what it says is what a plain look at the files says."""

from __future__ import annotations

import pathlib
import pickle
import re
import shutil

import polars as pl
import pytest
from click.testing import CliRunner

from roundk.analyze.commands.show import command

CASES = pathlib.Path(__file__).resolve().parents[3] / "shared" / "cases"
if not CASES.is_dir():
    pytest.skip("the cases are not here", allow_module_level=True)


@pytest.fixture
def inputs(tmp_path):
    """A case without its answers."""

    def copy(name):
        return shutil.copytree(
            CASES / name, tmp_path / "case", ignore=shutil.ignore_patterns("expect.*", "fault_injection.log")
        )

    return copy


def show(*arguments):
    done = CliRunner().invoke(command, [str(argument) for argument in arguments], terminal_width=80)
    assert done.exit_code == 0, done.output
    assert max(map(len, done.output.splitlines())) <= 80
    return done.output


def line(output, label):
    """What stands behind a label, its continuation lines included."""
    found = re.search(rf"^ *{label} +(.*(?:\n {{17}}\S.*)*)", output, re.MULTILINE)
    return " ".join(found[1].split()) if found else None


@pytest.mark.parametrize("case", ["gpu_error_2nd", "lock_gil_1st"])
def test_real_dumps(inputs, case):
    folder = inputs(f"real-nccl/{case}")
    dumps = {int(path.name.rpartition("_")[2]): pickle.loads(path.read_bytes()) for path in folder.iterdir()}
    output = show(folder)
    assert line(output, "flight_recorder") == "16 inputs Flight Recorder 2.9, pickle, communication library 2.27.3"
    assert line(output, "Ranks") == "16 of 16 with data"
    empty = sorted(rank for rank, dump in dumps.items() if not dump.get("entries"))
    assert line(output, "without calls") == (", ".join(map(str, empty)) or None)
    groups = {(name, group["ranks"]) for dump in dumps.values() for name, group in dump["pg_config"].items()}
    assert line(output, "Groups") == str(len(groups))
    entries = sum(len(dump.get("entries", [])) for dump in dumps.values())
    assert line(output, "Calls").startswith(f"{entries}: {entries} open")
    counters = sum(len(dump["pg_status"]) for dump in dumps.values())
    assert line(output, "Progress") == f"{counters} rows"


def test_dumps_without_one_rank_and_a_log(inputs):
    folder = inputs("reports/05-exception-rank-has-no-dump")
    output = show(folder)
    assert line(output, "flight_recorder").startswith("3 inputs Flight Recorder 2.10, pickle")
    assert line(output, "job_log").startswith("1 input")
    assert line(output, "Ranks") == "3 of 4 with data"
    assert line(output, "missing") == "2"
    assert "3 collective_timeout" in line(output, "Facts")
    assert "1 exception" in line(output, "Facts")


@pytest.mark.parametrize(
    ("case", "facts"),
    [
        ("01-skip-sample-not-entered", {"collective_timeout": "Watchdog caught collective operation timeout"}),
        (
            "06-ib-port-error-then-status12",
            {"net_async_event": "async event", "net_completion_error": "completion from"},
        ),
        ("08-fallback-to-socket", {"nccl_no_device": "No device found", "nccl_network": "Using network"}),
        ("13-gloo-recv-timeout-no-rank", {"gloo_timeout": "Timed out waiting", "gloo_closed": "Connection closed"}),
    ],
)
def test_logs(inputs, case, facts):
    folder = inputs(f"reports/{case}")
    text = (folder / "input.log").read_text()
    output = show(folder)
    assert line(output, "job_log").startswith("1 input")
    said = dict(reversed(piece.split(" ")) for piece in line(output, "Facts").partition(": ")[2].split(", "))
    assert {kind: int(said[kind]) for kind in facts} == {kind: text.count(words) for kind, words in facts.items()}


def test_a_table(inputs, tmp_path):
    folder = inputs("reports/12-gc-pause-straggler")
    rows = pl.read_csv(folder / "events.csv")
    output = show(folder, "--export", tmp_path / "tables")
    assert line(output, "table") == "1 input table of calls"
    assert line(output, "Calls") == f"{rows.height}: {rows.height} completed"
    calls = pl.read_parquet(tmp_path / "tables" / "calls.parquet").sort("rank", "seq")
    assert calls["enter_ns"].to_list() == (rows.sort("rank", "seq")["enter_us"] * 1000).to_list()
    assert len(list((tmp_path / "tables").glob("*.parquet"))) == 11


def test_an_archive_of_dumps_is_the_same(inputs, tmp_path):
    folder = inputs("reports/04-rank0-extra-barrier")
    plain = show(folder / "fr")
    archive = shutil.make_archive(str(tmp_path / "dumps"), "gztar", folder / "fr")
    assert show(archive) == plain
    assert show(folder / "fr" / "nccl_trace_rank_") == plain
