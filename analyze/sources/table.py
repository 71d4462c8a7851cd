"""A plain table of calls, for those who record by other means: CSV (`,`, `;` or tab), Parquet, or an Arrow file.

One row per call of a rank. Columns, in any order and case:

- `rank`, `seq`, `op`: must be there; `op` in any spelling that torch or NCCL uses, `seq` counted in the group.
- `enter`, `start`, `end` with the unit behind: `enter_us`, `end_ns`, `start_s`; at least one. Times may count from
  anywhere, but from the same instant on all ranks. An empty or a negative one did not happen.
- `group` (default: one group of all ranks), `bytes` or `bytes_in` and `bytes_out`, `numel` (or `size`, `count`),
  `dtype`, `root`, `peer` (global ranks), `reduce_op`, `step`, `host`.

Other columns are not looked at. The members of a group are the ranks that have a row of it, as nothing else is known.
Rows of a rank that repeat a `seq` of a group are one coalesced call; rows that are equal throughout are one row, there
twice. Without the column `group` no `seq` of a rank may repeat: its calls would be of several groups. A time that is no
number, and an end before its call's beginning, are not taken: what became of that call is not recorded. No facts.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from roundk.analyze.phrases import number_of
from roundk.analyze.sources import ops
from roundk.analyze.sources.inputs import Hints, Input
from roundk.analyze.sources.part import Part
from roundk.analyze.sources.rows import READ_ERRORS, from_dicts, read_bytes
from roundk.analyze.trace import Unreadable, empty, frame
from roundk.tracer import schema
from roundk.tracer import words as contract

KIND: Final = "table"

MOST_BYTES: Final = 2 << 30
MOST_ROWS: Final = 50_000_000
"""Rows of a Parquet file that are read: it may say in a kilobyte that it has a billion."""
MOST_RANK: Final = 1 << 24
_NEEDED: Final = ("rank", "seq", "op")
_TIMES: Final = ("enter", "start", "end")
_UNITS: Final = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_TIMED: Final = re.compile(r"(enter|start|end)(?:_(ns|us|ms|s))?")
_ALIASES: Final = {
    "bytes": "bytes_in",
    "size": "numel",
    "count": "numel",
    "redop": "reduce_op",
    "operation": "op",
    "collective": "op",
    "hostname": "host",
    "process_group": "group",
}
_WHOLE: Final = ("rank", "seq", "bytes_in", "bytes_out", "numel", "root", "peer", "step")
_TEXTS: Final = ("group", "op", "dtype", "reduce_op", "host")
_PARQUET: Final = b"PAR1"
_ARROW: Final = b"ARROW1"
_SEPARATORS: Final = ",;\t"
_DEFAULT: Final = "default_pg"
_MOST_NS: Final = 1 << 62
_PROBLEMS: Final = (*READ_ERRORS, pa.ArrowException, pl.exceptions.PolarsError)


class _Problem(Exception):  # noqa: N818 - a refusal that does not leave this module
    """The table cannot be used."""


def recognises(item: Input) -> bool:
    """Whether an input is a table with a rank, a number, an operation and a time in each row."""
    if item.head[:4] == _PARQUET or item.head[:6] == _ARROW:
        try:
            return _is_calls(_columns(item))
        except _PROBLEMS:
            return False
    line = _header(item.head)
    return _is_calls(_split(line))


def load(inputs: Sequence[Input], hints: Hints) -> Part:  # noqa: ARG001 - the rank is a column
    """Read tables of one job: their rows are put together."""
    tables: list[pl.DataFrame] = []
    names: list[str] = []
    unreadable: list[Unreadable] = []
    notes: list[str] = []
    for item in inputs:
        try:
            read = _read(item)
            table = _normal(read, item.name, notes)
        except _Problem as problem:
            unreadable.append(Unreadable(item.name, str(problem)))
            continue
        except _PROBLEMS as error:
            why = str(error).splitlines()[0] if str(error) else type(error).__name__
            unreadable.append(Unreadable(item.name, f"the table of calls cannot be read: {why[:200]}"))
            continue
        tables.append(table)
        names.append(item.name)
    if not tables:
        return Part(kind=KIND, unreadable=tuple(unreadable), notes=tuple(notes))
    rows = _once(pl.concat(tables, how="diagonal_relaxed"), notes)
    groups, is_guessed = _groups(rows)
    return Part(
        kind=KIND,
        read=tuple(names),
        calls=_calls(rows, groups),
        groups=groups,
        members_told=not is_guessed,
        ranks=_ranks(rows),
        unreadable=tuple(unreadable),
        versions=("table of calls",),
        notes=(*notes, *(("the members of groups are the ranks that have rows of them",) if is_guessed else ())),
    )


def _header(head: bytes) -> str:
    """The first line that is no comment."""
    for line in head.removeprefix(b"\xef\xbb\xbf").splitlines()[:50]:
        if line.strip() and not line.startswith(b"#"):
            return line.decode("utf-8", errors="replace")
    return ""


def _split(line: str) -> list[str]:
    separator = max(_SEPARATORS, key=line.count)
    return [_name(word) for word in line.split(separator)]


def _name(word: str) -> str:
    plain = word.strip().strip("\"'").strip().lower()
    return _ALIASES.get(plain, plain)


def _is_calls(columns: Iterable[str]) -> bool:
    found = set(columns)
    return found.issuperset(_NEEDED) and any(_TIMED.fullmatch(name) for name in found)


def _columns(item: Input) -> list[str]:
    with item.open() as stream:
        source: Any = stream if stream.seekable() else pa.py_buffer(read_bytes(item, MOST_BYTES)[0])
        read = pq.read_schema(source) if item.head[:4] == _PARQUET else pa.ipc.open_file(source).schema
        return [_name(name) for name in read.names]


def _sound(table: pa.Table) -> pl.DataFrame:
    """The table as a frame, once its offsets and texts have been looked through: polars takes them on trust."""
    table.validate(full=True)
    return frame(table)


def _read(item: Input) -> pl.DataFrame:
    data, is_more = read_bytes(item, MOST_BYTES)
    if is_more:
        raise _Problem(f"has more than {MOST_BYTES >> 30} GiB: give it as several files")
    if data[:4] == _PARQUET:
        file = pq.ParquetFile(pa.py_buffer(data))
        if file.metadata.num_rows > MOST_ROWS:
            raise _Problem(f"it says that it has {file.metadata.num_rows} rows; {MOST_ROWS} are read at most")
        return _sound(file.read(columns=[name for name in file.schema_arrow.names if _is_used(_name(name))]))
    if data[:6] == _ARROW:
        table = pa.ipc.open_file(pa.py_buffer(data)).read_all()
        return _sound(table.select([name for name in table.schema.names if _is_used(_name(name))]))
    line = _header(data[: 1 << 16])
    separator = max(_SEPARATORS, key=line.count)
    return pl.read_csv(
        io.BytesIO(data),
        separator=separator,
        infer_schema=False,
        comment_prefix="#",
        truncate_ragged_lines=True,
        encoding="utf8-lossy",
    )


def _is_used(name: str) -> bool:
    return name in _WHOLE or name in _TEXTS or _TIMED.fullmatch(name) is not None


def _normal(table: pl.DataFrame, name: str, notes: list[str]) -> pl.DataFrame:
    """The known columns under their names, numbers as numbers, times in ns; rows that are no call are left out."""
    named: dict[str, str] = {}
    for column in table.columns:
        if _name(column) in named:
            raise _Problem(f"has the column `{_name(column)}` twice (`{named[_name(column)]}` and `{column}`)")
        named[_name(column)] = column
    made: list[pl.Expr] = []
    for time in _TIMES:
        made += _time(time, named, table.schema)
    if not made:
        raise _Problem("has no column of times that it can be used by: `enter_ns`, `start_us`, `end_s` or the like")
    made += [_whole(pl.col(named[one])).alias(one) for one in _WHOLE if one in named]
    made += [
        pl.col(named[one]).cast(pl.String, strict=False).str.strip_chars().alias(one) for one in _TEXTS if one in named
    ]
    read = table.select(made)
    has_group = "group" in read.columns
    if not has_group:
        read = read.with_columns(group=pl.lit(_DEFAULT))
    is_call = (
        pl.col("rank").is_between(0, MOST_RANK)
        & (pl.col("seq") >= 0)
        & (pl.col("op").str.len_chars() > 0)
        & pl.col("group").is_not_null()
    )
    good = read.filter(is_call)
    if left := read.height - good.height:
        have = "has" if left == 1 else "have"
        out = "is left out" if left == 1 else "are left out"
        notes.append(f"{name}: {left:,} of {number_of(read.height, 'row')} {have} no rank, seq or op, and {out}")
    if not good.height:
        raise _Problem("has no row with a rank, a seq and an op")
    if not has_group:
        _refuse_several_groups(good)
    return _sound_times(good, name, notes)


def _refuse_several_groups(rows: pl.DataFrame) -> None:
    """Without names of groups, numbers that repeat in a rank are those of several groups, and no round can be told."""
    collectives = ~_operation().is_in(list(contract.P2P))
    repeated = rows.unique().filter(collectives).group_by("rank", "seq").len().filter(pl.col("len") > 1).sort("rank")
    if repeated.height:
        rank, seq, count = repeated.row(0)
        raise _Problem(
            f"the column `group` is missing: rank {rank} has {count} different calls with seq {seq}, which are of "
            "several groups (or of one coalesced call); name each row's group in a column `group`"
        )


def _operation() -> pl.Expr:
    """The operation of a row under torch's name."""
    return pl.col("op").map_elements(lambda spelling: ops.spelled(spelling).op, return_dtype=pl.String)


