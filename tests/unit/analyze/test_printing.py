"""What files say cannot steer the terminal, and a full disk is told in words."""

from __future__ import annotations

import pathlib
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
