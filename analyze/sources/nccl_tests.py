"""nccl-tests: the tables of `all_reduce_perf` and its siblings, out of a file that may hold much else.

    #       size     count    type  redop   root   time  algbw  busbw #wrong   time  algbw  busbw #wrong
    #        (B) (elements)                        (us) (GB/s) (GB/s)          (us) (GB/s) (GB/s)
         1048576    262144   float    sum     -1  61.46  17.06  29.86      0  61.07  17.17  30.05      0

The columns are taken from the header line, so all layouts since 2.0 are read: `error` for `#wrong` before 2.13, without
`redop` and `root` in some tests of old versions, `cputime` for `time` (`-C`), per-iteration columns (`i_min ...`), a
time stamp at the end (`-T`). The first half of a line is out of place, the second in place; a test may leave one blank
or print N/A for what it did not check (`-c 0`). Prefixes of mpirun and srun (`[1,0]<stdout>:`, `0: `) and log lines in
between are passed over. Also the JSON report of `-J` (2.17 and later).

`size` is in bytes, `time` in microseconds, `algbw` and `busbw` in GB/s (10^9). The collective is not in the table: it
is taken from `# Collective test starting: all_reduce_perf` (2.17), else from a command line above, else from
busbw/algbw, the ranks, `redop` and `root` where these leave one (all_gather and alltoall are alike), else `unknown`.
The ranks are the `#  Rank ...` lines above the table, of the group of the first where the tests were split.
Source: NVIDIA/nccl-tests `src/common.cu`, `src/util.cu`, `doc/PERFORMANCE.md`, 2.0 to 2.17.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from roundk.analyze.sources.inputs import Hints, Input
from roundk.analyze.sources.part import Part
from roundk.analyze.sources.rows import READ_ERRORS, count, decimal, from_dicts, lines, read_bytes
from roundk.analyze.trace import Unreadable
from roundk.tracer import schema

KIND: Final = "nccl_tests"

OPS: Final = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "sendrecv": "sendrecv",
    "hypercube": "hypercube",
}
"""Programs (`<name>_perf`) to torch's names; what torch has no name for keeps its own."""

UNKNOWN: Final = "unknown"

DTYPES: Final = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "bfloat16": "bfloat16",
    "int8": "int8",
    "uint8": "uint8",
    "int32": "int32",
    "uint32": "uint32",
    "int64": "int64",
    "uint64": "uint64",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
}
REDUCE_OPS: Final = {"sum": "SUM", "prod": "PRODUCT", "max": "MAX", "min": "MIN", "avg": "AVG", "mulsum": "PREMUL_SUM"}

_HEADER: Final = re.compile(rb"#\s{1,40}size\s{1,40}count\b[^\n]{0,400}\balgbw\s{1,20}busbw")
_DEVICE: Final = re.compile(
    rb"#\s{1,4}Rank\s{1,8}\d{1,7} (?:Group\s{1,8}\d{1,7} )?Pid\s{1,8}\d{1,9} on\s{1,40}\S{1,80} device\s"
)
"""The list of devices stands above the header, and that of a thousand ranks is longer than what is shown here."""

_JSON: Final = re.compile(rb'"(?:out_of_place|in_place)"|"minimum_bytes"')
_PROGRAM: Final = re.compile(r"(?<![A-Za-z0-9_])([a-z][a-z_0-9]{2,30})_perf(?:_mpi)?(?![A-Za-z0-9_])")
_RANK: Final = re.compile(r"#\s+Rank\s+(\d{1,7})(?: Group\s+(\d{1,7}))? Pid\s")
_MOST_JSON: Final = 64 << 20
_MOST_RANKS: Final = 1 << 20
_BLANK: Final = 20
"""So many blanks stand where a half is left out; two columns are never as far apart."""
_WORD: Final = re.compile(r"\S+")
_PREFIX: Final = re.compile(r"(?:\[[^\]]{1,40}\]<std\w{2,3}>:|\d{1,7}:)(?=\s|\d|$)")


def recognises(item: Input) -> bool:
    """Whether the header of a result table, the list of devices, or the JSON report is in its beginning."""
    head = item.head
    if _HEADER.search(head) or _DEVICE.search(head):
        return True
    return head.lstrip()[:1] == b"{" and b'"nccl_version"' in head and bool(_JSON.search(head))


