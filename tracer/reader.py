"""Reads a run directory into the tables of `schema`, whatever state its processes left it in.

Nothing that is readable is dropped for what is not: cut-short files, missing ranks and other schema versions are told
in `Run.unreadable`, `Run.truncated` and `Run.notes`.
"""

from __future__ import annotations

import glob
import io
import json
import pathlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from roundk.tracer import files as regular
from roundk.tracer import read_links, rundir, schema, side_lines, words
from roundk.tracer.errors import RunError
from roundk.tracer.read_tables import Process, Tables, tables_of

if TYPE_CHECKING:
    from collections.abc import Iterator

RUN_FILE = rundir.RUN_FILE
HOST_FILES = ("rank-*-*.jsonl", "launcher-*.jsonl", "links-*.jsonl")
"""Patterns of files by which a host's folder, and so a run directory without its first file, is known."""

_SEGMENT = re.compile(r"((?:rank-\d+|links)-\d+(?:\.\d+)?)-\d+\.arrow")
_LINKS = re.compile(r"links-\d+(?:\.\d+)?\.jsonl")
_LATE_NS = 5_000_000_000
"""The sign of life is as old as this at most when the start is noted."""


@dataclass(frozen=True)
class Problem:
    """A file that could not be read, and why; the path is relative to the run directory."""

    path: str
    why: str


@dataclass(frozen=True)
class Run:
    """A run directory, read.

    Attributes:
        path: The directory.
        calls, groups, ranks, sites, facts, stacks, steps: Tables of `schema`, of the last start of the job's ranks.
        counters: Samples of the hosts' links.
        world_size: Ranks of the job; None where no file tells.
        command: What the launcher ran; empty without a launcher.
        started_ns: Unix time at which the first of its launchers started.
        ended_ns: Unix time of its end marker; None: the end of the job is not known.
        exit_code: Exit code of the command, negative after a signal.
        last_alive_ns: Unix time of the last sign of life of anything in the run.
        attempts: Starts of the job's ranks found (torchelastic restarts, or several jobs one after another).
        unreadable: Files that could not be read, or not to their end.
        truncated: Ranks with a cut-short file.
        notes: What else there is to say about the recording.
    """

    path: pathlib.Path
    calls: pa.Table
    groups: pa.Table
    ranks: pa.Table
    sites: pa.Table
    facts: pa.Table
    stacks: pa.Table
    steps: pa.Table
    counters: pa.Table
    world_size: int | None
    command: tuple[str, ...]
    started_ns: int | None
    ended_ns: int | None
    exit_code: int | None
    last_alive_ns: int | None
    attempts: int
    unreadable: tuple[Problem, ...]
    truncated: tuple[int, ...]
    notes: tuple[str, ...]


def is_run(path: pathlib.Path) -> bool:
    """Whether a directory is a run directory, by what it holds."""
    if not regular.is_folder(path):
        return False
    told = says_run(path / RUN_FILE)
    if told is not None:
        return told
    # Not pathlib's glob, which raises where a folder beside this one vanishes meanwhile.
    return any(any(glob.iglob(f"*/{one}", root_dir=path)) for one in HOST_FILES)  # noqa: PTH207


def says_run(path: pathlib.Path) -> bool | None:
    """Whether a file called `RUN_FILE` is that of a run directory; None: what is in it can't be told."""
    try:
        with regular.opened(path) as file:
            return "roundk_schema" in json.load(file)
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def read_run(path: pathlib.Path) -> Run:
    """Read a run directory.

    Raises:
        RunError: it is not one, or nothing in it can be read.
    """
    if not is_run(path):
        raise RunError(
            f"{path}: not a run directory; name the one that `roundk run` wrote (it holds {rundir.RUN_FILE})"
        )
    files = _Files(path)
    if not (files.processes or files.launchers or files.agents or files.early or files.samplers):
        why = "; ".join(f"{problem.path}: {problem.why}" for problem in files.unreadable) or "it holds no files of ours"
        raise RunError(f"{path}: nothing in this run directory can be read: {why}")
    tables = tables_of(files.processes, files.agents, files.launchers, files.early)
    counters, cut = read_links.counters_of(files.samplers)
    unreadable = [*files.unreadable, *(Problem(_relative(path, name), why) for name, why in [*tables.cut, *cut])]
    return _run(path, files, tables, counters, tuple(unreadable))


