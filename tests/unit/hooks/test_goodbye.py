"""A process's own word on its exit code."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import os, sys
from roundk.hooks import goodbye

goodbye.install()
goodbye.arm(sys.argv[1])
os.closerange(3, 100)
how = sys.argv[2]
if how == "fork":
    child = os.fork()
    if not child:
        sys.exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    os.kill(os.getpid(), 9)
exec(how)
"""


@pytest.mark.parametrize(
    ("how", "stored"),
    [
        ("pass", 0),
        ("sys.exit(3)", 3),
        ("raise SystemExit(255)", 255),
        ("sys.exit('message')", 1),
        ("sys.exit(257)", 1),
        ("1 / 0", 1),
        ("os._exit(4)", 4),
        ("os._exit(-1)", 255),
        ("import ctypes; ctypes.CDLL(None).exit(77)", 77),
        ("os.kill(os.getpid(), 9)", None),
        ("os.abort()", None),
        ("fork", None),
    ],
)
def test_the_stored_code_is_what_the_parent_gets(tmp_path, how, stored):
    path = tmp_path / "rank.exit"
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(path), how], capture_output=True, check=False)
    first, second = path.read_bytes()[:2]
    assert (first if first == second else None) == stored, done.stderr
    assert done.returncode == stored if stored is not None else done.returncode < 0
