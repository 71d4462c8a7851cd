"""What is said of a job of which there is a log and nothing else, beyond the cases of the corpus."""

from __future__ import annotations

import pathlib
import tempfile
import time

import pytest
from jobs import Job

from roundk.analyze import sources
from roundk.analyze.diagnose import diagnose


def judged(**logs):
    with tempfile.TemporaryDirectory() as folder:
        for name, text in logs.items():
            (pathlib.Path(folder) / f"{name}.log").write_text(text)
        trace, _ = sources.load([folder])
        return diagnose(trace, now_ns=time.time_ns())


def raised(rank, error, *, line=70):
    head = f"[rank{rank}]: "
    frame = f'{head}  File "/srv/job/train.py", line {line}, in main\n'
    return f"{head}Traceback (most recent call last):\n{frame}{head}    step()\n{head}{error}\n"


LOST = raised(
    0,
    "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.cpp:77, remote process"
    " exited or there was a network error, NCCL version 2.27.5",
)
OWN = raised(2, "ValueError: bad batch", line=12)


@pytest.mark.parametrize("text", [LOST + OWN, OWN + LOST])
def test_the_place_in_the_file_decides_nothing(text):
    verdict = judged(job=text).verdicts[0]
    assert (verdict.culprit_ranks, verdict.cause) == ((2,), "EXCEPTION")
    assert verdict.victims.ranks == 1


def test_nor_does_the_order_of_files():
    assert judged(a=LOST, b=OWN).verdicts[0].culprit_ranks == (2,)
    assert judged(a=OWN, b=LOST).verdicts[0].culprit_ranks == (2,)


def test_a_caught_exception_is_not_the_end_of_a_rank():
    """Without a rank in front the program's own logging printed it; torch's hook prints the one that ended it."""
    caught = OWN.replace("[rank2]: ", "[rank2]:[W1129 23:00:00.000000000 train.py:12] ")
    lost = LOST.replace("[rank0]", "[rank2]")
    assert judged(job=caught + lost).verdicts[0].culprit_ranks == ()


def test_a_refusal_at_the_start_is_forgotten_when_the_job_went_on():
    refused = (
        "[W1129 23:00:00.000000000 socket.cpp:697] [c10d] The client socket has failed to connect to [node-a]:29500"
    )
    line = (
        "node-{0}:70{0}:80{0} [0] NCCL INFO ncclCommInitRank comm 0x55a{0} rank {0} nranks 2 cudaDev 0 nvmlDev 0 busId "
        "1b000 commId 0x1ad9 - Init {1}\n"
    )
    made = "".join(line.format(rank, state) for state in ("START", "COMPLETE") for rank in (0, 1))
    text = f"{refused} (errno: 111 - Connection refused).\n"
    assert judged(job=text).verdicts[0].structure == "STUCK_IN_INIT"
    assert judged(job=text + made).verdicts[0].structure == "INSUFFICIENT_EVIDENCE"


def test_absent_ranks_of_separate_logs_may_be_logs_that_are_not_here():
    line = (
        "node-{0}:70{0}:80{0} [0] NCCL INFO ncclCommInitRank comm 0x55a{0} rank {0} nranks 4 cudaDev 0 nvmlDev 0 busId "
        "1b000 commId 0x1ad9 - Init START\n"
    )
    text = [line.format(rank) for rank in (0, 1, 3)]
    together = judged(job="".join(text)).verdicts[0]
    apart = judged(a=text[0], b=text[1], c=text[2]).verdicts[0]
    assert (together.culprit_ranks, apart.culprit_ranks) == ((2,), (2,))
    assert (together.structure_confidence, apart.structure_confidence) == ("medium", "low")


def test_more_came_than_were_started():
    text = raised(
        0,
        "RuntimeError: Timed out initializing process group in store based barrier on rank: 0, for key: "
        "store_based_barrier_key:1 (world_size=8, worker_count=16, timeout=0:15:00)",
    )
    verdict = judged(job=text).verdicts[0]
    assert (verdict.structure, verdict.culprit_ranks) == ("STUCK_IN_INIT", ())
    assert "earlier start" in verdict.summary


def test_only_a_run_of_the_recorder_is_told_what_keeps_the_recorder_out():
    told = " ".join(Job().report(ended=5, exit_code=0).verdicts[0].next_steps)
    assert "python -I" in told
    made = "node-a:1:1 [0] NCCL INFO Bootstrap : Using eth0:192.0.2.1<0>\n"
    assert "python -I" not in " ".join(judged(job=made).verdicts[0].next_steps)
