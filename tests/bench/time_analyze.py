"""Time the analysis of a large job: `python tests/bench/time_analyze.py [RANKS] [ROUNDS]`."""

from __future__ import annotations

import resource
import sys
import time

from big_traces import hung

from roundk.analyze.diagnose import diagnose


def main():
    world, rounds = (int(a) for a in (*sys.argv[1:], "1024", "2000")[:2])
    trace = hung(world, rounds)
    wall, cpu = time.perf_counter(), time.process_time()
    report = diagnose(trace, now_ns=trace.ended_ns)
    took, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    verdict = report.verdicts[0]
    print(f"{world} ranks x {rounds} rounds, {trace.calls.height} calls: {took:.2f} s, {cpu:.2f} s CPU, {peak:.0f} MiB")
    print(f"{verdict.structure} {verdict.culprit_ranks} #{verdict.seq}")


if __name__ == "__main__":
    main()
