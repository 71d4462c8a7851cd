"""Coverage-guided fuzzing of a reader with atheris (libFuzzer for Python): a few lines for each reader.

A fuzzer imports what it tests under `instrumented`, and hands a function and a few seeds to `main`. The function takes
any bytes; whatever it raises is a finding, as is more memory or time than the limits below.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import tempfile

MOST_MB = 1536
"""Resident memory of the fuzzer; what libFuzzer keeps of the corpus is in it."""
MOST_SECONDS = 20
"""Time of one execution on a busy machine."""


def instrumented(*modules):
    """A context in which these modules are imported with their branches counted."""
    import atheris

    return atheris.instrument_imports(include=list(modules))


def main(target, seeds, longest=4096):
    """Fuzz.

    Args:
        target: Takes bytes; raises what is a finding.
        seeds: Inputs to start from.
        longest: Bytes of an input.
    """
    import atheris

    parser = argparse.ArgumentParser(description=target.__doc__)
    parser.add_argument("--executions", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1, help="of the mutations; 0: another one each time")
    parser.add_argument("--corpus", type=pathlib.Path, help="a folder to begin with and to keep what covers more in")
    parser.add_argument("--again", type=pathlib.Path, help="execute one input, as a finding is written, and end")
    options = parser.parse_args()
    if options.again is not None:
        target(options.again.read_bytes())
        return
    folder = options.corpus or pathlib.Path(tempfile.mkdtemp(prefix="fuzz-"))
    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds):
        (folder / f"seed-{number}").write_bytes(seed)
    limits = [f"-rss_limit_mb={MOST_MB}", f"-timeout={MOST_SECONDS}", f"-max_len={longest}"]
    print(f"corpus: {folder}", flush=True)
    atheris.Setup([sys.argv[0], str(folder), f"-runs={options.executions}", f"-seed={options.seed}", *limits], target)
    atheris.Fuzz()
