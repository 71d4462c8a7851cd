"""From the files of a run directory, parsed, to the tables of `schema`: one numbering for all ranks."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from roundk.tracer import read_calls, read_ends, read_settings, read_stacks, schema, words

_Line = dict[str, Any]


@dataclass
class Process:
    """One process that took part: its side file's lines, the paths of its segments, the text of its stacks file.

    `said_code`: its exit code by itself.
    """

    source: str
    rank: int
    pid: int
    host: str
    lines: list[_Line]
    segments: list[str]
    stacks: str
    header: _Line = field(init=False)
    alive_ns: int = field(init=False)
    said_code: int | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.header = next(iter(self.of("process")), {})
        self.alive_ns = next((int(line["time_ns"]) for line in self.of("alive")), 0)

    def of(self, kind: str) -> list[_Line]:
        """The lines of one kind."""
        return [line for line in self.lines if line.get("kind") == kind]

    @property
    def started_ns(self) -> int:
        """Unix time at which recording began; 0 where the file does not tell."""
        return int(self.header.get("time_ns") or 0)

    @property
    def generation(self) -> tuple[str, int]:
        """Job and torchelastic restart count."""
        return read_ends.generation(self.header)


class Tables(NamedTuple):
    """The tables of a run and what was found beside them; see `reader.Run`."""

    calls: pa.Table
    groups: pa.Table
    ranks: pa.Table
    sites: pa.Table
    facts: pa.Table
    stacks: pa.Table
    steps: pa.Table
    world_size: int | None
    alive_ns: list[int]
    attempts: int
    cut: list[tuple[str, str]]
    truncated: tuple[int, ...]
    notes: tuple[str, ...]


def tables_of(
    processes: list[Process],
    agents: list[tuple[str, list[_Line]]],
    launchers: list[tuple[str, list[_Line]]],
    early: list[tuple[str, list[_Line]]],
) -> Tables:
    """Tables of the last start of the job's ranks."""
    ends = read_ends.Ends(agents, launchers, early)
    last, attempts, began_ns = _last_generation(processes, ends.of_ranks)
    by_rank = {
        process.rank: process
        for process in sorted(processes, key=lambda p: p.started_ns)
        # Whoever's first line is lost is of the last start where it still lived in it.
        if process.generation == last or (not process.header and process.alive_ns >= began_ns)
    }
    ends.keep(last)
    world_size = _size(_sizes(by_rank, ends.of_ranks))
    merge = _Merge()
    parts = [merge.add(process) for _, process in sorted(by_rank.items())]
    rows = [
        _rank_row(rank, by_rank.get(rank), merge.counts.get(rank), ends)
        for rank in range(max([world_size or 0, *(rank + 1 for rank in by_rank)]))
    ]
    ranks = {(process.host, process.pid): process.rank for process in by_rank.values()}
    facts = _facts(by_rank, [*agents, *launchers, *early], ranks, last)
    facts += read_settings.facts_of(by_rank.values(), launchers)
    return Tables(
        pa.concat_tables(parts) if parts else schema.CALLS.empty_table(),
        merge.groups(),
        pa.Table.from_pylist(rows, schema=schema.RANKS),
        merge.sites(),
        pa.Table.from_pylist(facts, schema=schema.FACTS),
        pa.Table.from_pylist(
            [row for _, process in sorted(by_rank.items()) for row in _stacks(process)], schema=schema.STACKS
        ),
        merge.steps(),
        world_size,
        [row["last_alive_ns"] for row in rows if row["last_alive_ns"]],
        attempts,
        merge.cut,
        tuple(sorted(merge.truncated)),
        tuple(_notes(rows, attempts)),
    )


def _last_generation(processes: list[Process], told: list[_Line]) -> tuple[tuple[str, int], int, int]:
    """The last start of the ranks, how many starts there were, and when the first rank of the last one began."""
    known = sorted((process for process in processes if process.header), key=lambda p: p.started_ns)
    started = {process.generation: process.started_ns for process in known}
    for line in told:
        started.setdefault(read_ends.generation(line), int(line.get("time_ns") or 0))
    last = max(started, key=lambda generation: (started[generation], generation[1]), default=("", 0))
    return last, len(started), min((p.started_ns for p in known if p.generation == last), default=0)


