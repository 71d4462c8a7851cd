"""Logs for tests: text in files of their own, read as the command reads them."""

from __future__ import annotations

import json
import os
import pathlib
import tempfile
from datetime import UTC, datetime

from roundk.analyze.sources import joblog
from roundk.analyze.sources.inputs import Hints, Input

WRITTEN = datetime(2026, 12, 1, tzinfo=UTC)
"""When the files were last written, unless a test says otherwise: lines without a year are of the year before it."""


def ns(text):
    """`2026-06-26T10:42:17.101223001` as Unix time in nanoseconds, without this project's own reading of times."""
    whole, _, fraction = text.partition(".")
    seconds = datetime.fromisoformat(whole).replace(tzinfo=UTC).timestamp()
    return int(seconds) * 10**9 + int(fraction.ljust(9, "0") or 0)


def item(folder, name, content, *, written=WRITTEN):
    path = pathlib.Path(folder) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    os.utime(path, (written.timestamp(), written.timestamp()))
    return Input(name, path)


def part(*contents, names=("job.log", "other.log", "third.log"), hints=None, **named):
    """What is read of logs with these contents; `named` maps further names to contents."""
    with tempfile.TemporaryDirectory() as folder:
        items = [item(folder, name, content) for name, content in zip(names, contents, strict=False)]
        items += [item(folder, name, content) for name, content in named.items()]
        return joblog.load(items, hints or Hints())


def facts(found, *kinds):
    """The facts of a part as rows, `fields` as a dict."""
    rows = found.facts.iter_rows(named=True)
    return [{**row, "fields": json.loads(row["fields"] or "{}")} for row in rows if not kinds or row["kind"] in kinds]


def fact(found, kind):
    """The one fact of a kind."""
    rows = facts(found, kind)
    assert len(rows) == 1, rows or [row["kind"] for row in facts(found)]
    return rows[0]
