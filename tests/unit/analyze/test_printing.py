"""What files say cannot steer the terminal, and a full disk is told in words."""

from __future__ import annotations

import os
import pathlib
import pty
import subprocess
import sys

import pytest

from roundk.analyze.commands.printing import printable

SAMPLE = pathlib.Path(__file__).parents[3] / "sample_traces" / "never_entered"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ntext", "plain\ntext"),
        ("größer → 🏖", "größer → 🏖"),
        ("\x1b[2Jgone", "\\x1b[2Jgone"),
        ("bell\a nul\0 c1\x9b31m", "bell\\x07 nul\\x00 c1\\x9b31m"),
        ("\u202eback\u2066", "\\u202eback\\u2066"),
        ("half\udcff", "half\\udcff"),
    ],
)
def test_what_a_terminal_would_obey_is_written_out(text, shown):
    assert printable(text) == shown


@pytest.mark.parametrize("command", ["show", "analyze"])
def test_a_full_disk_is_told_in_words(command):
    with pathlib.Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "roundk", command, SAMPLE],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert "cannot be written to standard output" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("settings", "is_coloured"),
    [
        ({}, True),
        ({"NO_COLOR": ""}, True),
        ({"NO_COLOR": "1"}, False),
        ({"NO_COLOR": "0"}, False),
        ({"TERM": "dumb"}, False),
    ],
)
@pytest.mark.parametrize("command", ["analyze", "diff"])
def test_a_terminal_gets_colour_where_it_is_wanted(command, settings, is_coloured):
    ours, theirs = pty.openpty()
    told = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    paths = [SAMPLE] if command == "analyze" else [SAMPLE, SAMPLE.parent / "skip"]
    with subprocess.Popen(
        [sys.executable, "-m", "roundk", command, *paths], stdout=theirs, env={**told, "TERM": "xterm", **settings}
    ):
        os.close(theirs)
        text = b"".join(iter(lambda: read(ours), b""))
    os.close(ours)
    assert b"RANK_NOT_ENTERED" in text
    assert (b"\x1b[" in text) == is_coloured


def read(terminal):
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # how Linux says that nobody has the other end any more
        return b""


def test_tables_go_to_a_path_that_is_not_utf8(tmp_path):
    folder = tmp_path / os.fsdecode(b"odd\xff")
    subprocess.run(
        [sys.executable, "-m", "roundk", "show", "--export", folder, SAMPLE], check=True, capture_output=True
    )
    assert (folder / "calls.parquet").read_bytes()[:4] == b"PAR1"


def test_tables_that_a_disk_has_no_room_for(tmp_path):
    (tmp_path / "calls.parquet").symlink_to("/dev/full")
    command = [sys.executable, "-m", "roundk", "show", "--export", tmp_path, SAMPLE]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == f"roundk: {tmp_path}: the tables cannot be written: No space left on device\n"
