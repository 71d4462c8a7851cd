"""What names tell of a run: which job and attempt it is of, which rank and dump, and whether a folder is a host's.

People name files as their scheduler's templates do. Nothing is taken for a job's id without a word or a form that
says so: `slurm-123.out`, `train-4711.err`, `dump_123_rank_0`, `job_77/`, `fr/123456/`, `run.retry2`.

Source: sbatch(1), "filename pattern"; torch/distributed/elastic/multiprocessing/api.py, `LogsSpecs` (torch 2.13);
the names of dumps in use are those of public launch scripts.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Final

FORMATS: Final = re.compile(r"(\.(json|jsonl|pickle|pkl|pt|log|txt|out|err|gz|bz2|xz|zst))+$", re.IGNORECASE)
"""Suffixes that say how a file is written."""

_NAMES: Final = 1 << 16
"""Names whose meaning is kept: the ranks of one run are called as those of the next."""
_SLURM: Final = re.compile(
    r"(?:^|[-_.])(?:slurm|sjob)[-_](?P<job>\d{1,10})(?:_(?P<task>\d{1,6})(?![^-_.]))?", re.IGNORECASE
)
_WORD: Final = re.compile(
    r"(?:^|[-_.])(?:slurm[-_]?)?(?:job|jobid|job[-_]id|jid)[-_=]?(?P<job>\d{1,10})(?:_(?P<task>\d{1,6})(?![^-_.]))?(?=$|[-_.])",
    re.IGNORECASE,
)
_PBS: Final = re.compile(r"\.[oe](?P<job>\d{2,10})(?:[.-](?P<task>\d{1,6}))?$")
_NUMBER: Final = re.compile(r"(?<![A-Za-z0-9])(?P<job>[1-9]\d{2,9})(?:_(?P<task>\d{1,6}))?(?=$|[-_.])")
_NO_ID: Final = re.compile(
    r"(?:^|[^a-z])(?:(?:local|global)?rank|node|host|worker|gpu|proc|pod|task|part|step|steps|epoch|iter|iteration|ckpt|checkpoint|seed|port|pid|"
    r"shard|chunk|stage|layer|dp|tp|pp|ep|cp|master|launcher|trainer|tid|version|v|n|x)[-_.]?$",
    re.IGNORECASE,
)
"""Words before a number that is no job's id."""
_DATE: Final = re.compile(r"20\d\d[-_.]?[01]\d[-_.]?[0-3]\d(?:[-_.T]?[0-2]\d[-_.]?[0-5]\d(?:[-_.]?[0-5]\d)?)?")
_ATTEMPT: Final = re.compile(
    r"(?P<before>^|.*?[-_.])?(?P<word>attempt|restart|retry|requeue)[-_.=]?(?P<number>\d{1,6})(?P<after>$|[-_.].*)",
    re.IGNORECASE,
)
_POD: Final = re.compile(
    r"(?P<job>.+?)[-_.](?:master|worker|launcher|chief|leader|head)[-_]\d+(?:[-_.][a-z0-9]{5})?", re.IGNORECASE
)
_RENDEZVOUS: Final = re.compile(r"(?P<id>.+)_(?P<random>[a-z0-9_]{8})")
"""What torchrun calls the folder of its logs: the rendezvous' id and what `tempfile.mkdtemp` appends."""
NO_RENDEZVOUS: Final = frozenset({"", "none", "default"})
_LEAST_FOLDER_ID: Final = 5
"""Digits of a number without a word before it that is taken for a job's id, as a folder's name or at its end."""

