"""Reading a large log next to `grep -c`: `python tests/bench/log_throughput.py [MB] [--calls]`.

Makes a log (`big_log.py`) of so many megabytes, 1,000 unless told; with `--calls` of NCCL's COLL lines, all of which
are read. Both on one core, the file in the page cache, each in a process of its own: its CPU time and peak memory.
"""

from __future__ import annotations

import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile

import big_log

MB = 1_000_000
READ = """
import json, pathlib, resource, sys
from roundk.analyze.sources import joblog
from roundk.analyze.sources.inputs import Hints, Input
path = pathlib.Path(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF)
part = joblog.load([Input(path.name, path)], Hints())
after = resource.getrusage(resource.RUSAGE_SELF)
cpu = sum((after.ru_utime, after.ru_stime)) - sum((before.ru_utime, before.ru_stime))
kinds = dict(part.facts["kind"].value_counts().iter_rows())
tables = {name: getattr(part, name).height for name in ("facts", "calls", "progress", "channels", "ranks")}
print(json.dumps({"cpu": cpu, "peak": after.ru_maxrss / 1024, "kinds": kinds, "tables": tables, "notes": part.notes}))
"""


def grep(path):
    """CPU seconds of `grep -c` for a handful of what matters."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(["grep", "-cE", "Watchdog|Traceback|NCCL WARN|Xid", path], check=False, stdout=subprocess.PIPE)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main():
    arguments = [a for a in sys.argv[1:] if not a.startswith("-")]
    size = int(arguments[0] if arguments else 1000) * MB
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "job.log"
        big_log.write(path, size, is_calls="--calls" in sys.argv)
        size = path.stat().st_size
        seconds = grep(path)
        done = subprocess.run([sys.executable, "-c", READ, path], check=True, capture_output=True, text=True)
    told = json.loads(done.stdout)
    print(f"log of {size / MB:.0f} MB, one core")
    print(f"  grep -cE   {seconds:6.2f} s CPU  {size / MB / seconds:6.0f} MB/s")
    print(f"  roundk     {told['cpu']:6.2f} s CPU  {size / MB / told['cpu']:6.0f} MB/s  peak {told['peak']:.0f} MiB")
    print(f"  {told['tables']}")
    print(f"  {told['kinds']}")
    print("  " + "; ".join(told["notes"]))


if __name__ == "__main__":
    main()
