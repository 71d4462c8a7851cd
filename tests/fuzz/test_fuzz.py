"""The fuzzers in their short form; the long one is `python tests/fuzz/fuzz_pickle.py --executions 1000000`."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent
FUZZERS = sorted(path.name for path in HERE.glob("fuzz_*.py"))
EXECUTIONS = 3_000

pytest.importorskip("atheris", reason="there is no atheris for this Python or platform")


@pytest.mark.parametrize("fuzzer", FUZZERS)
def test_no_input_upsets_a_reader(tmp_path, fuzzer):
    command = [sys.executable, HERE / fuzzer, "--executions", str(EXECUTIONS), "--corpus", tmp_path / "corpus"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    findings = {path.name: path.read_bytes() for path in tmp_path.glob("*-*") if path.is_file()}
    assert done.returncode == 0, f"{findings}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    runs = re.search(r"Done (\d+) runs", done.stderr)
    assert runs is not None
    assert int(runs[1]) >= EXECUTIONS  # what it begins with may be counted too