_DUMP: Final = re.compile(
    r"(?:.*[-_.])?(?:(?:nccl|comm_lib|gloo|hccl|xccl|rccl)_trace_rank_?\d+|_dump_\d+|(?:trace|dump)_rank_?\d+|"
    r"(?:nccl_trace|nccl_dump|ncclx_dump|comm_dump)_?\d+|flight_?recorder(?:[-_]\d+)?[-_]rank_?\d+)",
    re.IGNORECASE,
)
_CONTAINER: Final = re.compile(r"(?:nccl|comm_lib|gloo)_trace_rank_[\w.-]+_\d+")
_LAST: Final = re.compile(r"(?P<prefix>.*?)(?P<rank>\d{1,9})\D*$")
_VOCABULARY: Final = re.compile(
    r"(?:nccl|ncclx|comm|lib|gloo|hccl|xccl|rccl|mpi|ucc|trace|traces|dump|dumps|fr|flight|recorder|flightrecorder|"
    r"rank|torch|debug|info|comms|log|global)?"
)
_HOST: Final = re.compile(
    r"(?:(?:compute|gpu|cpu|hpc|k8s|aks|eks|gke|train|training)[-_.]?)*"
    r"(?:node|host|hostname|worker|nid|ip|pod|master|compute|cn|gn|dgx|hgx|gpu|h100|h200|b200|a100|server|srv|machine|"
    r"container|trainer|rank|local_rank|proc|agent|chief|launcher)(?:[-_.][a-z0-9]+|\d+[a-z]?|[a-z](?![a-z]))*|"
    r"[cghn]\d{1,6}(?:[-_][a-z]?\d{1,4})*|(?:\d{1,3}\.){3}\d{1,3}|[a-z][a-z0-9-]*(?:\.[a-z0-9-]+)+\.[a-z][a-z0-9-]+",
    re.IGNORECASE,
)
_RUN: Final = re.compile(
    r"(?:.*[-_.])?(?:run|exp|experiment|job|attempt|restart|retry|requeue|trial|version|try|seed|slurm|jobid)s?[-_.]?\d+"
    r"(?:[-_.].*)?",
    re.IGNORECASE,
)
_ROLES: Final = re.compile(
    r"(?:(?:nccl|torch|slurm|train|training|job|gpu|rank|host|node|stderr|comm|elastic|debug|hang|ray|trace|dist|run|exp)[-_])*(?:logs?|slurm|stdout|stderr|ckpts?|checkpoints?|traces?|dumps?|fr|flight_?recorder|nccl|gloo|ras|"
    r"inspector|hang_detector|detector|counters?|metrics|telemetry|monitoring|profil(?:e|es|er|ing)|debug|outputs?|artifacts?|"
    r"evidence|dmesg|kernel|hosts|nodes|workers|ranks|pods|torchelastic|torchrun|elastic|torch|cache|\.cache|tmp|env|"
    r"host_?evidence|dcgm|nvidia|ib|network|health)(?:[-_]?(?:dir|data|files?|folder))?",
    re.IGNORECASE,
)
_WHOLE: Final = frozenset(
    {"sys", "proc", "class", "infiniband", "net", "wandb", "tensorboard", "tb", "tb_logs", "lightning_logs", "mlruns"}
    | {"src", "code", "configs", "config", "conf", "scripts"}
)


@dataclass(frozen=True)
class Told:
    """What a name tells.

    Attributes:
        job: Id of the job.
        attempt: Number of the attempt.
        label: What tells the file's run from others in its folder; None: nothing does.
    """

    job: str | None = None
    attempt: int | None = None
    label: str | None = None


def stem(name: str) -> str:
    """A file's name without the suffixes of formats and compressions."""
    return FORMATS.sub("", name)


@functools.lru_cache(_NAMES)
def of_file(name: str) -> Told:
    """What the name of a log or another file tells, a dump excepted."""
    base = stem(name)
    base, attempt = _without_attempt(base)
    for pattern, text in ((_PBS, name), (_SLURM, base), (_WORD, base)):
        if found := pattern.search(text):
            return _told(found, attempt)
    dated = _DATE.search(base)
    rest = base.replace(dated[0], "#") if dated else base
    # Slurm's users write `%x-%j.out`, and `%j.log`: there a short number may count something else.
    least = 3 if re.search(r"\.(out|err)\b", name) else 4
    for found in _NUMBER.finditer(rest):
        if len(found["job"]) >= least and not _NO_ID.search(rest[: found.start()]):
            return _told(found, attempt)
    if pod := _POD.fullmatch(base):
        return Told(pod["job"], attempt, pod["job"])
    if attempt is not None and base:
        return Told(base, attempt, f"{base} {attempt}")
    return Told(None, attempt, dated[0] if dated else None)


