"""`roundk run` in the middle of a job's output, keyboard and signals; how each rank ended."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import random
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import harness
import polars as pl
import pytest

from roundk.tracer.reader import read_run

PYTHON = sys.executable


def roundk(run, command, *options):
    return [*harness.ROUNDK, "run", "--dir", str(run), *options, "--", *command]


def log(run, name):
    """The kept log of a stream, `stdout`, `stderr` or `output`."""
    (path,) = run.glob(f"*/{name}-*.log")
    return path.read_bytes()


def ranks(run):
    return pl.from_arrow(read_run(run).ranks).to_dicts()


# Output into a pipe


def test_bytes_pass_through_pipes_unchanged_and_are_kept(tmp_path):
    data = random.Random(1).randbytes(1_000_000)
    (tmp_path / "data").write_bytes(data)
    command = ["bash", "-c", "cat data; cat data data >&2; exit 3"]
    done = subprocess.run(roundk(tmp_path / "run", command), capture_output=True, cwd=tmp_path, check=False)
    assert done.returncode == 3
    assert done.stdout == data
    assert done.stderr.startswith(2 * data)
    assert log(tmp_path / "run", "stdout") == data
    assert log(tmp_path / "run", "stderr") == 2 * data


def test_one_pipe_for_both_keeps_their_order(tmp_path):
    code = "import os\nfor i in range(3000): os.write(1 + i % 2, b'%d\\n' % i)"
    command = roundk(tmp_path / "run", [PYTHON, "-c", code])
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True)
    expected = b"".join(b"%d\n" % i for i in range(3000))
    assert done.stdout.startswith(expected)
    assert log(tmp_path / "run", "output") == expected


def test_a_line_arrives_when_it_is_printed(tmp_path):
    command = roundk(tmp_path / "run", ["bash", "-c", "echo first; read; echo second"])
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as job:
        assert job.stdout.readline() == b"first\n", "it waits for our line, so this came at once"
        job.stdin.write(b"\n")
        job.stdin.flush()
        assert job.stdout.readline() == b"second\n"


ENDLESS = """
import os, pathlib, sys
try:
    while True:
        os.write(1, b"line\\n")
except BrokenPipeError:
    pathlib.Path(sys.argv[1]).write_text("broken pipe")
"""


def test_a_reader_that_goes_away_is_a_broken_pipe_for_the_job(tmp_path):
    mark = tmp_path / "mark"
    command = roundk(tmp_path / "run", [PYTHON, "-c", ENDLESS, str(mark)])
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as job:
        job.stdout.readline()
        job.stdout.close()
        job.wait(harness.LIMIT_S)
    assert mark.read_text() == "broken pipe"


def test_output_of_a_process_left_behind_still_arrives_and_nobody_waits_for_it(tmp_path):
    go = tmp_path / "go"
    command = ["bash", "-c", f"(until [ -e {go} ]; do sleep 0.05; done; echo late) & echo early"]
    with subprocess.Popen(roundk(tmp_path / "run", command), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as job:
        assert job.wait(harness.LIMIT_S) == 0, "the launcher leaves though the pipe is open"
        go.touch()
        assert job.stdout.read() == b"early\nlate\n"
    assert log(tmp_path / "run", "stdout") == b"early\nlate\n"


def test_a_killed_launcher_takes_nothing_with_it(tmp_path):
    go = tmp_path / "go"
    command = ["bash", "-c", f"echo early; until [ -e {go} ]; do sleep 0.05; done; echo late; echo end >&2"]
    with subprocess.Popen(roundk(tmp_path / "run", command), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as job:
        assert job.stdout.readline() == b"early\n"
        job.kill()
        job.wait()
        go.touch()
        assert job.stdout.read() == b"late\n"
        assert job.stderr.read() == b"end\n"
    assert log(tmp_path / "run", "stdout") == b"early\nlate\n"
    run = read_run(tmp_path / "run")
    assert (run.started_ns is not None, run.ended_ns, run.command) == (True, None, tuple(command))


# Output into a file, or nowhere


def test_a_file_is_the_jobs_own(tmp_path):
    out = tmp_path / "out"
    out.write_text("there before\n")
    code = "import os; print(os.fstat(1).st_ino, os.lseek(1, 0, os.SEEK_CUR))"
    with out.open("ab") as file:
        command = roundk(tmp_path / "run", [PYTHON, "-c", code])
        subprocess.run(command, stdout=file, stderr=subprocess.DEVNULL, check=True)
    line = out.read_text().removeprefix("there before\n")
    assert line.split()[0] == str(out.stat().st_ino)
    assert log(tmp_path / "run", "stdout").decode() == line


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_closed_for_the_job_too(tmp_path, closed):
    code = f"""