def _sound_times(rows: pl.DataFrame, name: str, notes: list[str]) -> pl.DataFrame:
    """The rows without times that make no sense; `is_odd`: it had an end, and that cannot be used."""
    has_end = "end_ns" in rows.columns
    begins = [pl.col(one) for one in ("enter_ns", "start_ns") if one in rows.columns]
    early = pl.col("end_ns") < pl.max_horizontal(begins) if has_end and begins else pl.lit(value=False)
    rows = rows.with_columns(is_early=early.fill_null(value=False))
    told = [one for one in _TIMES if f"{one}_odd" in rows.columns]
    odd, nan = (sum(int(rows[f"{one}_{what}"].sum()) for one in told) for what in ("odd", "nan"))
    if odd:
        times = number_of(odd, "time is", "times are")
        notes.append(f"{name}: {times} no number that can be used (inf, text, too large) and not taken")
    if nan:
        times = number_of(nan, "time is", "times are")
        notes.append(f"{name}: {times} nan: that is taken for what did not happen")
    if count := int(rows["is_early"].sum()):
        calls = number_of(count, "call ends before its beginning", "calls end before their beginning")
        notes.append(f"{name}: {calls}: {'that end is' if count == 1 else 'those ends are'} not taken")
    is_odd = pl.col("is_early") | (pl.col("end_odd") if has_end else pl.lit(value=False))
    rows = rows.with_columns(is_odd=is_odd)
    if has_end:
        rows = rows.with_columns(end_ns=pl.when(~pl.col("is_early")).then("end_ns"))
    return rows.drop("is_early", *(f"{one}_{what}" for one in told for what in ("odd", "nan")))