def _run(path: pathlib.Path, files: _Files, tables: Tables, counters: pa.Table, unreadable: tuple[Problem, ...]) -> Run:
    launcher_lines = [line for _, lines in files.launchers for line in lines]
    starts = [line for line in launcher_lines if line.get("kind") == "start"]
    ends = [line for line in launcher_lines if line.get("kind") == "end"]
    ended = len(ends) >= len(starts) > 0
    last = max(starts, key=lambda line: int(line["time_ns"]), default={})
    alive = [int(line["time_ns"]) for line in launcher_lines if line.get("kind") == "alive"]
    return Run(
        path=path,
        calls=tables.calls,
        groups=tables.groups,
        ranks=tables.ranks,
        sites=tables.sites,
        facts=_with(tables.facts, read_links.facts_of(files.samplers)),
        stacks=tables.stacks,
        steps=tables.steps,
        counters=counters,
        world_size=tables.world_size,
        command=tuple(last.get("command") or ()),
        started_ns=min((int(line["time_ns"]) for line in starts), default=None),
        ended_ns=max(int(line["time_ns"]) for line in ends) if ended else None,
        exit_code=next((int(line["code"]) for line in reversed(ends) if line["code"]), 0) if ended else None,
        last_alive_ns=max([*alive, *tables.alive_ns], default=None),
        attempts=tables.attempts,
        unreadable=unreadable,
        truncated=tables.truncated,
        notes=(*_version_notes(files), *_earlier_notes(files.earlier), *tables.notes),
    )


def _with(facts: pa.Table, more: list[dict[str, Any]]) -> pa.Table:
    """Facts and more of them, by time."""
    return pa.concat_tables([facts, pa.Table.from_pylist(more, schema=schema.FACTS)]).sort_by("time_ns")


def _earlier_notes(count: int) -> list[str]:
    files = "1 file" if count == 1 else f"{count:,} files"
    return [f"{files} of processes that were gone before the last run here began: not part of it"] if count else []


def _version_notes(files: _Files) -> list[str]:
    headers = [process.header for process in files.processes if process.header]
    headers += [line for sampler in files.samplers for line in sampler.of("start") if "schema" in line]
    found = {header.get("schema") for header in headers} - {words.SCHEMA_VERSION}
    return [
        f"written with schema {version}, read by a roundk that knows {words.SCHEMA_VERSION}: columns that only one of "
        "them has are left out"
        for version in sorted(found, key=str)
    ]


def _relative(run: pathlib.Path, path: pathlib.Path | str) -> str:
    return regular.name_of(pathlib.Path(path).relative_to(run))


