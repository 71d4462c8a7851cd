"""Plain training scripts with a planted fault, recorded and explained: who, where, why, and the exit code.

The expected `seq` and `op` never come from roundk. In the scripts with manual collectives they follow from reading the
loop; for DDP and FSDP2 torch's own Flight Recorder counts the calls of a healthy run.
"""

from __future__ import annotations

import ast
import os
import signal
from dataclasses import dataclass, field

import harness
import pytest

ROUND = 6
ROUNDS = 10
CALLS_PER_ROUND = {"manual": 1, "manual_two": 2}


@dataclass(frozen=True)
class Scenario:
    """A fault and what has to be said of it. `end`: how the job ends.

    by itself: the peers give up, by an error or by the group's timeout, and torchrun ends the rest;
    terminate, interrupt: SIGTERM, SIGINT to the launcher once the hang is plain; kill: SIGKILL to all but the launcher.
    """

    fault: str
    rank: int
    structure: set[str]
    detail: set[str | None]
    cause: set[str]
    end: str = "by itself"
    scripts: tuple[str, ...] = ("manual",)
    seq: dict[str, int] = field(default_factory=dict)
    said: str = ""

    def __str__(self):
        return f"{self.fault}-{self.end}".replace(" ", "_")


FORMS = ("manual", "ddp", "fsdp2")
SCENARIOS = [
    Scenario("sleep", 1, {"RANK_NOT_ENTERED"}, {"IDLE", "BUSY"}, {"HOST_STALL", "UNDETERMINED"}, scripts=FORMS),
    Scenario("sleep", 1, {"RANK_NOT_ENTERED"}, {"IDLE", "BUSY"}, {"HOST_STALL", "UNDETERMINED"}, "terminate"),
    Scenario("sleep", 1, {"RANK_NOT_ENTERED"}, {"BUSY"}, {"HOST_STALL"}, "interrupt", said="faults.py"),
    Scenario(
        "sleep", 1, {"RANK_NOT_ENTERED"}, {"IDLE", "BUSY"}, {"HOST_STALL", "UNDETERMINED"}, "kill", ("manual_two",)
    ),
    Scenario("kill", 3, {"RANK_NOT_ENTERED"}, {"DEAD", "SILENT"}, {"PROCESS_KILLED", "UNDETERMINED"}, scripts=FORMS),
    Scenario("stop", 0, {"RANK_NOT_ENTERED"}, {"STOPPED"}, {"PROCESS_STOPPED"}, "kill"),
    Scenario("raise", 1, {"RANK_NOT_ENTERED"}, {"DEAD"}, {"EXCEPTION"}, scripts=FORMS, said="LookupError"),
    # With one call site nothing differs before the end, where rank 2 is one call short.
    Scenario("skip", 2, {"SKIPPED_CALL"}, {None}, {"CODE_DIVERGENCE"}, seq={"manual": ROUNDS}),
    Scenario("skip", 2, {"SKIPPED_CALL"}, {None}, {"CODE_DIVERGENCE"}, scripts=("manual_two",)),
    Scenario("size", 2, {"SIGNATURE_MISMATCH"}, {"SIZE"}, {"CODE_DIVERGENCE"}),
    Scenario("broadcast", 2, {"SIGNATURE_MISMATCH"}, {"OP"}, {"CODE_DIVERGENCE"}),
]
CASES = [(scenario, script) for scenario in SCENARIOS for script in scenario.scripts]


def run(start, path, script, **env):
    run = path / "run"
    env = {"FAULT_ROUND": str(ROUND), "ROUNDS": str(ROUNDS), **env}
    return run, start(harness.torchrun(harness.SCRIPTS / f"{script}.py"), dir=run, env=env)


def counted(path):
    """What Flight Recorder had seen, as (group, name) in order, by the number of the round about to begin."""
    lines = (line.split(" ", 1) for line in path.read_text().splitlines())
    return {int(number): ast.literal_eval(entries) for number, entries in lines}


@pytest.fixture(scope="session")
def flight_recorder(tmp_path_factory):
    """The number in its group and the name of the first call of round ROUND, as torch's Flight Recorder has them."""
    seen = {}

    def first_call(script):
        if script not in seen:
            path = tmp_path_factory.mktemp("flight_recorder")
            env = {"FAULT": "count", "COUNTS": str(path / "counts")}
            job = harness.Job(harness.torchrun(harness.SCRIPTS / f"{script}.py"), cwd=path, env=env, roundk=False)
            try:
                assert job.wait().code == 0
            finally:
                job.kill()
            counts = counted(path / "counts")
            before, after = counts[ROUND], counts[ROUND + 1]
            assert {group for group, _ in after} == {"0"}, "the scripts use one group"
            seen[script] = (len(before) + 1, after[len(before)][1])
        return seen[script]

    return first_call


