"""Stacks files: written by a real faulthandler, read back thread by thread."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap

import pytest

from roundk.tracer import read_stacks

HEAD = """
import ctypes, signal, sys, threading, time
from roundk.hooks.stacks import Stacks

stacks = Stacks(sys.argv[1], term_s=0.3)
print(threading.main_thread().ident, flush=True)

def waits():
    time.sleep(60)

threading.Thread(target=waits, daemon=True).start()
"""


def stacks_of(tmp_path, body, kill=None):
    path = tmp_path / "rank.stacks"
    script = tmp_path / "train.py"
    script.write_text(HEAD + textwrap.dedent(body))
    process = subprocess.Popen([sys.executable, str(script), str(path)], stdout=subprocess.PIPE, text=True)
    with process:
        main_thread = int(process.stdout.readline())
        process.stdout.readline()
        if kill:
            process.send_signal(kill)
        code = process.wait(timeout=30)
    return code, read_stacks.read(path.read_text(), main_thread)


def user_frames(row, tmp_path):
    """The script's frames, each as its function and the text of its line."""
    lines = (tmp_path / "train.py").read_text().splitlines()
    places = [frame.rpartition("train.py:")[2].split() for frame in row["frames"] if "train.py:" in frame]
    return [(function, lines[int(number) - 1].strip()) for number, function in places]


def test_a_dump_on_a_stall_shows_every_thread(tmp_path):
    code, rows = stacks_of(tmp_path, "def busy():\n    stacks.dump('in a call for 3 s', 7)\nbusy()\nprint(flush=True)")
    assert code == 0
    assert {row["trigger"] for row in rows} == {"stall"}
    assert all((row["what"], row["call"]) == ("in a call for 3 s", 7) and row["time_ns"] for row in rows)
    [main] = [row for row in rows if row["is_main"]]
    assert user_frames(main, tmp_path) == [("busy", "stacks.dump('in a call for 3 s', 7)"), ("<module>", "busy()")]
    assert [user_frames(row, tmp_path) for row in rows if not row["is_main"]] == [[("waits", "time.sleep(60)")]]


def test_sigterm_still_ends_the_process_and_leaves_its_stacks(tmp_path):
    code, rows = stacks_of(tmp_path, "def hangs():\n    print(flush=True)\n    time.sleep(60)\nhangs()", signal.SIGTERM)
    assert code == -signal.SIGTERM
    assert {row["trigger"] for row in rows} == {"term"}
    assert user_frames(next(row for row in rows if row["is_main"]), tmp_path)[0][0] == "hangs"


def test_the_users_own_handler_of_sigterm_still_runs(tmp_path):
    body = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\nprint(flush=True)\ntime.sleep(60)"
    assert stacks_of(tmp_path, body, signal.SIGTERM)[0] == 5


def test_a_handler_set_before_ours_runs_too(tmp_path):
    script = tmp_path / "t.py"
    script.write_text(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(6))\n"
        "from roundk.hooks.stacks import Stacks\n"
        "Stacks(sys.argv[1], 5.0)\n"
        "print(flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, str(script), str(tmp_path / "s")], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 6
    assert "t.py" in (tmp_path / "s").read_text()


def test_a_thread_that_holds_the_gil_is_seen_by_the_timer(tmp_path):
    body = """
    def holds():
        ctypes.PyDLL(None).usleep(900_000)  # PyDLL keeps the GIL during the call
    stacks.renew()
    print(flush=True)
    holds()
    """
    code, rows = stacks_of(tmp_path, body)
    assert code == 0
    [main] = [row for row in rows if row["is_main"] and row["trigger"] == "timer"]
    assert [function for function, _ in user_frames(main, tmp_path)] == ["holds", "<module>"]


def test_a_fatal_signal_is_named(tmp_path):
    code, rows = stacks_of(tmp_path, "import os\ndef falls():\n    os.abort()\nprint(flush=True)\nfalls()")
    assert code == -signal.SIGABRT
    [main] = [row for row in rows if row["is_main"]]
    assert (main["trigger"], main["what"]) == ("fatal", "Aborted")
    assert user_frames(main, tmp_path)[0] == ("falls", "os.abort()")


