"""Fuzzes the reader of job logs: `python tests/fuzz/fuzz_log.py --executions 1000000`.

Whatever the bytes: every line goes through the prefixes, the parsers, and what follows messages of several lines; of
every 256th input tables are built as well, and every 2,048th goes the whole way, through the search for lines too.
"""

from __future__ import annotations

import io
import pathlib
import sys
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "unit" / "analyze"))

import driver

with driver.instrumented("roundk.analyze.sources.joblog"):
    from roundk.analyze.sources import joblog
    from roundk.analyze.sources.inputs import Hints, Input
    from roundk.analyze.sources.joblog.book import Book
    from roundk.analyze.sources.joblog.reading import Reading
    from roundk.analyze.sources.joblog.resolve import Ranks
    from roundk.analyze.sources.joblog.scan import Raw
    from roundk.analyze.sources.joblog.tables import Tables

import log_lines

TABLES = 256
LOADED = 2048


class Lines:
    """All lines of a text, for the part of a reading that comes after the search."""

    def __init__(self, text):
        self._lines = text.split("\n")
        self._at = 0

    def __iter__(self):
        for at, line in enumerate(self._lines):
            self._at = at
            yield Raw(at + 1, line, is_hit=True, lead="")

    def following(self):
        return iter(self._lines[self._at + 1 :])

    def before(self):
        return "\n".join(self._lines[max(0, self._at - 4) : self._at])


def target(data):
    """Fuzz the reader of job logs."""
    log = Input("job.log", pathlib.Path("x"), lambda _: io.BytesIO(data))
    book = Book()
    reading = Reading(log, 0, book)
    lines = Lines(data.decode("utf-8", "replace"))
    for raw in lines:
        reading._line(raw, lines)
    reading._close()
    lot = zlib.crc32(data)
    if lot % TABLES == 0:
        ranks = Ranks(book, [log], Hints())
        tables = Tables(book, ranks, [log])
        assert tables.facts().height == len(list(book.facts()))
        tables.calls()
        assert set(tables.progress()["group"]) <= {row["group"] for row in tables.group_rows()}
    if lot % LOADED == 0 and joblog.recognises(log):
        part = joblog.load([log, log], Hints())
        assert not part.unreadable
        assert len(part.read) + len(part.ignored) == 2
        assert set(part.calls["group"]) <= set(part.groups["group"])
        assert set(part.calls["rank"]) <= set(part.ranks["rank"])


def seeds():
    for known in log_lines.LINES:
        yield known.text.encode()
    yield log_lines.MIXED.encode()


if __name__ == "__main__":
    driver.main(target, seeds(), longest=1024)