def _sizes(by_rank: dict[int, Process], ends: list[_Line]) -> list[int]:
    lines = [*(process.header for process in by_rank.values()), *ends]
    return [int(line["world_size"]) for line in lines if line.get("world_size")]


def _size(sizes: list[int]) -> int | None:
    """What most processes say: one of them may be damaged."""
    return max(Counter(sizes).items(), key=lambda one: (one[1], one[0]))[0] if sizes else None


class _Counts(NamedTuple):
    calls: int
    lost: int
    first: int | None
    last_ns: int
    cut: bool


class _Merge:
    """Gives groups and sites of all processes one numbering, and turns ring columns into `CALLS`."""

    def __init__(self) -> None:
        self.counts: dict[int, _Counts] = {}
        self.cut: list[tuple[str, str]] = []
        self.truncated: set[int] = set()
        self._groups: dict[tuple[int, str, str], int] = {}
        self._group_rows: list[_Line] = []
        self._callers: dict[int, set[int]] = defaultdict(set)
        self._sites: dict[tuple[str, int, str], int] = {}
        self._site_rows: list[_Line] = []
        self._steps: list[pa.Table] = []

    def add(self, process: Process) -> pa.Table:
        """The calls of a process as `CALLS`."""
        calls = read_calls.read(process.segments)
        groups = _lookup({line["id"]: self._group(line, process.rank) for line in process.of("group")})
        sites = _lookup({line["id"]: self._site(line) for line in process.of("site")})
        known = _take(groups, calls.columns["group"]) >= 0
        columns = {name: column[known] for name, column in calls.columns.items()}
        self._steps.append(_steps(process.rank, calls.steps))
        self._count(process, columns, calls, int(np.count_nonzero(~known)))
        signatures = {line["id"]: line for line in process.of("signature")}
        return _table(process.rank, columns, _take(groups, columns["group"]), _take(sites, columns["site"]), signatures)

    def _count(self, process: Process, columns: dict[str, Any], calls: read_calls.Calls, unnamed: int) -> None:
        rows, commits = len(columns["commit"]), calls.commits
        gone = not process.segments and bool(process.of("signature"))  # it made calls, and none of its files is left
        cut = bool(calls.cut) or gone
        first = int(commits[0]) if len(commits) else None
        told = max((int(line["calls"]) for line in process.of("lost")), default=0)
        gaps = int(commits[-1]) - first + 1 - len(commits) if first is not None else 0
        lost = told + gaps + calls.lost + unnamed + (first - 1 if first else 0)
        last = max((int(columns[name].max()) for name in ("enter_ns", "issued_ns", "end_ns")), default=0) if rows else 0
        self.counts[process.rank] = _Counts(rows, lost, first, last, cut)
        self.cut += calls.cut
        if cut:
            self.truncated.add(process.rank)

    def _group(self, line: _Line, rank: int) -> int:
        members = json.dumps(line["ranks"])
        key = (int(line.get("epoch") or 0), str(line["name"]), members)
        number = self._groups.get(key)
        if number is None:
            number = self._groups[key] = len(self._groups)
            self._group_rows.append(
                {
                    "group": number,
                    "name": line["name"],
                    "desc": line.get("desc") or "",
                    "backend": line.get("backend") or "",
                    "ranks": [
                        r for first, count, step in line["ranks"] for r in range(first, first + count * step, step)
                    ],
                }
            )
        self._callers[number].add(rank)
        return number

    def _site(self, line: _Line) -> int:
        key = (str(line["file"]), int(line["line"]), str(line["function"]))
        number = self._sites.get(key)
        if number is None:
            number = self._sites[key] = len(self._sites)
            self._site_rows.append({**line, "site": number})
        return number

    def groups(self) -> pa.Table:
        """The `GROUPS` of all processes; a group whose members torch did not tell has those who know it."""
        for row in self._group_rows:
            row["ranks"] = row["ranks"] or sorted(self._callers[row["group"]])
        return pa.Table.from_pylist(self._group_rows, schema=schema.GROUPS)

    def steps(self) -> pa.Table:
        """The `STEPS` of all processes."""
        return pa.concat_tables([schema.STEPS.empty_table(), *self._steps])

    def sites(self) -> pa.Table:
        """The `SITES` of all processes."""
        rows = [{name: row.get(name) for name in schema.SITES.names} for row in self._site_rows]
        return pa.Table.from_pylist(rows, schema=schema.SITES)