def test_a_script_that_sets_the_timer_keeps_it(tmp_path):
    body = """
    import faulthandler
    theirs = open(sys.argv[1] + ".theirs", "w")
    faulthandler.dump_traceback_later(0.2, file=theirs)
    for _ in range(20):
        stacks.renew()
        time.sleep(0.03)
    print(flush=True)
    """
    code, rows = stacks_of(tmp_path, body)
    assert code == 0
    assert rows == []
    assert "Timeout (0:00:00.2" in (tmp_path / "rank.stacks.theirs").read_text()


def test_a_forked_child_can_use_the_timer_itself(tmp_path):
    body = """
    import faulthandler, os
    stacks.renew()
    stacks.before_fork()
    pid = os.fork()
    if pid == 0:
        stacks.in_child()
        faulthandler.dump_traceback_later(5, file=sys.stderr)
        faulthandler.cancel_dump_traceback_later()
        os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    print(flush=True)
    """
    assert stacks_of(tmp_path, body)[0] == 0


def test_a_sigterm_after_the_timer_is_no_dump_of_the_timer(tmp_path):
    body = """
    def holds():
        ctypes.PyDLL(None).usleep(900_000)
    stacks.renew()
    holds()
    def waits_for_the_end():
        print(flush=True)
        time.sleep(60)
    waits_for_the_end()
    """
    code, rows = stacks_of(tmp_path, body, signal.SIGTERM)
    assert code == -signal.SIGTERM
    main = [(row["trigger"], user_frames(row, tmp_path)[0][0]) for row in rows if row["is_main"]]
    assert main == [("timer", "holds"), ("term", "waits_for_the_end")]


def test_a_late_renewal_closes_what_the_timer_wrote(tmp_path):
    body = """
    stacks.renew()
    ctypes.PyDLL(None).usleep(900_000)
    stacks.renew()
    print(flush=True)
    """
    assert stacks_of(tmp_path, body)[0] == 0
    text = (tmp_path / "rank.stacks").read_text()
    assert text.index('"kind":"term"') < text.index("Timeout (") < text.rindex('"kind":"term"')


TAKES_THE_NUMBER = """
import os
own = os.open(sys.argv[1] + ".own", os.O_RDWR | os.O_CREAT)
links = {int(fd): f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd") if int(fd) > 2}
number = next(fd for fd, link in links.items() if os.path.exists(link) and os.path.samefile(link, sys.argv[1]))
"""


@pytest.mark.parametrize(("kill", "trigger"), [(signal.SIGABRT, "fatal"), (signal.SIGTERM, "term")])
def test_a_script_that_has_taken_the_descriptor_keeps_its_file(tmp_path, kill, trigger):
    body = "os.dup2(own, number)\nstacks.renew()\nprint(flush=True)\ntime.sleep(60)"
    code, rows = stacks_of(tmp_path, TAKES_THE_NUMBER + body, kill)
    assert code == -kill
    assert {row["trigger"] for row in rows} == {trigger}
    assert (tmp_path / "rank.stacks.own").read_bytes() == b""


@pytest.mark.parametrize("kill", [signal.SIGABRT, signal.SIGTERM])
def test_where_the_file_cannot_be_opened_again_nothing_is_written(tmp_path, kill):
    body = """
os.rename(sys.argv[1], sys.argv[1] + ".old")
open(sys.argv[1], "w").close()  # the script's own
os.dup2(own, number)
try:
    stacks.renew()
except OSError:
    print(flush=True)
time.sleep(60)
"""
    code, rows = stacks_of(tmp_path, TAKES_THE_NUMBER + body, kill)
    assert (code, rows) == (-kill, [])
    assert (tmp_path / "rank.stacks.own").read_bytes() == b""


@pytest.mark.parametrize("text", ["", "{", '{"kind": "stall"', "Thread 0xzz (most recent call first):\n", "[]\n"])
def test_a_cut_file_is_read_as_far_as_it_goes(text):
    assert read_stacks.read(text, None) == []