def load(inputs: Sequence[Input], hints: Hints) -> Part:
    """Every line of every table."""
    del hints  # Nothing here is of one rank.
    rows: list[dict[str, Any]] = []
    read: list[str] = []
    ignored: list[str] = []
    unreadable: list[Unreadable] = []
    notes: list[str] = []
    for item in inputs:
        found: list[dict[str, Any]] = []
        try:
            if item.head.lstrip()[:1] == b"{":
                found += _report(item)
            else:
                _lines(item, found)
        except READ_ERRORS as error:
            unreadable.append(Unreadable(item.name, f"cannot be read to its end: {error or type(error).__name__}"))
        if found:
            read.append(item.name)
        elif not any(one.path == item.name for one in unreadable):
            ignored.append(item.name)
        rows += found
        if any(row["op"] == UNKNOWN for row in found):
            notes.append(f"{item.name}: which collective was measured is not told and cannot be derived")
    return Part(
        kind=KIND,
        read=tuple(read),
        ignored=tuple(ignored),
        benchmarks=from_dicts(schema.BENCHMARKS, rows),
        unreadable=tuple(unreadable),
        versions=("nccl-tests",) if rows else (),
        notes=tuple(notes),
    )


@dataclass
class _Table:
    """One result table and what stood above it."""

    columns: tuple[str, ...]
    op: str | None
    ranks: int | None
    rows: list[dict[str, Any]] = field(default_factory=list)

    def closed(self) -> list[dict[str, Any]]:
        """Its rows with what is known at its end."""
        op = self.op or _derived(self.rows, self.ranks)
        return [
            {
                "op": op,
                "ranks": self.ranks,
                "dtype": DTYPES.get(row["type"], row["type"]),
                "reduce_op": None if row["redop"] in (None, "none") else REDUCE_OPS.get(row["redop"], row["redop"]),
                **{name: row[name] for name in _KEPT},
            }
            for row in self.rows
        ]


_KEPT: Final = ("bytes", "is_in_place", "time_us", "algbw", "busbw", "wrong", "source")


def _lines(item: Input, rows: list[dict[str, Any]]) -> None:
    op: str | None = None
    ranks: dict[int, int] = {}
    was_rank = False
    table: _Table | None = None
    for number, (raw, _) in enumerate(lines(item), 1):
        text = raw.decode("utf-8", "replace")
        if "#" in text:
            columns = _columns(text)
            if columns:
                rows += [] if table is None else table.closed()
                table = _Table(columns, op, _ranks(ranks))
                continue
            rank = _RANK.search(text)
            if rank is not None:
                # A list that begins anew is another run's.
                ranks = {**(ranks if was_rank else {}), int(rank[1]): int(rank[2] or 0)}
            was_rank = rank is not None
        op = _program(text) or op
        if table is not None and "#" not in text:
            table.rows += _values(table.columns, text, f"{item.name}:{number}")
    rows += [] if table is None else table.closed()


def _program(text: str) -> str | None:
    return next((OPS[found[1]] for found in _PROGRAM.finditer(text[:4096]) if found[1] in OPS), None)


def _ranks(listed: Mapping[int, int]) -> int | None:
    """How many took part: those of the first rank's group, since the tables of others are not printed."""
    if not listed:
        return None
    first = listed[min(listed)]
    return sum(group == first for group in listed.values())


def _columns(text: str) -> tuple[str, ...]:
    """The columns of a header line; nothing for any other line."""
    names = text.partition("#")[2].split()
    columns = tuple("time" if name == "cputime" else name for name in names)
    fits = columns[:2] == ("size", "count") and "time" in columns and columns.count("busbw") in (1, 2)
    return columns if fits else ()


def _values(columns: tuple[str, ...], text: str, source: str) -> list[dict[str, Any]]:
    """The halves of a line of results; nothing for any other line."""
    words = list(_WORD.finditer(_PREFIX.sub("", text.lstrip(), count=1)))
    if len(words) < 6 or not words[0][0].isdigit() or not words[1][0].isdigit():
        return []
    size = decimal(words[0][0])
    at = 3
    redop = root = None
    if "redop" in columns and not _is_number(words[at][0]):
        redop, at = words[at][0], at + 1
    if "root" in columns:
        root, at = decimal(words[at][0]), at + 1
    after = columns[columns.index("time") :]
    # A column of the header may be missing in a line (a time stamp); the second `time` begins the second half.
    middle = after.index("time", 1) if "time" in after[1:] else len(after)
    halves = (after[:middle], after[middle:])
    numbers = [word[0] for word in words[at:]]
    if len(words) > at and words[at].start() - words[at - 1].end() > _BLANK:
        parts = [(halves[0], [], False), (halves[1], numbers, True)]
    else:
        parts = [(halves[0], numbers[:middle], False), (halves[1], numbers[middle:], True)]
    rows: list[dict[str, Any]] = []
    for names, told, is_in_place in parts:
        half = _half(names, told)
        if half is not None and size is not None:
            label = {"bytes": size, "type": words[2][0][:32], "redop": redop, "root": root}
            rows.append({**label, "is_in_place": is_in_place, "source": source, **half})
    return rows