import os
for fd in range(3):
    try:
        state = "open" if os.fstat(fd) else ""
    except OSError:
        state = "closed"
    with open({str(tmp_path / "states")!r}, "a") as file:
        file.write(f"{{fd}} {{state}}\\n")
"""
    script = tmp_path / "script.py"
    script.write_text(code)
    command = " ".join(roundk(tmp_path / "run", [PYTHON, str(script)]))
    done = subprocess.run(["bash", "-c", f"{command} {closed}"], capture_output=True, check=False)
    assert done.returncode == 0
    states = dict(line.split() for line in (tmp_path / "states").read_text().splitlines())
    numbers = {{"<": "0", ">": "1"}.get(part[0], part[0]) for part in closed.split()}
    assert {fd for fd, state in states.items() if state == "closed"} == numbers


def test_open_files_are_handed_on(tmp_path):
    command = " ".join(roundk(tmp_path / "run", ["cat", "<(echo", "config)"]))
    done = subprocess.run(["bash", "-c", command], stdout=subprocess.PIPE, check=True)
    assert done.stdout == b"config\n"


def test_no_logs_leaves_none(tmp_path):
    command = roundk(tmp_path / "run", ["echo", "x"], "--no-logs")
    assert subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout == b"x\n"
    assert list(tmp_path.rglob("*.log")) == []


@pytest.mark.parametrize("own", [{}, {"NCCL_DEBUG": "TRACE"}, {"NCCL_DEBUG_FILE": "mine"}])
def test_nccl_debug_sets_what_the_user_has_not(tmp_path, own):
    command = roundk(tmp_path / "run", ["env"], "--nccl-debug", "info")
    done = subprocess.run(command, env={**os.environ, **own}, capture_output=True, text=True, check=True)
    found = dict(line.split("=", 1) for line in done.stdout.splitlines() if line.startswith("NCCL_"))
    (folder,) = (path for path in (tmp_path / "run").iterdir() if path.is_dir())
    assert found == {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": str(folder / "nccl-%h-%p.log"), **own}
    assert all(name in done.stderr for name in own)


# A terminal


class Terminal:
    """A command with a terminal of its own, on all three streams."""

    def __init__(self, command, size=(37, 91)):
        self.pid, self.fd = pty.fork()
        if not self.pid:
            os.execvp(command[0], command)
        self.got = b""
        self.resize(size)

    def resize(self, size):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))

    def type(self, text):
        os.write(self.fd, text)

    def read_until(self, pattern):
        """Read until a pattern is there; the end of output counts where it is None."""
        end = time.monotonic() + 60
        while pattern is None or not re.search(pattern, self.got):
            assert time.monotonic() < end, self.got
            if not select.select([self.fd], [], [], 1)[0]:
                continue
            try:
                data = os.read(self.fd, 4096)
            except OSError:  # nobody has the terminal any more
                data = b""
            if not data:
                assert pattern is None, self.got
                break
            self.got += data
        return self.got

    def end(self):
        self.read_until(None)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def close(self):
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)
        os.close(self.fd)


@pytest.fixture
def terminal():
    opened = []

    def open_(command, **options):
        opened.append(Terminal(command, **options))
        return opened[-1]

    yield open_
    for one in opened:
        one.close()


def script(tmp_path, code):
    path = tmp_path / "script.py"
    path.write_text(code)
    return [PYTHON, "-u", str(path)]


LOOKS = """
import os, sys
input()
print([os.isatty(fd) for fd in range(3)], os.get_terminal_size(1), os.get_terminal_size(2))
print("tab\\tbell\\a \\x1b[31mred\\x1b[0m", "over\\rwritten", file=sys.stderr)
print(input("name? "))
sys.exit(5)
"""


def test_on_a_terminal_every_byte_is_as_without_us(terminal, tmp_path):
    command = script(tmp_path, LOOKS)
    seen = []
    for wrapped in (command, roundk(tmp_path / "run", command)):
        job = terminal(wrapped)
        job.type(b"\n")
        job.read_until(rb"name\? ")
        job.type(b"me\n")
        assert job.end() == 5
        seen.append(job.got.split(b"roundk: ")[0])
    assert b"[True, True, True] os.terminal_size(columns=91, lines=37)" in seen[0]
    assert seen[1] == seen[0]
    kept = log(tmp_path / "run", "output")
    assert b"\x1b[31mred\x1b[0m over\rwritten\n" in kept


SIGNALS = """
import os, signal, time
got = []
def note(number, frame):
    os.write(1, b"got %d %d %d\\n" % (number, *os.get_terminal_size(1)))
