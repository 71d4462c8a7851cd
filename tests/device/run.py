"""Checks of the recorder on one NVIDIA GPU: `python tests/device/run.py OUT`, under 10 minutes, torch and CUDA there.

Every section is a job of its own under `roundk run`; its run directory is left in OUT/<section>. World size 1, and two
ranks on the one GPU where NCCL allows it (2.30 on, NCCL_MULTI_RANK_GPU_ENABLE=1). DDP and FSDP2 also run without
the recorder, for the cost per step. Prints what each job printed, then a table: section, exit code, seconds, what was
wrong.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).parent
SOURCE = HERE.parents[1] / "src"
LIMIT_S = 75
TWO_RANK_NCCL = (2, 30)


def job(section, out, ranks=1, recorded=True):
    """Run a section; its exit code, seconds, and the JSON lines it printed."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    if ranks > 1:
        environment |= {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "2"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command = [*torchrun, str(HERE / "job.py"), section]
    if recorded:
        code = "import sys; from roundk.hooks import launch; sys.exit(launch.run(sys.argv[2:], sys.argv[1], 256, 10.0))"
        command = [sys.executable, "-c", code, str(out), *command]
    begin = time.monotonic()
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        rc, stdout, stderr = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as error:
        rc, stdout, stderr = -1, (error.stdout or b"").decode(), (error.stderr or b"").decode()
    lines = [json.loads(line) for line in stdout.splitlines() if line.startswith("{")]
    if rc:
        print("\n".join(stderr.splitlines()[-15:]))
    return rc, time.monotonic() - begin, lines


def wrong_rows(lines, op="all_reduce"):
    """What is wrong with the rows of collectives: each must have started and completed on the device, in order."""
    rows = [line for line in lines if line.get("op") == op]
    if not rows:
        return [f"no row of {op}"]
    wrong = [row for row in rows if row["outcome"] == "completed" and not (row["start"] or 0) <= row["end"]]
    return [*wrong, *(row for row in rows if row["outcome"] != "completed" or not row["timed"])]


def check(section, rc, lines):
    """What was not as it should be."""
    if section == "never":
        return [] if rc else ["the job should have failed"]
    if rc:
        return [f"exit code {rc}"]
    if section == "stalled":
        caught = [line["while stalled"] for line in lines if "while stalled" in line]
        return (
            []
            if caught and caught[0]["start"] is None and caught[0]["timed"]
            else [f"not seen as not started: {caught}"]
        )
    if section == "capture":
        captured = [line for line in lines if line.get("outcome") == "not_recorded"]
        return [] if len(captured) == 1 else [f"one captured call, not {len(captured)}"]
    return wrong_rows(lines) if section in ("sync", "asynchronous") else []


def main():
    out = pathlib.Path(sys.argv[1])
    import torch

    nccl = torch.cuda.nccl.version()
    print(torch.__version__, torch.cuda.get_device_name(0), "NCCL", nccl)
    plan = [(section, 1) for section in ("sync", "asynchronous", "coalesced", "capture", "stalled", "ddp", "fsdp2")]
    if tuple(nccl[:2]) >= TWO_RANK_NCCL:
        plan += [(section, 2) for section in ("sync", "never")]
    else:
        print("two ranks on one GPU need NCCL 2.30: left out")
    table = []
    for section, ranks in plan:
        rc, seconds, lines = job(section, out / f"{section}-{ranks}", ranks)
        print(f"-- {section}, {ranks} rank(s)", *lines, sep="\n   ")
        table.append((f"{section} x{ranks}", rc, seconds, check(section, rc, lines)))
        if section in ("ddp", "fsdp2"):
            rc, seconds, plain = job(section, out, ranks, recorded=False)
            print("   without roundk:", *plain)
            same = [
                a["last_output"] == b["last_output"] for a, b in zip(lines, plain, strict=False) if "last_output" in a
            ]
            table.append((f"{section} x{ranks} plain", rc, seconds, [] if same and all(same) else ["other result"]))
    print(f"{'section':20} {'exit':>4} {'s':>6}  wrong")
    for section, rc, seconds, wrong in table:
        print(f"{section:20} {rc:4} {seconds:6.1f}  {wrong or '-'}")
    sys.exit(any(wrong for *_, wrong in table))


if __name__ == "__main__":
    main()