def _is_number(word: str) -> bool:
    return decimal(word) is not None


def _half(names: Sequence[str], told: Sequence[object]) -> dict[str, Any] | None:
    values = dict(zip(names, told, strict=False))
    numbers = [_float(values.get(name)) for name in ("time", "algbw", "busbw")]
    if any(number is None for number in numbers):
        return None
    wrong = _float(values.get("#wrong"))
    return {
        "time_us": numbers[0],
        "algbw": numbers[1],
        "busbw": numbers[2],
        "wrong": int(wrong) if wrong is not None and wrong < 2**62 else None,
    }


def _float(word: object) -> float | None:
    if not isinstance(word, str | int | float) or isinstance(word, bool) or len(str(word)) > 32:
        return None
    try:
        value = float(word)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _all(_: int) -> float:
    return 1.0


def _others(ranks: int) -> float:
    return (ranks - 1) / ranks


def _twice(ranks: int) -> float:
    return 2 * _others(ranks)


_FACTORS: Final = (
    # Collective, whether it reduces, whether it has a root, busbw/algbw of n ranks (doc/PERFORMANCE.md).
    ("all_reduce", True, False, _twice),
    ("reduce_scatter", True, False, _others),
    ("reduce", True, True, _all),
    ("broadcast", False, True, _all),
    ("gather", False, True, _others),
    ("scatter", False, True, _others),
    ("all_gather", False, False, _others),
    ("all_to_all", False, False, _others),
    ("sendrecv", False, False, _all),
)


def _derived(rows: Sequence[Mapping[str, Any]], ranks: int | None) -> str:
    """The one collective that the numbers of a table can be of; `unknown` where there are several, or none."""
    row = max(rows, key=lambda one: one["algbw"], default=None)
    if row is None or row["algbw"] < 1:
        return UNKNOWN
    factor = row["busbw"] / row["algbw"]
    # Both are printed with two decimals at best.
    error = 0.01 * (1 + factor) / row["algbw"] + 1e-3
    if ranks is None:
        # Below 1 it may be an all_reduce by NVLink SHARP too, which nccl-tests gives another factor.
        return "all_reduce" if 1 + error < factor < 2 + error else UNKNOWN
    reduces = None if row["redop"] is None else row["redop"] != "none"
    has_root = None if row["root"] is None else row["root"] >= 0
    fits = [
        op
        for op, reducing, rooted, share in _FACTORS
        if reduces in (None, reducing) and has_root in (None, rooted) and abs(share(ranks) - factor) <= error
    ]
    return fits[0] if len(fits) == 1 else UNKNOWN


def _report(item: Input) -> list[dict[str, Any]]:
    """The report that `-J` writes."""
    data, _ = read_bytes(item, _MOST_JSON)
    try:
        report = json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply to be a report of nccl-tests") from None
    if not isinstance(report, dict) or not isinstance(report.get("results"), list):
        return []
    config = report.get("config")
    devices = config.get("devices") if isinstance(config, dict) else None
    listed: dict[int, int] = {}
    for device in devices if isinstance(devices, list) else ():
        if isinstance(device, dict) and (rank := count(device.get("rank"))) is not None:
            listed[rank] = count(device.get("group")) or 0
    args = report.get("args")
    program = _program(" ".join(str(arg) for arg in args)) if isinstance(args, list) else None
    table = _Table((), program, _ranks(listed))
    for number, entry in enumerate(report["results"], 1):
        if isinstance(entry, dict):
            table.rows += _entry(entry, f"{item.name}:result {number}")
    return table.closed()


def _entry(entry: Mapping[str, Any], source: str) -> list[dict[str, Any]]:
    size = count(entry.get("size"))
    rows: list[dict[str, Any]] = []
    for key, is_in_place in (("out_of_place", False), ("in_place", True)):
        told = entry.get(key)
        if size is None or not isinstance(told, dict):
            continue
        values = (told.get("time", told.get("cpu_time")), told.get("alg_bw"), told.get("bus_bw"), told.get("nwrong"))
        half = _half(("time", "algbw", "busbw", "#wrong"), values)
        if half is not None:
            label = {
                "bytes": size,
                "type": str(entry.get("type"))[:32],
                "redop": str(entry["redop"])[:32] if entry.get("redop") is not None else None,
                "root": decimal(str(entry.get("root", ""))),
            }
            rows.append({**label, "is_in_place": is_in_place, "source": source, **half})
    return rows