FLIGHT_RECORDER_NAMES = {"all_reduce": "gloo:all_reduce", "all_gather_into_tensor": "gloo:all_gather"}
"""Flight Recorder's name on gloo of what the scripts call. FSDP2 calls `all_gather_into_tensor`
(torch 2.13, distributed/fsdp/_fully_shard/_fsdp_collectives.py); gloo files it under all_gather."""
OPS = {"manual": "all_reduce", "manual_two": "all_reduce", "ddp": "all_reduce", "fsdp2": "all_gather_into_tensor"}


@pytest.fixture
def place(request):
    """The `seq` and `op` of the first call of round ROUND."""

    def place(script):
        if script in CALLS_PER_ROUND:
            return CALLS_PER_ROUND[script] * (ROUND - 1) + 1, OPS[script]
        seq, name = request.getfixturevalue("flight_recorder")(script)
        assert name == FLIGHT_RECORDER_NAMES[OPS[script]]
        return seq, OPS[script]

    return place


@pytest.mark.parametrize("script", [*CALLS_PER_ROUND, "ddp", "fsdp2"])
def test_a_healthy_job_is_healthy(start, tmp_path, script, attempt):
    run_dir, job = run(start, tmp_path, script, FAULT="none")
    ended = job.wait()
    assert ended.code == 0, ended.stderr
    # The ranks share a stream: lines may run into each other.
    assert [ended.stdout.count(f"rank {rank} done") for rank in range(4)] == [1, 1, 1, 1]
    analysis = harness.analyze(run_dir)
    assert analysis.code == 0
    assert analysis.report["status"] == "healthy"
    assert (analysis.verdict["structure"], analysis.verdict["cause"]) == ("HEALTHY", None)
    assert analysis.verdict["culprit_ranks"] == []
    assert analysis.report["coverage"]["ranks_seen"] == 4


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nobody_is_blamed_when_a_job_that_was_well_is_ended(start, tmp_path, number, attempt):
    run_dir, job = run(start, tmp_path, "manual", ROUNDS="1000000")
    job.wait_until_plain()
    job.process.send_signal(number)
    assert job.wait().code != 0
    analysis = harness.analyze(run_dir)
    assert analysis.verdict["culprit_ranks"] == [], analysis.verdict
    assert analysis.verdict["structure"] == "INSUFFICIENT_EVIDENCE", analysis.verdict
    assert number.name in analysis.verdict["summary"]
    assert analysis.code == 3


@pytest.mark.parametrize(("scenario", "script"), CASES, ids=[f"{scenario}-{script}" for scenario, script in CASES])
def test_a_fault_is_found(start, place, tmp_path, scenario, script, attempt):
    seq, op = place(script)
    run_dir, job = run(start, tmp_path, script, FAULT=scenario.fault, FAULT_RANK=str(scenario.rank))
    if scenario.end != "by itself":
        job.wait_until_plain()
        if scenario.end == "kill":
            job.kill(but_launcher=True)
        else:
            job.process.send_signal({"terminate": signal.SIGTERM, "interrupt": signal.SIGINT}[scenario.end])
    ended = job.wait()
    assert ended.code != 0
    analysis = harness.analyze(run_dir)
    verdict = analysis.verdict
    assert verdict["structure"] in scenario.structure, verdict
    assert verdict["detail"] in scenario.detail, verdict
    assert verdict["cause"] in scenario.cause, verdict
    assert verdict["culprit_ranks"] == [scenario.rank], verdict
    assert (verdict["seq"], verdict["op"]) == (scenario.seq.get(script, seq), op), verdict
    assert scenario.said in verdict["summary"] + str(verdict["evidence"])
    assert analysis.code == 1


def test_a_rank_stopped_from_outside(start, tmp_path, attempt):
    run_dir, job = run(start, tmp_path, "manual", ROUNDS="1000000")
    # Round 6 is reached; rank 0 is stopped wherever it is by then, most likely inside a call.
    job.wait_for(lambda: len(list(job.marks.iterdir())) == 4, "all ranks in the loop")
    os.kill(int((job.marks / "rank0").read_text()), signal.SIGSTOP)
    job.wait_until_plain()
    job.kill(but_launcher=True)
    analysis = harness.analyze(run_dir)
    verdict = analysis.verdict
    where = {"RANK_NOT_ENTERED": [0], "ALL_ENTERED_NONE_COMPLETED": [], "PARTIAL_COMPLETION": []}
    assert verdict["structure"] in where, verdict
    assert verdict["culprit_ranks"] in ([0], where[verdict["structure"]]), verdict
    assert verdict["cause"] == "PROCESS_STOPPED", verdict
    assert verdict["op"] == "all_reduce", verdict
    assert analysis.code in {1, 3}
