"""`roundk batch` as a user runs it: killed, interrupted and started again, watched on a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time

import polars as pl
import pytest
from held import Held, children, sample, until

SAMPLES = ("killed_rank", "never_entered", "link_flap")
LIMIT_S = 120
"""A run takes two seconds on an idle machine."""


class Batch:
    """A batch over copies of recorded runs."""

    def __init__(self, folder):
        self.folder = folder
        self.runs = folder / "runs"
        self.out = folder / "out"
        self.started = []
        for number, name in enumerate(SAMPLES):
            sample(self.runs, f"{number}-{name}", name)

    def start(self, *more, out=None, **options):
        command = [sys.executable, "-m", "roundk", "batch", "runs", "--out", str(out or self.out), *more]
        env = {**os.environ, "TMPDIR": str(self.folder)}
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        self.started.append(subprocess.Popen(command, cwd=self.folder, env=env, text=True, **options))
        return self.started[-1]

    def run(self, *more, out=None):
        """What it said on standard output and standard error."""
        started = self.start(*more, out=out)
        stdout, stderr = started.communicate(timeout=LIMIT_S)
        assert started.returncode == 0, stderr
        return stdout, stderr

    def done(self, out=None):
        """The finished runs, each with when it was written."""
        return {path.name: path.stat().st_mtime_ns for path in ((out or self.out) / "done").glob("*.json")}

    def table(self, out=None):
        return pl.read_parquet((out or self.out) / "runs.parquet")

    def undisturbed(self):
        """The table of a batch over the same runs that nothing happened to."""
        self.run(out=self.folder / "other")
        return self.table(self.folder / "other")

    def is_quiet(self):
        return not children(str(self.folder))


@pytest.fixture
def batch(tmp_path):
    made = Batch(tmp_path)
    yield made
    for one in made.started:
        one.kill()
        one.communicate()
    until(made.is_quiet, "the end of all analyses")


def test_killed_half_way_it_goes_on_from_there(batch):
    held = Held(batch.runs, "1b-held")
    first = batch.start("--jobs", "1")
    until(held.reached, "the third run")
    first.kill()
    first.wait()
    until(held.left, "the end of the analysis that was under way")
    before = batch.done()
    assert [name[:1] for name in sorted(before)] == ["0", "1"]
    assert not (batch.out / "runs.parquet").exists()
    assert list(batch.folder.glob("roundk-batch-*")), "what the killed one left is cleaned up by the next"
    held.release()
    _, said = batch.run()
    assert "4 of 4 runs: 2 judged, 2 kept from before" in said
    assert before.items() <= batch.done().items()
    assert not list(batch.folder.glob("roundk-batch-*"))
    assert batch.table().equals(batch.undisturbed())
    assert (batch.out / "runs.parquet").read_bytes() == (batch.folder / "other/runs.parquet").read_bytes()


@pytest.mark.parametrize(
    ("number", "code", "why"),
    [
        (signal.SIGINT, 130, "interrupted"),
        (signal.SIGTERM, 143, "ended by SIGTERM"),
        (signal.SIGHUP, 129, "ended by SIGHUP"),
    ],
)
def test_interrupted_it_says_how_to_go_on(batch, number, code, why):
    held = Held(batch.runs, "1b-held")
    first = batch.start("--jobs", "1")
    until(held.reached, "the third run")
    first.send_signal(number)
    _, said = first.communicate(timeout=LIMIT_S)
    assert first.returncode == code
    assert f"roundk: {why}; 2 of 4 runs: 2 judged. The same command goes on from here." in said
    assert "Traceback" not in said
    assert held.left()
    assert batch.is_quiet()
    assert not list(batch.folder.glob("roundk-batch-*"))
    held.release()
    assert "2 judged, 2 kept from before" in batch.run()[1]


def test_interrupted_before_anything_was_judged_it_says_so(batch):
    held = Held(batch.runs, "0-held")
    (batch.runs / "0-killed_rank").rename(batch.folder / "other")
    first = batch.start("--jobs", "1")
    until(held.reached, "the first run")
    first.send_signal(signal.SIGINT)
    _, said = first.communicate(timeout=LIMIT_S)
    assert first.returncode == 130
    assert "interrupted; none of 3 runs is judged yet. The same command goes on from here." in said
    held.release()


def test_interrupted_as_it_looks_for_the_runs_it_ends_as_later(batch):
    os.mkfifo(batch.folder / "topology")  # reading it waits
    first = batch.start("--topology", "topology")
    pipe = os.open(batch.folder / "topology", os.O_WRONLY)  # returns once it is opened
    first.send_signal(signal.SIGINT)
    time.sleep(0.5)  # polars has reads begin again after a signal: it is noticed once there is something
    os.close(pipe)
    _, said = first.communicate(timeout=LIMIT_S)
    assert first.returncode == 130
    assert said == "roundk: interrupted; nothing is judged yet. The same command goes on from here.\n"


def test_a_hang_up_that_is_ignored_stays_so(batch):
    held = Held(batch.runs, "1b-held")
    first = batch.start("--jobs", "1", preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    until(held.reached, "the third run")
    first.send_signal(signal.SIGHUP)
    held.release()
    _, said = first.communicate(timeout=LIMIT_S)
    assert first.returncode == 0
    assert "4 of 4 runs: 4 judged" in said


def test_only_what_changed_is_judged_again(batch):
    batch.run()
    before = batch.done()
    assert len(before) == len(SAMPLES)
    assert "0 judged, 3 kept from before" in batch.run()[1]
    assert batch.done() == before
    changed = next(iter((batch.runs / "1-never_entered").glob("*/launcher-*.jsonl")))
    changed.write_text(changed.read_text() + "\n")
    assert "1 judged, 2 kept from before" in batch.run()[1]
    assert [name[:1] for name, when in batch.done().items() if before[name] != when] == ["1"]
    for name in ("0-killed_rank", "2-link_flap"):
        (batch.runs / name).rename(batch.folder / name)
    assert "1 of 1 run: 0 judged, 1 kept from before" in batch.run()[1]
    assert batch.table()["run"].to_list() == ["1-never_entered"]


def test_a_run_that_breaks_does_not_stop_the_others(batch):
    held = Held(batch.runs, "1b-held")
    slow = Held(batch.runs, "1c-slow")
    (batch.runs / "1d-damaged").mkdir()
    (batch.runs / "1d-damaged/nccl_trace_rank_0").write_bytes(b"\x80\x02}q" + bytes(100))
    started = batch.start("--jobs", "2", "--time-limit-s", "20")
    until(held.reached, "the held run")
    (analysis,) = children('"1b-held"')
    os.kill(analysis, signal.SIGKILL)
    until(held.left, "its end")
    _, said = started.communicate(timeout=LIMIT_S)
    assert started.returncode == 0
    assert "6 of 6 runs: 3 judged, 3 not judged;" in said
    problems = dict(batch.table().filter(pl.col("status") == "error").select("run", "problem").rows())
    assert "killed by SIGKILL, and not by roundk" in problems["1b-held"]
    assert "time limit of 20 s" in problems["1c-slow"]
    assert "nothing here can be read" in problems["1d-damaged"]
    assert batch.table().filter(pl.col("status") != "error")["run"].unique().len() == len(SAMPLES)
    # Accidents are tried again at the next start; damage is not.
    held.release()
    slow.release()
    assert "6 of 6 runs: 2 judged, 3 kept from before, 1 not judged;" in batch.run()[1]
    assert batch.table().equals(batch.undisturbed())


def test_two_at_once_in_one_folder_are_refused(batch):
    held = Held(batch.runs, "1b-held")
    batch.start()
    until(held.reached, "the held run")
    second = batch.start()
    _, said = second.communicate(timeout=LIMIT_S)
    assert second.returncode == 2
    assert f"roundk: {batch.out}: another batch works here (process " in said


def test_standard_output_has_the_report_only(batch):
    stdout, said = batch.run("--format", "json", "--html", "report.html")
    json.loads(stdout)
    assert "<html" in (batch.folder / "report.html").read_text()
    lines = said.splitlines()
    assert lines[0] == "roundk: 0/3 runs, 0 problems"
    assert lines[-2:] == [
        f"roundk: 3 of 3 runs: 3 judged; the table is in {batch.out}/runs.parquet",
        "roundk: the page is in report.html",
    ]


def test_a_folder_below_the_root_is_no_run(batch):
    batch.out = batch.runs / "roundk-batch"
    batch.run()
    batch.run()
    assert sorted(set(batch.table()["run"])) == ["0-killed_rank", "1-never_entered", "2-link_flap"]


def test_a_folder_within_the_only_run_does_not_change_it(batch):
    batch.runs = batch.runs / "0-killed_rank"
    command = [sys.executable, "-m", "roundk", "batch", "."]
    said = [
        subprocess.run(command, cwd=batch.runs, capture_output=True, text=True, check=True, timeout=LIMIT_S).stderr
        for _ in range(2)
    ]
    assert "1 of 1 run: 1 judged;" in said[0]
    assert "1 of 1 run: 0 judged, 1 kept from before;" in said[1]


def test_progress_on_a_terminal_stays_on_its_line(batch):
    # A name longer than the line, which must be cut rather than wrap.
    sample(batch.runs, "3-" + "long" * 25)
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    started = batch.start("--jobs", "1", stderr=theirs, stdout=subprocess.DEVNULL)
    os.close(theirs)
    said = b""

    def read():
        nonlocal said
        try:
            said += os.read(ours, 1 << 16)
        except BlockingIOError:
            return False
        except OSError:  # Linux: the other side is closed
            return True
        return False

    until(read, "the end of the batch", LIMIT_S)
    started.communicate(timeout=LIMIT_S)
    *bars, last = re.split(r"\r(?!\n)", said.decode().removesuffix("\r\n"))
    shown = [bar.removesuffix("\x1b[K") for bar in bars[1:]]
    assert all(bar and len(bar) < 80 and "\n" not in bar for bar in shown)
    assert shown[0] == "0/4 runs, 0 problems"
    assert any(bar.startswith("3/4 runs, 0 problems, now: 3-longlong") and len(bar) == 79 for bar in shown)
    assert last == f"\x1b[Kroundk: 4 of 4 runs: 4 judged; the table is in {batch.out}/runs.parquet"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["empty"], "empty: "),
        (["runs", "--ray-address", "x:1"], "--ray-address needs --engine ray"),
        (["runs", "--topology", "missing.csv"], "missing.csv"),
        (["runs", "--jobs", "0"], "--jobs"),
        ([], "ROOT"),
        ([""], "is empty; was a variable not set?"),
        (["runs", ""], "is empty; was a variable not set?"),
        (["runs", "--out", ""], "is empty; was a variable not set?"),
        (["runs", "--html", ""], "is empty; was a variable not set?"),
        (["runs", "--topology", ""], "is empty; was a variable not set?"),
        (["runs", "--run-glob", ""], "is empty; was a variable not set?"),
        (["runs", "--engine", "ray", "--ray-address", ""], "is empty; was a variable not set?"),
        (["runs", "--out", "dangling"], "dangling: a link to nowhere, which is not there"),
        (["runs", "--topology", "dangling"], "dangling: a link to nowhere, which is not there"),
        (["runs", "--time-limit-s", "nan"], "is no number of seconds"),
        (["runs", "--time-limit-s", "inf"], "is no number of seconds"),
        (["runs", "--html", "nodir/r.html"], "nodir/r.html: there is no folder nodir"),
        (["runs", "--html", "roundk-batch/runs.parquet"], "the batch keeps its own files there"),
        (["runs", "--html", "roundk-batch/done/r.html"], "the batch keeps its own files there"),
        (["runs", "--html", "t.csv", "--topology", "t.csv"], "t.csv: that is read, and would be replaced"),
    ],
)
def test_wrong_usage_is_told_before_any_work(batch, arguments, said):
    (batch.folder / "empty").mkdir()
    (batch.folder / "dangling").symlink_to("nowhere")
    (batch.folder / "t.csv").write_text("host,rack\na,1\n")
    command = [sys.executable, "-m", "roundk", "batch", *arguments]
    done = subprocess.run(command, cwd=batch.folder, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (batch.folder / "roundk-batch").exists()


def test_without_ray_nothing_is_made(batch):
    # A package of that name which cannot be loaded stands for none.
    code = "import sys; sys.modules['ray'] = None; from roundk.cli import main; main()"
    command = [sys.executable, "-c", code, "batch", "runs", "--engine", "ray"]
    done = subprocess.run(command, cwd=batch.folder, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert done.returncode == 2
    assert "pip install 'roundk[ray]'" in done.stderr
    assert not (batch.folder / "roundk-batch").exists()


def test_a_page_may_lie_in_the_folder_of_the_batch(batch):
    batch.run("--html", "out/report.html")
    assert "<html" in (batch.out / "report.html").read_text()


def test_what_is_left_out_is_in_the_report(batch):
    for name in ("a", "b"):
        sample(batch.runs, f"more/{name}")
    (batch.runs / "more/train.log").write_text("[rank0]: step 12 loss 3.2\n" * 3)
    told = json.loads(batch.run("--format", "json")[0])
    (left,) = told["left_out"]
    assert "train.log: left out, as to which of 2 runs it belongs cannot be told" in left
