"""Where the runs come from: incidents on named hosts, generated jobs, cases of the corpus, recorded run directories.

Each gives the files of one run in a folder of its own and the truth that goes with them, which is that of whoever made
them: the planter of a fault, `expected.json` of a case or a sample. Nothing here asks roundk.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import pathlib
import random
import re
import shutil
import uuid

import dumps
from generated import emit_dumps, emit_logs, emit_table, generate
from generated.faults import PLANTERS
from planted.incidents import ERRORS, INCIDENTS, Place, S, incident
from planted.plan import Truth

TESTS = pathlib.Path(__file__).resolve().parents[2]
CASES = TESTS / "corpus" / "cases"
SAMPLES = TESTS.parent / "sample_traces"

WEIGHTS = {"incident": 52, "generated": 20, "corpus": 14, "sample": 14}
"""Shares of the sources in hundredths."""

HOSTS = tuple(f"gpu-{number:03d}" for number in range(120))
DEVICES = tuple(f"mlx5_{number}" for number in range(8))
SHAPES = ((4, 1), (8, 1), (4, 2), (8, 2), (3, 4), (2, 8), (4, 4))
"""Hosts, and ranks per host."""

NETWORK_FAULTS = ("TRANSPORT_ERROR", "LINK_DOWN", "LINK_FLAP", "LINK_DEGRADED", "CONGESTION", "MTU_MISMATCH")
DIVERGED = ("CODE_DIVERGENCE",)
GENERATED = {
    "idle": ("HOST_STALL",),
    "stopped": ("PROCESS_STOPPED",),
    # Its last words are a traceback; without the log, only that it is gone may be seen.
    "dead": ("EXCEPTION", "PROCESS_EXITED", "PROCESS_KILLED"),
    # To leave the loop a step early is to go another way too.
    "exited_early": ("PROCESS_EXITED", "CODE_DIVERGENCE"),
    "two_faults": ("HOST_STALL", "EXCEPTION", "PROCESS_EXITED", "PROCESS_KILLED"),
    "device_stuck": ("GPU_FAULT", "NVLINK_FAULT"),
    "network": NETWORK_FAULTS,
    "order_deadlock": DIVERGED,
    "skipped": DIVERGED,
    "extra": DIVERGED,
    "signature": DIVERGED,
    "half_split": DIVERGED,
    "pair_split": DIVERGED,
    "p2p_unpaired": DIVERGED,
}
"""Kind of generated job -> the causes that are right; where nothing in dumps tells one, UNDETERMINED is honest."""

LARGEST_WORLD = 24
"""Generated jobs of more ranks take a second each."""
ONE_OF_MANY_SEEDS = 1_000_000
JOB_ID = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def place(rng, begin_ns, kind, hosts=None):
    """A random place for an incident."""
    shapes = SHAPES
    if kind == "duplicate_gpu":
        shapes = [shape for shape in SHAPES if shape[1] > 1]
    if "link" in kind or kind in ("transport_error", "network_config"):
        shapes = [shape for shape in SHAPES if shape[0] > 2]
    count, per_host = rng.choice(shapes)
    return Place(tuple(hosts or rng.sample(HOSTS, count)), per_host, begin_ns, rng.choice(DEVICES))


def of_incident(rng, kind, begin_ns, folder, *, by_host=None):
    """An incident; its files are in one folder, or, if not said otherwise at times, in one of each host."""
    where = place(rng, begin_ns, kind)
    left = incident(kind, where, rng.randrange(where.world), rng)
    write(left, where, folder, by_host=rng.random() < 0.4 if by_host is None else by_host, as_json=rng.random() < 0.15)
    return left.truth


def write(left, where, folder, *, by_host=False, as_json=False):
    """Write what an incident left behind: all in one folder, or what each host has in its own."""
    made = {}
    for rank, value in left.dumps.items():
        name = f"nccl_trace_rank_{rank}" + (".json" if as_json else "")
        made[f"{where.host(rank)}/{name}" if by_host else name] = value
    for host in where.hosts if by_host else ("",):
        lines = [text for on, text in left.lines if not by_host or on == host]
        if lines:
            made[f"{host}/job.log" if by_host else "job.log"] = "\n".join([*lines, ""]).encode()
    made |= {f"ras-{number}.json": answer.encode() for number, answer in enumerate(left.ras)}
    dumps.write(folder, made)


def of_generated(rng, kind, begin_ns, folder):
    """A made-up job: dumps of a random torch version with losses, half of those with a log, or a table of calls."""
    case = _generated(rng, kind)
    shift = begin_ns - emit_dumps.START_NS
    if rng.random() < 0.15:
        emit_table.write(case, folder)
    else:
        form = emit_dumps.form(case)
        with _starting_at(emit_dumps.START_NS + shift):
            emit_dumps.write(case, form, folder)
            case.lost = frozenset(form.missing | form.truncated | form.empty)
            if rng.random() < 0.5:
                emit_logs.write(case, folder / "job.log")
    truth = case.truth
    named = tuple(sorted(truth.guilty | truth.spared))
    return Truth(
        kind,
        GENERATED[kind],
        tuple(dict.fromkeys((*truth.right, *truth.right_empty, *truth.honest))),
        named,
        tuple(rank for rank in range(case.world) if rank not in named),
        lost=tuple(sorted(case.lost)),
    )


def _generated(rng, kind):
    """A job of that kind: the first draw of a seed is its kind."""
    while True:
        seed = rng.randrange(ONE_OF_MANY_SEEDS)
        if random.Random(seed).choice(tuple(PLANTERS)) != kind:
            continue
        case = generate.make(seed)
        # One that stops after all calls of the others leaves nothing behind that could tell.
        if case.world <= LARGEST_WORLD and any(node.end is None for nodes in case.run.calls.values() for node in nodes):
            return case


class _starting_at:  # noqa: N801 - used as a function
    """Generated jobs begin at another time than the one that their tests are used to."""

    def __init__(self, ns):
        self.ns = ns

    def __enter__(self):
        self.before = emit_dumps.START_NS
        emit_dumps.START_NS = emit_logs.START_NS = self.ns

    def __exit__(self, *_):
        emit_dumps.START_NS = emit_logs.START_NS = self.before


@functools.cache
def corpus():
    """Cases of the corpus whose expected answer has a cause: name -> expected.json."""
    found = {}
    for path in sorted(CASES.glob("*/expected.json")):
        told = json.loads(path.read_text())
        causes = [root.get("cause") for root in told["roots"]]
        if all(causes) and "UNDETERMINED" not in causes:
            found[path.parent.name] = told
    return found


def of_corpus(rng, name, begin_ns, folder):
    """A case of the corpus, as it is."""
    case, told = CASES / name, corpus()[name]
    if (case / "input").is_dir():
        shutil.copytree(case / "input", folder, dirs_exist_ok=True)
    else:
        spec = importlib.util.spec_from_file_location(f"corpus_{name}", case / "make.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        folder.mkdir(parents=True, exist_ok=True)
        module.make(folder)
    innocent = told.get("must_not_blame", {})
    return Truth(
        name,
        _each(root["cause"] for root in told["roots"]),
        _each(root["structure"] for root in told["roots"]),
        _named(told["roots"], "culprit_ranks"),
        tuple(innocent.get("ranks", ())),
        _named(told["roots"], "culprit_hosts"),
        tuple(innocent.get("hosts", ())),
    )


def _each(words):
    return tuple(dict.fromkeys(words))


def _named(roots, name):
    """Who may be named by any of the acceptable answers; None where one of them leaves it open."""
    if not all(name in root for root in roots):
        return None
    return tuple(sorted({one for root in roots for one in root[name]}))


@functools.cache
def samples():
    """Recorded run directories of jobs in which something went wrong: name -> expected.json."""
    told = {path.parent.name: json.loads(path.read_text()) for path in sorted(SAMPLES.glob("*/expected.json"))}
    return {name: one for name, one in told.items() if one["cause"] is not None}


def of_sample(rng, name, begin_ns, folder):
    """A recorded run directory, as it is, but that it is a job of its own."""
    told = samples()[name]
    shutil.copytree(SAMPLES / name, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("expected.json"))
    _renamed(rng, folder)
    roots = [told, *told.get("also", ())]
    links = [f"{link['host']}/{link['device']}" for root in roots for link in root["culprit_links"]]
    return Truth(
        name,
        _each(cause for root in roots for cause in _words(root["cause"])),
        _each(structure for root in roots for structure in _words(root["structure"])),
        tuple(sorted({rank for root in roots for rank in root["culprit_ranks"]})),
        tuple(told["must_not_blame"]["ranks"]),
        None,
        tuple(told["must_not_blame"]["hosts"]),
        tuple(links) if links else None,
        goes_on=told["status"] == "slow",
    )


def _renamed(rng, folder):
    """Another id of the job, of the same length, in all files: torchrun draws one for each job."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    found = {one for path in files for one in JOB_ID.findall(path.read_bytes())}
    for old in sorted(found):
        new = str(uuid.UUID(int=rng.getrandbits(128), version=4)).encode()
        for path in files:
            if old in (data := path.read_bytes()):
                path.write_bytes(data.replace(old, new))