def _lookup(numbers: dict[int, int]) -> np.ndarray[Any, Any]:
    """Process ids to numbers of the run, by index; -1 where a definition is missing."""
    table = np.full(max(numbers, default=0) + 1, -1, dtype=np.int32)
    for key, number in numbers.items():
        table[key] = number
    return table


def _take(table: np.ndarray[Any, Any], ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    inside = ids < len(table)
    return np.where(inside, table[np.where(inside, ids, 0)], -1).astype(np.int32)


def _nullable(values: np.ndarray[Any, Any], kind: pa.DataType, null: np.ndarray[Any, Any]) -> pa.Array:
    return pa.array(values, mask=null).cast(kind)


def _words(values: Any, null: np.ndarray[Any, Any] | None = None) -> pa.Array:
    return pa.array(values, type=pa.utf8(), mask=null).dictionary_encode()


def _table(rank: int, columns: dict[str, Any], groups: Any, sites: Any, signatures: dict[int, _Line]) -> pa.Table:
    rows = len(groups)
    ids = columns["signature"]
    distinct = {int(i): signatures.get(int(i), {}) for i in np.unique(ids)}
    named = {i: str(line.get("op") or "unknown") for i, line in distinct.items()}
    op = np.array(
        [named[int(i)] if name == "unknown" else name for name, i in zip(columns["op"], ids, strict=True)], dtype=object
    )
    shapes = {i: _shapes(line) for i, line in distinct.items()}
    other = np.isin(op, list(words.P2P | words.ROOTED), invert=True)
    p2p = np.isin(op, list(words.P2P))
    nobody = columns["peer"] == 0
    values = {
        "rank": pa.array(np.full(rows, rank, dtype=np.int32)),
        "group": pa.array(groups),
        "seq": pa.array(columns["seq"]),
        "op": _words(op),
        "source_op": _words(op),
        "root": _nullable(columns["peer"] - 1, pa.int32(), other | p2p | nobody),
        "peer": _nullable(columns["peer"] - 1, pa.int32(), ~p2p | nobody),
        "numel": pa.array(columns["numel"]),
        "bytes_in": pa.array(columns["bytes_in"]),
        "bytes_out": pa.array(columns["bytes_out"]),
        "dtype": _words(columns["dtype"], columns["dtype"] == ""),
        "shapes": _words([shapes[int(i)] for i in ids]),
        "reduce_op": _words(columns["reduce_op"], columns["reduce_op"] == ""),
        "is_async": pa.array(columns["is_async"] != 0),
        "step": _nullable(columns["step"], pa.int64(), np.full(rows, not columns["step"].any())),
        "thread": pa.array(columns["thread"]).cast(pa.int64()),
        "site": _nullable(sites, pa.int32(), sites < 0),
        **{
            name: _nullable(columns[name], pa.int64(), columns[name] == 0)
            for name in ("enter_ns", "issued_ns", "start_ns", "end_ns")
        },
        "is_timed": pa.array(columns["is_timed"] != 0),
        "outcome": _words(np.array(words.OUTCOMES, dtype=object)[columns["outcome"]]),
    }
    return pa.table([values[name] for name in schema.CALLS.names], schema=schema.CALLS)


def _steps(rank: int, steps: np.ndarray[Any, Any]) -> pa.Table:
    ends = pa.array(steps[:, 1], pa.int64())
    starts = pa.array([None, *ends.to_pylist()[:-1]] if len(ends) else [], pa.int64())
    ranks = pa.array(np.full(len(ends), rank, dtype=np.int32))
    return pa.table([ranks, pa.array(steps[:, 0], pa.int64()), starts, ends], schema=schema.STEPS)


def _shapes(line: _Line) -> str | None:
    if "inputs" not in line:
        return None
    outputs = "" if line.get("outputs") is None else f" -> {line['outputs']}"
    splits = f" splits {line['splits']}" if any(line.get("splits") or []) else ""
    return f"{line['inputs']}{outputs}{splits}"


def _rank_row(rank: int, process: Process | None, counts: _Counts | None, ends: read_ends.Ends) -> _Line:
    row: _Line = dict.fromkeys(schema.RANKS.names)
    row |= {"rank": rank, "data": "missing", "calls": 0, "calls_lost": 0}
    if process is None or counts is None:
        return row | ends.without_files(rank)
    row |= {
        "host": process.header.get("host") or process.host,
        "pid": process.pid,
        "data": "truncated" if counts.cut else "present" if counts.calls else "empty",
        "calls": counts.calls,
        "calls_lost": counts.lost,
        "first_call": counts.first,
        "start_ns": process.started_ns or None,
        "last_alive_ns": max(process.alive_ns, counts.last_ns) or None,
        "recorder_off": _why_off(process) or ends.why_off(process.host, process.pid),
        "goodbye_ns": next((line["time_ns"] for line in process.of("goodbye")), None),
        "source": process.source,
    }
    said_ns = row["goodbye_ns"] or row["last_alive_ns"]
    word = read_ends.Word(process.of("exception"), process.said_code, said_ns)
    return row | ends.of(rank, process.host, process.pid, word)


def _why_off(process: Process) -> str | None:
    if not (process.header or process.of("group")):
        return "its side file is empty, as on a full disk"
    return next((line.get("why") for line in process.of("off")), None)


def _stacks(process: Process) -> list[_Line]:
    source = process.source.removesuffix(".jsonl") + ".stacks"
    rows = read_stacks.read(process.stacks, process.header.get("main_thread"))
    return [{"rank": process.rank, "source": source, **row} for row in rows]


def _facts(
    by_rank: dict[int, Process],
    files: list[tuple[str, list[_Line]]],
    ranks: dict[tuple[str, int], int],
    last: tuple[str, int],
) -> list[_Line]:
    found = [
        _fact(line, process.host, process.rank, process.source)
        for process in by_rank.values()
        for line in process.lines
        if line.get("kind") in _TEXTS
    ]
    for source, lines in files:
        host = source.split("/")[0]
        for line in lines:
            of_another_start = "job" in line and line.get("rank") is not None and read_ends.generation(line) != last
            if line.get("kind") in _TEXTS and not of_another_start:
                found.append(_fact(line, host, line.get("rank", ranks.get((host, line.get("pid", -1)))), source))
    return sorted(found, key=lambda fact: fact["time_ns"] or 0)


def _fact(line: _Line, host: str, rank: int | None, source: str) -> _Line:
    text = _TEXTS[line["kind"]].format_map(defaultdict(lambda: "?", line))
    where = f"{source}:{line['at']}"
    return {
        "time_ns": line.get("time_ns"),
        "host": host,
        "rank": rank,
        "kind": line["kind"],
        "text": text,
        "source": where,
    }


_TEXTS = {
    "exit": "process {pid} ended with code {code}",
    "exception": "uncaught {type}: {message} at {site}",
    "thread_exception": "uncaught {type}: {message} at {site} in thread {thread}; the process lived on",
    "goodbye": "the interpreter shut down in order",
    "state": "process {pid} is {state}",
    "signal": "{name} was forwarded to the job",
    "off": "the recorder switched itself off: {why}",
    "lost": "{calls} calls were not kept: {why}",
    "deleted": "segment {segment} was deleted to stay within --max-mb",
    "end": "the command ended with code {code}",
}


def _notes(rows: list[_Line], attempts: int) -> list[str]:
    notes = []
    if attempts > 1:
        notes.append(f"{attempts} starts of the job's ranks are recorded here; this is about the last one")
    lost = {row["rank"]: row["calls_lost"] for row in rows if row["calls_lost"]}
    if lost:
        ranks, calls = len(lost), sum(lost.values())
        notes.append(f"{calls} calls of {ranks} rank(s) are not kept (deleted to stay within --max-mb, or lost)")
    notes += [
        f"rank {row['rank']}: the recorder switched itself off: {row['recorder_off']}"
        for row in rows
        if row["recorder_off"]
    ]
    return notes
