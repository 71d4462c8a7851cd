"""NCCL's COLL lines, a block at a time: with NCCL_DEBUG_SUBSYS=COLL they are most of a log, one per call.

`host:pid:tid [dev] NCCL INFO AllReduce: opCount 139d sendbuff 0x.. recvbuff 0x.. count N datatype 7 op 0 root 0 comm
0x.. [nranks=128] stream 0x..`, unchanged from NCCL 2.10 to 2.30. opCount is hexadecimal and counts per communicator;
for `Send` and `Recv` the root is the peer. Of each communicator's calls in a process the last `CALLS_KEPT` are kept.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from roundk.analyze.phrases import NS_PER_S

LITERAL: Final = b": opCount "
CALLS_KEPT: Final = 2_000
"""As many as the Flight Recorder's ring has."""
MOST_CALLS: Final = 500_000
"""Calls kept in all: of more communicators than this has room for, fewer of each."""

_IS_CALL: Final = r"[\w.-]+:\d{1,10}:\d{1,10} (?:\[\d+\] )?NCCL INFO \w{1,41}: opCount [\da-f]{1,15} sendbuff "
_PRINTED_BY: Final = r"([\w.-]+:\d{1,10}):\d{1,10} (?:\[\d+\] )?$"
_SAID: Final = "NCCL INFO "
_WORDS: Final = ("opCount", "sendbuff", "recvbuff", "count", "datatype", "op", "root", "comm")
"""Every second word of a line, in front of what it names. Splitting at spaces is four times as fast as captures."""
_TIME: Final = r"^.{0,40}?(\d{4}-\d\d-\d\d)[T_ ](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?\s?(Z|UTC|[+-]\d\d:?\d\d)?"
_MOST_NAMES: Final = 100_000
"""Communicators times processes, and operations, that are told apart; more are damaged lines."""
SCHEMA: Final = {
    "by": pl.Int32,
    "op": pl.Int32,
    "seq": pl.Int64,
    "numel": pl.Int64,
    "type": pl.Int32,
    "reduction": pl.Int32,
    "root": pl.Int32,
    "time_ns": pl.Int64,
    "file": pl.Int32,
    "line": pl.Int64,
}
"""One row per call, in the order of the lines; `by` and `op` are numbers in `Calls.names`."""


class Calls:
    """The calls of all logs.

    Attributes:
        seen: How many there were.
        names: Numbers of operations, and of `host:pid pointer`: a process's end of a communicator.
        is_zone_missing: A time without a zone was read.
    """

    def __init__(self) -> None:
        self.seen = 0
        self.names: dict[str, int] = {}
        self.is_zone_missing = False
        self._kept = CALLS_KEPT
        self._frames: list[pl.DataFrame] = []
        self._height = self._settled = 0

    def take(self, text: pl.Series, file: int, first_line: int) -> int:
        """Read a block's lines; how many were calls.

        Args:
            text: The block, one string.
            file: Number of the log.
            first_line: Number of the block's first line.
        """
        lines = pl.DataFrame({"text": text.str.split("\n").explode()}).with_row_index("at")
        halves = pl.col("text").str.split_exact(_SAID, 1)
        found = (
            lines.filter(pl.col("text").str.contains(_IS_CALL))
            .select("at", halves=halves)
            .unnest("halves")
            .select(
                "at",
                when=pl.col("field_0").str.extract_groups(_TIME),
                by=pl.col("field_0").str.extract(_PRINTED_BY),
                said=pl.col("field_1").str.split_exact(" ", 17),
            )
        )
        found = found.filter(pl.all_horizontal(_word(2 * k + 1) == word for k, word in enumerate(_WORDS)))
        if found.is_empty():
            return 0
        told = found.select(
            by=pl.col("by") + " " + _word(16),
            op=_word(0).str.strip_chars_end(":"),
            seq=_word(2).str.to_integer(base=16, strict=False),
            numel=_word(8).cast(pl.Int64, strict=False),
            **{
                name: _word(k).cast(pl.Int32, strict=False)
                for name, k in (("type", 10), ("reduction", 12), ("root", 14))
            },
            time_ns=_time(),
            file=pl.lit(file, pl.Int32),
            line=pl.col("at").cast(pl.Int64) + first_line,
        )
        rows = self._numbered(told).filter(pl.all_horizontal(pl.exclude("time_ns").is_not_null())).select(list(SCHEMA))
        zones = found["when"].struct.unnest()
        self.is_zone_missing |= bool((zones["1"].is_not_null() & zones["4"].is_null()).any())
        self.seen += rows.height
        self._frames.append(rows)
        self._height += rows.height
        if self._height > self._settled + MOST_CALLS:
            self._settle()
        return rows.height

    def _numbered(self, told: pl.DataFrame) -> pl.DataFrame:
        """Names as numbers: a row is a tenth as large so."""
        for column in ("by", "op"):
            names = told[column].drop_nulls().unique().to_list()
            for name in names if len(self.names) < _MOST_NAMES else ():
                self.names.setdefault(name, len(self.names))
            numbers = {name: self.names[name] for name in names if name in self.names}
            told = told.with_columns(pl.col(column).replace_strict(numbers, default=None, return_dtype=pl.Int32))
        return told

    def table(self) -> pl.DataFrame:
        """The calls that are kept, `SCHEMA`."""
        self._settle()
        return self._frames[0] if self._frames else pl.DataFrame(schema=SCHEMA)

    def _settle(self) -> None:
        """Keep each communicator's last calls only, and fewer where there are too many communicators."""
        if not self._frames:
            return
        rows = pl.concat(self._frames).rechunk()
        behind = pl.len().over("by") - pl.int_range(pl.len()).over("by")
        rows = rows.filter(behind <= self._kept)
        while rows.height > MOST_CALLS and self._kept > 1:
            self._kept //= 2
            rows = rows.filter(behind <= self._kept)
        self._frames, self._height = [rows], rows.height
        self._settled = rows.height


def _word(k: int) -> pl.Expr:
    return pl.col("said").struct.field(f"field_{k}")


def _time() -> pl.Expr:
    """Unix time of a line that begins with a date; null where none does, or it is no date."""
    date, clock, fraction, zone = (pl.col("when").struct.field(str(k)) for k in (1, 2, 3, 4))
    seconds = (date + " " + clock).str.to_datetime("%Y-%m-%d %H:%M:%S", time_unit="us", strict=False).dt.epoch("s")
    digits = zone.str.replace(":", "").str.extract(r"[+-](\d{4})").cast(pl.Int64)
    east = digits // 100 * 3600 + digits % 100 * 60
    offset = pl.when(zone.str.starts_with("-")).then(-east).otherwise(east).fill_null(0)
    told = fraction.str.pad_end(9, "0").cast(pl.Int64).fill_null(0)
    return (seconds - offset) * NS_PER_S + told