def _once(rows: pl.DataFrame, notes: list[str]) -> pl.DataFrame:
    """Each row once: two that are equal in every column are one call that was written twice."""
    single = rows.unique(maintain_order=True)
    if more := rows.height - single.height:
        notes.append(
            f"{number_of(more, 'row repeats', 'rows repeat')} another one in every column, and "
            f"{'is' if more == 1 else 'are'} left out"
        )
    return single


def _time(time: str, named: Mapping[str, str], kinds: Mapping[str, pl.DataType]) -> list[pl.Expr]:
    found = [unit for unit in _UNITS if f"{time}_{unit}" in named]
    if len(found) > 1:
        raise _Problem(f"has `{time}` in two units, {found[0]} and {found[1]}: keep one")
    if not found and time in named:
        raise _Problem(
            f"its column `{named[time]}` has no unit: call it `{time}_ns`, `{time}_us`, `{time}_ms` or `{time}_s`"
        )
    if not found:
        return []
    name = named[f"{time}_{found[0]}"]
    column, factor = pl.col(name), _UNITS[found[0]]
    whole = column.cast(pl.Int64, strict=False)
    real = column.cast(pl.Float64, strict=False)
    exact = pl.when(whole.is_between(0, _MOST_NS // factor) & (whole.cast(pl.Float64) == real)).then(whole * factor)
    rounded = pl.when((real * factor).is_between(0, _MOST_NS)).then(
        (real * factor).round().cast(pl.Int64, strict=False)
    )
    taken = pl.coalesce(exact, rounded)
    # A negative time did not happen, like an empty field; nor did a nan, which in a text may mean something else.
    text = column.cast(pl.String).str.strip_chars().str.to_lowercase()
    is_none = (text == "") | (text == "nan") | (real < 0).fill_null(value=False)
    return [
        taken.alias(f"{time}_ns"),
        (~is_none & taken.is_null()).fill_null(value=False).alias(f"{time}_odd"),
        ((text == "nan") & pl.lit(value=not kinds[name].is_float())).fill_null(value=False).alias(f"{time}_nan"),
    ]


def _whole(column: pl.Expr) -> pl.Expr:
    """A count; null for what is none. `12.0` is one: tables that had gaps once are written so."""
    real = column.cast(pl.Float64, strict=False)
    as_real = pl.when(real.is_between(0, 1 << 53) & (real == real.floor())).then(real.cast(pl.Int64, strict=False))
    found = pl.coalesce(column.cast(pl.Int64, strict=False), as_real)
    return pl.when(found >= 0).then(found)


def _groups(rows: pl.DataFrame) -> tuple[pl.DataFrame, bool]:
    """The groups by name, and whether the members of any are guessed; the default one is of all ranks."""
    by_name = rows.group_by("group", maintain_order=True).agg(pl.col("rank").unique().sort())
    highest = int(str(rows["rank"].max()))
    listed: list[dict[str, Any]] = []
    for key, (name, ranks) in enumerate(by_name.iter_rows()):
        is_default = name == _DEFAULT
        members = list(range(highest + 1)) if is_default and highest < 4 * len(ranks) else ranks
        desc = _DEFAULT if is_default else ""
        listed.append({"group": key, "name": name, "desc": desc, "backend": "", "ranks": members})
    return from_dicts(schema.GROUPS, listed), any(row["name"] != _DEFAULT for row in listed)


def _calls(rows: pl.DataFrame, groups: pl.DataFrame) -> pl.DataFrame:
    for name in ("enter_ns", "start_ns", "end_ns", "bytes_in", "bytes_out", "numel", "root", "peer", "step"):
        if name not in rows.columns:
            rows = rows.with_columns(pl.lit(None, pl.Int64).alias(name))
    for name in ("dtype", "reduce_op"):
        if name not in rows.columns:
            rows = rows.with_columns(pl.lit(None, pl.String).alias(name))
    spellings = {spelling: ops.spelled(spelling) for spelling in rows["op"].unique().to_list()}
    dtypes = {one: ops.dtype(one)[0] for one in rows["dtype"].drop_nulls().unique().to_list()}
    keys = dict(zip(groups["name"], groups["group"], strict=True))
    op = pl.col("op").replace_strict({name: one.op for name, one in spellings.items()}, return_dtype=pl.String)
    has_end = rows["end_ns"].null_count() < rows.height or bool(rows["is_odd"].any())
    open_or_not = pl.lit("open" if has_end else "not_recorded")
    made = rows.with_columns(
        op=op,
        source_op=pl.col("op"),
        group=pl.col("group").replace_strict(keys, return_dtype=pl.Int32),
        dtype=pl.col("dtype").replace_strict(dtypes, return_dtype=pl.String),
        reduce_op=pl.col("reduce_op").str.to_uppercase(),
        issued_ns=pl.coalesce("enter_ns", "start_ns", "end_ns"),
        is_timed=pl.lit(value=rows["start_ns"].null_count() < rows.height),
        outcome=pl.when(pl.col("end_ns").is_not_null())
        .then(pl.lit("completed"))
        .when("is_odd")
        .then(pl.lit("not_recorded"))
        .otherwise(open_or_not),
    ).sort("rank", pl.coalesce("enter_ns", "start_ns", "end_ns"), maintain_order=True, nulls_last=True)
    pair = pl.int_range(1, pl.len() + 1).over("rank", "group", "op", "peer")
    made = made.with_columns(
        seq=pl.when(pl.col("op").is_in(list(contract.P2P)) & pl.col("peer").is_not_null()).then(pair).otherwise("seq")
    )
    columns = empty(schema.CALLS)
    return made.select(
        pl.col(name).cast(kind) if name in made.columns else pl.lit(None, kind).alias(name)
        for name, kind in columns.schema.items()
    )


def _ranks(rows: pl.DataFrame) -> pl.DataFrame:
    times = [name for name in ("enter_ns", "start_ns", "end_ns") if name in rows.columns]
    host = pl.col("host").drop_nulls().first() if "host" in rows.columns else pl.lit(None, pl.String)
    by_rank = rows.group_by("rank").agg(
        host=host, calls=pl.len(), last_alive_ns=pl.max_horizontal(pl.col(name).max() for name in times)
    )
    listed = [
        {**row, "data": "present", "calls_lost": 0, "first_call": 1}
        for row in by_rank.sort("rank").iter_rows(named=True)
    ]
    return from_dicts(schema.RANKS, listed)