for number in (signal.SIGINT, signal.SIGWINCH, signal.SIGCONT):
    signal.signal(number, note)
print("ready")
print(input())
"""


def test_the_keyboards_interrupt_comes_once(terminal, tmp_path):
    job = terminal(roundk(tmp_path / "run", script(tmp_path, SIGNALS)))
    job.read_until(b"ready")
    job.type(b"\x03")
    job.read_until(rb"got 2 ")
    job.type(b"done\n")
    assert job.end() == 0
    assert job.got.count(b"got 2 ") == 1


def test_a_new_size_of_the_terminal_is_the_jobs_too(terminal, tmp_path):
    job = terminal(roundk(tmp_path / "run", script(tmp_path, SIGNALS)))
    job.read_until(b"ready")
    job.resize((50, 133))
    job.read_until(rb"got 28 133 50")
    job.type(b"done\n")
    assert job.end() == 0


def test_a_job_stops_and_goes_on_from_the_keyboard(terminal, tmp_path):
    job = terminal(["bash", "--norc", "--noediting", "-i"])
    job.type(" ".join(roundk(tmp_path / "run", script(tmp_path, SIGNALS))).encode() + b"\n")
    job.read_until(rb"ready\r\n")
    job.type(b"\x1a")
    job.read_until(rb"(?s)Stopped.*\n.*[#$] $")
    job.type(b"fg\n")
    job.read_until(rb"got 18 ")
    job.type(b"done\n")
    job.read_until(rb"done\r\ndone\r\n")
    job.type(b"exit 7\n")
    assert job.end() == 7


# Signals


def test_a_second_signal_is_forwarded_too(start, tmp_path):
    code = """
import os, pathlib, signal, sys, time
def note(number, frame):
    with open("got", "a") as file:
        file.write(f"{number}\\n")
signal.signal(signal.SIGTERM, note)
signal.signal(signal.SIGINT, note)
pathlib.Path("ready").touch()
while not os.path.exists("stop"):
    time.sleep(0.05)
"""
    job = start([PYTHON, "-c", code], dir=tmp_path / "run")
    job.wait_for((tmp_path / "ready").exists, "the command is ready")
    got = tmp_path / "got"
    for count, number in enumerate([signal.SIGTERM, signal.SIGTERM, signal.SIGINT], start=1):
        job.process.send_signal(number)
        job.wait_for(lambda: got.exists() and len(got.read_text().split()) == count, "the signal arrives")  # noqa: B023
    (tmp_path / "stop").touch()
    assert job.wait().code == 0
    assert got.read_text().split() == ["15", "15", "2"]
    facts = pl.from_arrow(read_run(tmp_path / "run").facts)
    assert facts.filter(kind="signal")["text"].str.extract(r"^(\w+)").to_list() == ["SIGTERM", "SIGTERM", "SIGINT"]


# How ranks ended

ENDS = """
import os, signal, sys, threading, time
import torch, torch.distributed as dist

def end(how):
    if how == "raise":
        raise ValueError("no such batch")
    if how == "thread":
        thread = threading.Thread(target=end, args=["raise"], name="loader")
        thread.start()
        thread.join()
    elif how.startswith("sys.exit"):
        sys.exit(int(how[8:]))
    elif how.startswith("os._exit"):
        os._exit(int(how[8:]))
    elif how.startswith("kill"):
        os.kill(os.getpid(), int(how[4:]))