class _Files:
    """The files of a run directory, their lines parsed."""

    def __init__(self, run: pathlib.Path) -> None:
        self._run = run
        self.processes: list[Process] = []
        self.agents: list[tuple[str, list[dict[str, Any]]]] = []
        self.launchers: list[tuple[str, list[dict[str, Any]]]] = []
        self.early: list[tuple[str, list[dict[str, Any]]]] = []
        self.samplers: list[read_links.Sampler] = []
        self.unreadable: list[Problem] = []
        self.earlier = 0
        """Files of processes that were gone before the last run in this directory began."""
        try:
            entries = sorted(run.iterdir())
        except OSError as error:
            raise RunError(f"{run}: cannot be listed: {error.strerror}") from None
        for entry in entries:
            try:
                is_folder = entry.is_dir()
            except OSError as error:
                self.unreadable.append(Problem(_relative(run, entry), str(error.strerror)))
                continue
            if is_folder:
                self._read_host(entry)

    def _read_host(self, folder: pathlib.Path) -> None:
        segments: dict[str, list[str]] = {}
        host = regular.name_of(folder.name)
        try:
            names = sorted(entry.name for entry in folder.iterdir())
        except OSError as error:
            self.unreadable.append(Problem(host, str(error.strerror)))
            return
        for name in names:
            if match := _SEGMENT.fullmatch(name):
                segments.setdefault(match[1], []).append(str(folder / name))
        launchers: list[tuple[str, list[dict[str, Any]]]] = []
        self._read_kind(folder, names, "launcher-", side_lines.PARENT, launchers)
        launchers, began = _of_this_run(launchers)
        self.launchers += launchers
        self._read_kind(folder, names, "agent-", side_lines.PARENT, self.agents, began)
        self._read_kind(folder, names, "early-", side_lines.EARLY, self.early, began)
        for name in names:
            if _LINKS.fullmatch(name):
                lines = self._lines(folder / name, side_lines.SAMPLER)
                own = segments.pop(name.removesuffix(".jsonl"), [])
                if _sampler_began_ns(lines) >= began:
                    self.samplers.append(read_links.Sampler(f"{host}/{name}", host, lines, own))
                else:
                    self.earlier += 1
        for name, (rank, pid) in sorted(rundir.rank_files(str(folder)).items()):
            lines = self._lines(folder / name, side_lines.RANK)
            stem = name.removesuffix(".jsonl")
            stacks = self._text(folder / f"{stem}.stacks")
            process = Process(f"{host}/{name}", rank, pid, host, lines, segments.pop(stem, []), stacks)
            process.said_code = self._said_code(folder / f"{stem}.exit")
            started = side_lines.began_ns(process.started_ns, process.alive_ns)
            if started >= began or not process.started_ns:
                self.processes.append(process)
            else:
                self.earlier += 1
        for stem, paths in segments.items():
            why = f"{len(paths)} segment(s) without the side file {stem}.jsonl, which names groups and places"
            self.unreadable.append(Problem(f"{host}/{stem}", why))

    def _read_kind(
        self,
        folder: pathlib.Path,
        names: list[str],
        prefix: str,
        kinds: side_lines.Kinds,
        into: list[tuple[str, list[dict[str, Any]]]],
        since_ns: int = 0,
    ) -> None:
        found = [name for name in names if name.startswith(prefix) and name.endswith(".jsonl")]
        for name in found:
            lines = self._lines(folder / name, kinds)
            if side_lines.last_ns(lines) >= since_ns:
                into.append((f"{regular.name_of(folder.name)}/{name}", lines))
            else:
                self.earlier += 1

    def _text(self, path: pathlib.Path) -> str:
        """The text of a file; empty where there is none."""
        return io.TextIOWrapper(io.BytesIO(self._content(path) or b""), encoding="utf-8", errors="replace").read()

    def _said_code(self, path: pathlib.Path) -> int | None:
        """The exit code that a process stored as it left: in two bytes, equal once both are."""
        content = self._content(path) or b""
        return content[0] if len(content) > 1 and content[0] == content[1] else None

    def _content(self, path: pathlib.Path) -> bytes | None:
        """What is in a file; None where there is none."""
        try:
            with regular.opened(path) as file:
                return file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            self.unreadable.append(Problem(_relative(self._run, path), str(error.strerror)))
            return None

    def _lines(self, path: pathlib.Path, kinds: side_lines.Kinds) -> list[dict[str, Any]]:
        """The lines of a file that can be used; the first of the others is told with their number."""
        lines, bad = side_lines.sorted_out(self._parsed(path), kinds)
        if bad:
            more = f"; so {_others(len(bad) - 1)}" if len(bad) > 1 else ""
            why = f"this line is left out: {bad[0].why}{more}"
            self.unreadable.append(Problem(f"{_relative(self._run, path)}:{bad[0].at}", why))
        return lines

    def _parsed(self, path: pathlib.Path) -> Iterator[tuple[int, dict[str, Any] | None]]:
        """Number and content of each line of a file; None: it is no whole JSON object."""
        written = self._text(path).rstrip("\0 \n")  # files are made larger than what is in them
        for number, raw in enumerate(written.split("\n"), start=1):
            if raw.strip("\0 "):
                yield number, side_lines.object_of(raw)


def _others(count: int) -> str:
    return f"is {count} other line" if count == 1 else f"are {count:,} other lines"


def _of_this_run(
    launchers: list[tuple[str, list[dict[str, Any]]]],
) -> tuple[list[tuple[str, list[dict[str, Any]]]], int]:
    """A host's launchers that belong to its last run, and when that began: not those that were gone before it did."""
    starts = {name: _began_ns(lines) for name, lines in launchers}
    last = max(starts.values(), default=0)
    kept = [(name, lines) for name, lines in launchers if side_lines.last_ns(lines) >= last]
    return kept, min((starts[name] for name, _ in kept), default=0)


def _began_ns(lines: list[dict[str, Any]]) -> int:
    """When a launcher began; 0 where its start is later than all that it did: a clock was put back, or damage."""
    start = side_lines.last_ns(line for line in lines if line.get("kind") == "start")
    last = side_lines.last_ns(line for line in lines if line.get("kind") != "start")
    return 0 if 0 < last < start - _LATE_NS else start


def _sampler_began_ns(lines: list[dict[str, Any]]) -> int:
    start = side_lines.last_ns(line for line in lines if line.get("kind") == "start")
    return side_lines.began_ns(start, side_lines.last_ns(lines))