def _words(told):
    return told if isinstance(told, list) else [told]


MAKERS = {
    "incident": (of_incident, lambda: tuple(INCIDENTS)),
    "generated": (of_generated, lambda: tuple(GENERATED)),
    "corpus": (of_corpus, lambda: tuple(corpus())),
    "sample": (of_sample, lambda: tuple(samples())),
}
"""Source -> what makes a run of it, and the kinds it has."""

LOG_ONLY = ("exception_alone", "duplicate_gpu", "network_config")
"""Incidents of which a log is all there is."""

QUIET = "[W123 socket.cpp:755] [c10d] The client socket cannot be initialized to connect to [localhost]:29500."


def of_torchrun(rng, folder, world, rank):
    """What torchrun keeps of an attempt on one host: a folder per local rank with what it wrote; one rank raises."""
    for one in range(world):
        lines = [QUIET]
        if one == rank:
            said = ["Traceback (most recent call last):", '  File "/app/train.py", line 61, in main']
            # torch puts the rank before what an uncaught exception prints, once its process groups are there.
            lines += [f"[rank{one}]: {text}" for text in (*said, "    batch = next(batches)", rng.choice(ERRORS))]
        where = folder / str(one)
        where.mkdir(parents=True)
        (where / "stderr.log").write_text("\n".join([*lines, ""]))
        (where / "stdout.log").write_text("step 1 loss 3.2\n")
    others = tuple(one for one in range(world) if one != rank)
    return Truth("exception_torchrun", ("EXCEPTION",), ("ERROR_REPORTED",), (rank,), others)


RESTARTED = tuple(kind for kind in INCIDENTS if kind not in ("duplicate_gpu", "network_config"))


def of_attempts(rng, kind, begin_ns, folders):
    """Attempts of one job on the same hosts, which all fail the same way on the same rank, an hour apart."""
    where = place(rng, begin_ns, kind)
    rank = rng.randrange(where.world)
    truths = []
    for number, folder in enumerate(folders):
        here = Place(where.hosts, where.per_host, begin_ns + number * 3600 * S, where.device)
        left = incident(kind, here, rank, random.Random(rng.random()))
        write(left, here, folder)
        truths.append(left.truth)
    return truths