if __name__ == "__main__":
    rank = int(os.environ["RANK"])
    how = sys.argv[1:][rank] if len(sys.argv) > 1 else "return"
    if how.startswith("early:"):
        end(how.removeprefix("early:"))
    dist.init_process_group("gloo", store=dist.FileStore(os.environ["STORE"], int(os.environ["WORLD_SIZE"])),
                            rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
    dist.all_reduce(torch.ones(2))
    time.sleep(0.5 * rank)
    end(how)
"""


@pytest.fixture
def ends(tmp_path):
    path = tmp_path / "ends.py"
    path.write_text(ENDS)
    return path


def in_bash(tmp_path, command, world):
    """A shell script that starts its ranks itself, as a scheduler's would."""
    lines = [f"RANK={rank} {command} &" for rank in range(world)]
    path = tmp_path / "job.sh"
    path.write_text("\n".join([f"export WORLD_SIZE={world} STORE={tmp_path / 'store'}", *lines, "wait"]))
    return ["bash", str(path)]


def test_ranks_of_a_shell_script(start, tmp_path, ends):
    hows = ["sys.exit3", "kill9", "raise"]
    command = in_bash(tmp_path, f"{PYTHON} {ends} {' '.join(hows)}", len(hows))
    start(command, dir=tmp_path / "run").wait()
    found = ranks(tmp_path / "run")
    assert [row["exit_code"] for row in found] == [3, None, 1]
    assert found[2]["exception_type"] == "ValueError"
    assert found[2]["exception_message"] == "no such batch"
    assert re.fullmatch(rf"{ends}:\d+", found[2]["exception_site"])
    killed = (found[1]["exit_signal"], found[1]["exit_source"])
    assert killed in ((9, "launcher"), (None, "vanished")), "a kernel before 6.15 does not tell the signal"


OWN_WORD = "from roundk.hooks import install; install({run!r})\n"


def test_a_rank_says_its_exit_code_where_nobody_watches(start, tmp_path, ends):
    run = tmp_path / "run"
    ends.write_text(OWN_WORD.format(run=str(run)) + ENDS)
    hows = ["sys.exit3", "os._exit4", "kill9"]
    command = in_bash(tmp_path, f"{PYTHON} {ends} {' '.join(hows)}", len(hows))
    start(command, roundk=False).wait()
    found = ranks(run)
    assert [row["exit_code"] for row in found] == [3, 4, None]
    assert [row["exit_source"] for row in found] == ["self", "self", None]


def test_the_command_itself_is_a_rank(start, tmp_path, ends):
    env = {"RANK": "0", "WORLD_SIZE": "1", "STORE": str(tmp_path / "store")}
    assert start([PYTHON, str(ends), "sys.exit7"], dir=tmp_path / "run", env=env).wait().code == 7
    (row,) = ranks(tmp_path / "run")
    assert (row["exit_code"], row["exit_source"]) == (7, "launcher")


def test_torchrun_ranks_that_never_came_to_a_group(start, tmp_path, ends):
    command = harness.torchrun(ends, "early:sys.exit0", "early:raise", ranks=2)
    start(command, dir=tmp_path / "run", env={"STORE": str(tmp_path / "store")}).wait()
    missing = ranks(tmp_path / "run")[1]
    assert (missing["data"], missing["exit_code"], missing["exit_source"]) == ("missing", 1, "agent")
    assert (missing["exception_type"], missing["exception_message"]) == ("ValueError", "no such batch")


def test_a_rank_of_a_shell_script_that_never_came_to_a_group(start, tmp_path, ends):
    command = in_bash(tmp_path, f"{PYTHON} {ends} early:raise early:raise", 2)
    start(command, dir=tmp_path / "run").wait()
    assert [row["exception_type"] for row in ranks(tmp_path / "run")] == ["ValueError"] * 2


def test_an_exception_in_a_thread_is_a_fact_and_no_end(start, tmp_path, ends):
    env = {"RANK": "0", "WORLD_SIZE": "1", "STORE": str(tmp_path / "store")}
    assert start([PYTHON, str(ends), "thread"], dir=tmp_path / "run", env=env).wait().code == 0
    run = read_run(tmp_path / "run")
    assert ranks(tmp_path / "run")[0]["exception_type"] is None
    (text,) = pl.from_arrow(run.facts).filter(kind="thread_exception")["text"]
    assert "ValueError: no such batch" in text
    assert "in thread loader" in text


SPAWN = """
import os, sys
import torch, torch.multiprocessing as mp
import ends

def work(rank, hows):
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(len(hows))}
    import torch.distributed as dist
    dist.init_process_group("gloo", store=dist.FileStore(os.environ["STORE"], len(hows)),
                            rank=rank, world_size=len(hows))
    dist.all_reduce(torch.ones(2))
    ends.end(hows[rank])
    if rank == 0:
        import time
        time.sleep(100)

if __name__ == "__main__":
    mp.start_processes(work, args=(sys.argv[1:],), nprocs=2, start_method=os.environ["METHOD"])
"""


@pytest.mark.parametrize(("method", "how"), [("spawn", "raise"), ("fork", "raise"), ("fork", "kill9")])
def test_ranks_of_torch_multiprocessing(start, tmp_path, ends, method, how):
    (tmp_path / "spawn.py").write_text(SPAWN)
    env = {"STORE": str(tmp_path / "store"), "METHOD": method}
    ended = start([PYTHON, "spawn.py", "return", how], dir=tmp_path / "run", env=env).wait()
    assert "roundk/hooks" not in ended.stderr, "a traceback of the user's has no frame of ours"
    first, second = ranks(tmp_path / "run")
    assert (first["exit_signal"], first["exit_source"]) == (15, "agent"), "the parent ends the others"
    if how == "raise":
        assert (second["exception_type"], second["exit_code"]) == ("ValueError", 1)
        assert re.fullmatch(rf"{ends}:\d+", second["exception_site"])
    else:
        assert (second["exit_signal"], second["exit_source"]) == (9, "agent")


def test_an_exception_through_torchelastics_record(start, tmp_path, ends):
    text = ENDS.replace(
        "def end(how)", "from torch.distributed.elastic.multiprocessing.errors import record\n@record\ndef end(how)"
    )
    ends.write_text(text)
    env = {"STORE": str(tmp_path / "store")}
    start(harness.torchrun(ends, "raise", ranks=1), dir=tmp_path / "run", env=env).wait()
    (row,) = ranks(tmp_path / "run")
    assert (row["exception_type"], row["exit_code"], row["exit_source"]) == ("ValueError", 1, "agent")


# Nothing recorded


IMPORT = (
    "import mmap, time; file = open('libtorch.so'); "
    "torch = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ); time.sleep(1)"
)
"""What `import torch` shows from outside, without its seconds."""


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (f'{PYTHON} -I -c "{IMPORT}"', "was started with -I"),
        (f'env -i {PYTHON} -c "{IMPORT}"', "was started without ROUNDK_DIR"),
        (f'PYTHONPATH=own {PYTHON} -c "{IMPORT}"', "another PYTHONPATH"),
        (
            f'TORCH_DEVICE_BACKEND_AUTOLOAD=0 PYTHONPATH=own:$PYTHONPATH {PYTHON} -c "{IMPORT}"',
            "TORCH_DEVICE_BACKEND_AUTOLOAD=0 and own/sitecustomize.py",
        ),
        (f'{PYTHON} -c "{IMPORT}"', "no process made a torch.distributed group"),
        ("sleep 1", "no Python process was seen"),
    ],
)
def test_why_nothing_was_recorded_is_said(start, tmp_path, line, said):
    (tmp_path / "libtorch.so").write_bytes(bytes(4096))
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("")
    ended = start(["bash", "-c", f"{line}; true"], dir=tmp_path / "run").wait()
    assert ended.stderr.startswith("roundk: no rank was recorded in run: "), ended.stderr
    assert said in ended.stderr


def test_one_run_inside_another(tmp_path):
    inner = [*harness.ROUNDK, "run", "--dir", str(tmp_path / "b"), "--", sys.executable, "-c", "print('inside')"]
    command = [*harness.ROUNDK, "run", "--dir", str(tmp_path / "a"), "--", *inner]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "inside\n")
    assert "sitecustomize" not in done.stderr


def test_an_option_that_is_none_is_no_command(tmp_path):
    done = subprocess.run(
        [*harness.ROUNDK, "run", "--bogus", "--", "echo", "hi"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "--bogus" in done.stderr
