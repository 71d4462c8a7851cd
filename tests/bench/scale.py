"""CPU time and memory of `roundk analyze` on large sets of Flight Recorder dumps, and of torchfrtrace beside it.

`python tests/bench/scale.py [SIZE ...] [--peer]`, where a size is RANKSxENTRIES, with `w` in front for the mix with all
calls on one group, and `f` for entries with stacks: `1024x2000 w64x20000 f64x2000`. The least of several runs counts,
each in a process of its own, from start to end: importing included. CPU time is user and system time of all threads;
wall time is not looked at, as the machine may be shared.

torchfrtrace (of the installed torch) is run once on the same dumps, up to `--peer-limit` seconds of CPU time. Whether
each tool names the rank that hangs is shown beside: roundk must name it and no other.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import shutil
import sys
import tempfile

import fr_dumps
import measured

SIZES = ("64x2000", "256x2000", "1024x2000", "64x8000", "64x20000", "w1024x2000", "f1024x2000", "16384x10")
SIZE = re.compile(r"(?P<kind>[wf]?)(?P<ranks>\d+)x(?P<entries>\d+)")
ROUNDK = (sys.executable, "-m", "roundk", "analyze")
PEER = (sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", "--prefix", "nccl_trace_rank_")
MISSING = re.compile(r"missing ranks: \{([\d, ]+)\}")


def make(folder, size, generator):
    """Write the dumps of a size, by another generator where one is given."""
    asked = SIZE.fullmatch(size)
    ranks, entries = int(asked["ranks"]), int(asked["entries"])
    if generator is None:
        mix = "world" if asked["kind"] == "w" else "megatron"
        return ranks, entries, fr_dumps.write(folder, ranks, entries, mix, with_frames=asked["kind"] == "f")
    options = {"w": ["--mix", "world"], "f": ["--frames"], "": []}[asked["kind"]]
    command = [sys.executable, generator, folder, "-w", str(ranks), "-e", str(entries), *options]
    made = measured.run([str(word) for word in command])
    found = re.search(r"hung rank (\d+)", made.out)
    if made.code or found is None:
        raise SystemExit(f"{generator}: {made.out}")
    return ranks, entries, int(found[1])


def of_roundk(folder, times):
    """What the analysis took, and the ranks it names."""
    text = measured.least([*ROUNDK, str(folder)], times)
    report = measured.run([*ROUNDK, "--format", "json", str(folder)])
    named = sorted({rank for one in json.loads(report.out)["verdicts"] for rank in one["culprit_ranks"]})
    return text, named


def of_peer(folder, limit_s):
    run = measured.run([*PEER, str(folder)], cpu_limit_s=limit_s)
    named = sorted({int(rank) for ranks in MISSING.findall(run.out) for rank in ranks.split(",")})
    return run, named


def row(size, tool, run, named, hung, ranks, entries):
    answer = "right" if named == [hung] else f"names {named[:4]}" if named else "names nobody"
    if run.code < 0:
        answer = f"ended by signal {-run.code}"
    each = 1e6 * run.cpu_s / ranks / entries
    return f"| {size} | {tool} | {run.cpu_s:.1f} | {run.peak_mib:,.0f} | {each:.2f} | {answer} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sizes", nargs="*", default=SIZES)
    parser.add_argument("--peer", action="store_true", help="run torchfrtrace beside")
    parser.add_argument("--peer-limit", type=int, default=600, help="CPU seconds for it")
    parser.add_argument("--times", type=int, default=3, help="runs of which the least counts")
    parser.add_argument("--generator", type=pathlib.Path, help="another program that makes the dumps")
    parser.add_argument("--scratch", type=pathlib.Path, help="folder for the dumps, of up to 2 GB")
    asked = parser.parse_args()
    print("| dumps | tool | CPU s | peak MiB | CPU us an entry | rank |\n|---|---|---|---|---|---|", flush=True)
    for size in asked.sizes:
        folder = pathlib.Path(tempfile.mkdtemp(prefix="dumps-", dir=asked.scratch))
        try:
            ranks, entries, hung = make(folder, size, asked.generator)
            run, named = of_roundk(folder, asked.times)
            print(row(size, "roundk", run, named, hung, ranks, entries), flush=True)
            if asked.peer:
                run, named = of_peer(folder, asked.peer_limit)
                print(row(size, "torchfrtrace", run, named, hung, ranks, entries), flush=True)
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