def _told(found: re.Match[str], attempt: int | None) -> Told:
    job = found["job"] + (f"_{found['task']}" if found["task"] else "")
    return Told(job, attempt, job if attempt is None else f"{job} {attempt}")


def _without_attempt(name: str) -> tuple[str, int | None]:
    found = _ATTEMPT.fullmatch(name)
    if found is None:
        return name, None
    return ((found["before"] or "").rstrip("-_.") + found["after"]), int(found["number"])


@functools.lru_cache(_NAMES)
def of_dump(prefix: str) -> Told:
    """What the name of a dump tells by what stands before the rank, beside words that any dump's name has."""
    words = [word for word in re.split(r"[-_.]+", prefix) if not _VOCABULARY.fullmatch(word.lower())]
    words = [word for word in words if not is_host(word)]
    label = "_".join(words) or None
    bare, attempt = _without_attempt(label or "")
    numbers = re.fullmatch(r"(?:.*_)?(?P<job>[1-9]\d{2,9})(?:_(?P<task>\d{1,6}))?", bare)
    if numbers and not _DATE.fullmatch(numbers["job"]):
        return Told(_told(numbers, None).job, attempt, label)
    return Told(None, attempt, label)


def of_folder(name: str) -> Told:
    """What the name of a run's folder tells; of one called as an attempt and no more (`attempt_1`): no job."""
    bare, attempt = _without_attempt(name)
    return Told(_folder_id(bare) or (bare if attempt is not None and bare else None), attempt)


def of_attempts(name: str) -> str:
    """The job whose attempts lie in a folder: torchrun calls it by the rendezvous' id, where it was given one."""
    found = _RENDEZVOUS.fullmatch(name)
    if found and found["id"].lower() not in NO_RENDEZVOUS and not found["random"].isdecimal():
        return _folder_id(found["id"]) or found["id"]
    return _folder_id(name) or name


def is_rendezvous(name: str) -> bool:
    """Whether a folder is called by a rendezvous' id that a job was given."""
    found = _RENDEZVOUS.fullmatch(name)
    return found is not None and found["id"].lower() not in NO_RENDEZVOUS


def _folder_id(name: str) -> str | None:
    for pattern in (_SLURM, _WORD):
        if found := pattern.search(name):
            return _told(found, None).job
    dated = _DATE.search(name)
    rest = name.replace(dated[0], "#") if dated else name
    for found in _NUMBER.finditer(rest):
        if len(found["job"]) >= _LEAST_FOLDER_ID and not _NO_ID.search(rest[: found.start()]):
            return _told(found, None).job
    return None


def is_dump(name: str) -> bool:
    """Whether a file is a rank's dump by its name, whatever it holds."""
    base = stem(name)
    return _DUMP.fullmatch(base) is not None or _CONTAINER.fullmatch(base) is not None


@functools.lru_cache(_NAMES)
def rank(name: str) -> tuple[str, int] | None:
    """What stands before the rank in the name of a dump, and the rank; None: there is no number."""
    found = _LAST.fullmatch(stem(name))
    return (found["prefix"], int(found["rank"])) if found else None


@functools.lru_cache(_NAMES)
def is_host(name: str) -> bool:
    """Whether a name is one that hosts, pods or workers have."""
    return _HOST.fullmatch(name) is not None and not is_run(name)


def is_run(name: str) -> bool:
    """Whether a folder's name says that it is one run of several."""
    return _RUN.fullmatch(name) is not None or _DATE.search(name) is not None or _folder_id(name) is not None


def is_role(name: str) -> bool:
    """Whether a folder's name says what part of a run it holds."""
    return _ROLES.fullmatch(name) is not None


def is_whole(name: str) -> bool:
    """Whether a folder is never looked into for several runs: a copy of /sys, another tool's."""
    return name.lower() in _WHOLE


def pattern(name: str) -> str:
    """A name with its numbers left out: files of one pattern are alike."""
    return re.sub(r"\d+", "#", name)
