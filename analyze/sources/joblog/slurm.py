"""Messages of Slurm (srun, slurmstepd) and of mpirun about tasks that ended.

`slurmstepd: error: Detected 1 oom_kill event in StepId=7.0` (older: `oom-kill event(s) in step 7.0`), `srun: error:
node-a: tasks 8-15: Exited with exit code 1`, `...: task 3: Killed`, `...: Out Of Memory`, `... *** STEP 7.0 ON node-a
CANCELLED AT 2026-09-18T19:29:24 DUE TO TIME LIMIT ***`, `DUE TO NODE FAILURE`, `DUE TO PREEMPTION`, `srun: error:
Node failure on node-b`, `srun: Job step aborted`; `mpirun noticed that process rank 3 with PID 7 on node node-a
exited on signal 9 (Killed).`

A task is a rank only where one task runs one rank; under torchrun it is a host. A step that is cancelled is an echo
unless its reason says otherwise, and so is a task that was `Terminated` or `Killed` after the first.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from typing import Final

from roundk.analyze.sources.joblog import clock
from roundk.analyze.sources.joblog.events import Event, number, present, rank_number, ranks, short

LITERALS: Final = ("slurmstepd", "srun: ", "noticed that process rank")

_OOM: Final = re.compile(
    r"Detected (?P<events>\d+) oom[-_]kill event(?:\(?s?\)?) in (?:StepId=|step )(?P<step>[\w+]{1,60}(?:\.\w{1,20})?)"
)
_CANCELLED: Final = re.compile(
    r"\*\*\* (?P<what>STEP|JOB) (?P<id>[\w.+]{1,60})(?: ON (?P<node>[\w.-]+))? CANCELLED AT (?P<at>[\d:T-]{10,30})"
    r"(?: DUE TO (?P<reason>[^*\n]{1,200}?))?,? ?\*\*\*"
)
_TASK: Final = re.compile(r"srun: error: (?P<node>[\w.-]+): tasks? (?P<tasks>[\d,-]{1,4000}): (?P<how>[^\n]{1,200})")
_CODE: Final = re.compile(r"Exited with exit code (?P<code>\d{1,3})")
_NODE: Final = re.compile(r"srun: error: Node failure on (?P<node>[\w.,\[\]-]{1,200})")
_ABORTED: Final = re.compile(
    r"srun: (?:error: )?Job step aborted|srun: Force Terminated|srun: Terminating (?:StepId=|job step )"
)
_MPI: Final = re.compile(
    r"noticed that process rank (?P<rank>\d{1,8}) with PID (?P<pid>\d{1,10}) on node (?P<node>[\w.-]+)"
    r" exited on signal (?P<signal>\d{1,3})"
)
_DEATHS: Final = {
    "Killed": signal.SIGKILL,
    "Segmentation fault": signal.SIGSEGV,
    "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS,
    "Terminated": signal.SIGTERM,
    "Interrupt": signal.SIGINT,
}
_REASONS: Final = (
    ("TIME LIMIT", "slurm_time_limit", "the time limit was reached"),
    ("NODE FAIL", "slurm_node_failure", "a node failed"),
    ("PREEMPT", "slurm_preempted", "the job was preempted"),
)


def parse(text: str) -> Iterator[Event]:
    """What a line of Slurm or mpirun says."""
    if (oom := _OOM.search(text)) is not None:
        fields = present(step=oom["step"], events=number(oom["events"]))
        yield Event(
            "slurm_oom", f"Slurm saw {oom['events']} OOM kill(s) in step {oom['step']}", fields, is_about_other=True
        )
    elif (cancelled := _CANCELLED.search(text)) is not None:
        yield _cancelled(cancelled)
    elif (task := _TASK.search(text)) is not None:
        yield _task(task)
    elif (node := _NODE.search(text)) is not None:
        yield Event(
            "slurm_node_failure",
            f"Slurm: {node['node']} failed",
            {"nodes": node["node"]},
            host=_one(node["node"]),
            is_about_other=True,
        )
    elif _ABORTED.search(text) is not None:
        yield Event("slurm_aborted", "Slurm ends the step", is_about_other=True)
    elif (mpi := _MPI.search(text)) is not None:
        fields = present(rank=rank_number(mpi["rank"]), pid=number(mpi["pid"]), exit_signal=number(mpi["signal"]))
        what = f"mpirun: rank {mpi['rank']} was ended by signal {mpi['signal']}"
        yield Event("mpirun_exit", what, fields, host=mpi["node"], pid=number(mpi["pid"]), is_about_other=True)


def _cancelled(line: re.Match[str]) -> Event:
    reason = (line["reason"] or "").upper()
    kind, why = next(
        ((kind, why) for word, kind, why in _REASONS if word in reason), ("slurm_cancelled", "it was cancelled")
    )
    fields = present(
        what=line["what"].lower(),
        id=line["id"],
        node=line["node"],
        reason=short(line["reason"]) if line["reason"] else None,
    )
    return Event(
        kind,
        f"Slurm ended {line['what'].lower()} {line['id']}: {why}",
        fields,
        at=clock.read(line["at"]),
        is_about_other=True,
    )


def _task(line: re.Match[str]) -> Event:
    how = line["how"].strip()
    code = _CODE.search(how)
    death = next((number for word, number in _DEATHS.items() if how.startswith(word)), None)
    fields = present(
        tasks=ranks(line["tasks"]),
        how=short(how),
        exit_code=number(code["code"]) if code else None,
        exit_signal=int(death) if death is not None else None,
        is_oom=True if "Out Of Memory" in how else None,
    )
    return Event(
        "slurm_task_exit",
        f"task(s) {short(line['tasks'])} of {line['node']}: {short(how)}",
        fields,
        host=line["node"],
        is_about_other=True,
    )


def _one(nodes: str) -> str | None:
    return nodes if "," not in nodes and "[" not in nodes else None
