"""The queries of docs/batch.md, run as they stand there, against answers that plain Python gives of the same plan."""

from __future__ import annotations

import datetime as dt
import pathlib
import random
import re
from collections import defaultdict

import duckdb
import pyarrow.parquet as pq
import pytest
from planted.rows import row, table

from roundk.analyze.batch.table import RUNS

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "batch.md"
MONDAY = dt.datetime(2026, 9, 28, tzinfo=dt.UTC)
NEVER = dt.datetime.max.replace(tzinfo=dt.UTC)
INTERRUPTED = ("failed", "stuck", "undetermined")
HOSTS = [f"gpu-{number:02d}" for number in range(6)]
CAUSES = ("LINK_DOWN", "GPU_FAULT", "OOM_KILLED", "EXCEPTION", "CODE_DIVERGENCE", "UNDETERMINED")


def blocks(language):
    """The blocks of a language in the section, in their order."""
    section = DOCS.read_text().split("\n## SQL\n")[1].split("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


def plan():
    """Some 120 runs of five weeks with all that can be null, one job in four with attempts."""
    rng = random.Random(7)
    made = []
    for number in range(120):
        is_again = number % 4 == 0  # an attempt of one of three jobs, which tend to fail alike
        cause = CAUSES[number // 40] if is_again and rng.random() < 0.6 else rng.choice(CAUSES)
        status = rng.choice(("failed", "failed", "stuck", "undetermined", "slow"))
        begin = MONDAY + dt.timedelta(minutes=rng.randrange(5 * 7 * 24 * 60))
        onset = begin + dt.timedelta(minutes=rng.randrange(1, 3000)) if rng.random() < 0.8 else None
        end = begin + dt.timedelta(minutes=3000 + rng.randrange(60)) if rng.random() < 0.9 else None
        hours = 16 * (end - onset).total_seconds() / 3600 if onset and end and status in INTERRUPTED else None
        run = row(
            f"runs/{number:03d}",
            job=f"{900 + number // 40}" if is_again else None,
            status=status,
            cause=cause,
            structure=rng.choice(("RANK_NOT_ENTERED", "ALL_ENTERED_NONE_COMPLETED")),
            cause_confidence="none" if cause == "UNDETERMINED" else rng.choice(("high", "medium", "low")),
            culprit_hosts=rng.sample(HOSTS, rng.choice((0, 1, 1, 2))),
            started_at=begin if rng.random() < 0.95 else None,
            onset_at=onset,
            ended_at=end,
            world_size=16,
            gpu_hours=16 * (end - begin).total_seconds() / 3600 if end else None,
            gpu_hours_lost=hours,
        )
        made.append(run)
        if number % 10 == 0:  # a second, independent root
            made.append({**run, "verdict": 1, "cause": "LINK_FLAP", "gpu_hours_lost": None})
        if number % 30 == 0:  # one that could not be judged
            made.append(row(f"runs/{number:03d}b", status="error", structure=None, cause=None, problem="cut short"))
    return made


def total(values):
    known = [value for value in values if value is not None]
    return pytest.approx(sum(known)) if known else None


def by_week(rows):
    found = defaultdict(list)
    for one in rows:
        if one["verdict"] == 0 and one["status"] in INTERRUPTED:
            at = one["onset_at"] or one["ended_at"] or one["started_at"]
            week = at and (at - dt.timedelta(days=at.weekday())).replace(hour=0, minute=0, second=0)
            found[week, one["cause"]].append(one["gpu_hours_lost"])
    ordered = sorted(found.items(), key=lambda one: (one[0][0] or NEVER, -len(one[1]), one[0][1]))
    return [(week and week.replace(tzinfo=None), cause, len(lost), total(lost)) for (week, cause), lost in ordered]


def blamed_hosts(rows):
    found = defaultdict(list)
    for one in rows:
        is_blame = one["category"] in ("network", "host", "gpu") and one["cause_confidence"] in ("high", "medium")
        if one["verdict"] == 0 and one["status"] in ("failed", "stuck") and is_blame:
            for host in set(one["culprit_hosts"]):
                found[host].append(one)
    made = []
    for host, its in found.items():
        jobs = {one["job"] or one["run"] for one in its}
        if len(jobs) > 1:
            known = [one["gpu_hours_lost"] for one in its if one["gpu_hours_lost"] is not None]
            order = (-len(jobs), -sum(known) if known else 1, host)
            causes = sorted({one["cause"] for one in its})
            made.append((order, (host, len(jobs), len(its), total(known), causes)))
    return [answer for _, answer in sorted(made, key=lambda one: one[0])]


def failed_alike(rows):
    found = defaultdict(list)
    for one in rows:
        is_told = one["cause"] not in (None, "UNDETERMINED") and one["status"] in ("failed", "stuck")
        if one["verdict"] == 0 and one["job"] and is_told:
            found[one["job"], one["structure"], one["cause"]].append(one)
    made = []
    for key, its in found.items():
        if len(its) > 1:
            its.sort(key=lambda one: (one["started_at"] is None, one["started_at"] or 0, one["run"]))
            ends = [at for one in its if (at := one["ended_at"] or one["started_at"])]
            last = max(ends).replace(tzinfo=None) if ends else None
            made.append((*key, [one["run"] for one in its], last, total(one["gpu_hours"] for one in its)))
    return sorted(made, key=lambda one: (-len(one[3]), *one[:3]))


ANSWERS = (by_week, blamed_hosts, failed_alike)
ROWS = plan()


@pytest.fixture
def beside_the_table(tmp_path, monkeypatch):
    (tmp_path / "roundk-batch").mkdir()
    pq.write_table(table(ROWS), tmp_path / "roundk-batch" / "runs.parquet")
    monkeypatch.chdir(tmp_path)


def test_every_block_of_the_file_is_among_the_queries():
    text = DOCS.read_text()
    assert text.count("```") % 2 == 0
    for language in ("sql", "python"):
        assert len(re.findall(rf"^```{language}$", text, re.MULTILINE)) == len(blocks(language))
    # What else is fenced is shown and not run: the commands, and the example of a topology file.
    fences = re.findall(r"^```(\w*)$", text, re.MULTILINE)[::2]
    assert sorted(fences) == sorted(["", "", *["sql"] * len(ANSWERS), *["python"] * len(ANSWERS)])


def test_the_columns_are_those_of_the_table():
    section = DOCS.read_text().split("\n## The columns of the table\n")[1].split("\n## ")[0]
    told = re.findall(r"^\| `(\w+)` \| `([^`]+)` \| (.+) \|$", section, re.MULTILINE)
    assert [(name, kind, doc.replace("\\|", "|")) for name, kind, doc in told] == [
        (column.name, str(column.type), column.metadata[b"doc"].decode()) for column in RUNS
    ]


def test_there_is_an_answer_for_each_query():
    assert len(blocks("sql")) == len(blocks("python")) == len(ANSWERS)
    assert all(len(answer(ROWS)) > 1 for answer in ANSWERS)


@pytest.mark.parametrize("number", range(len(ANSWERS)), ids=lambda number: ANSWERS[number].__name__)
@pytest.mark.usefixtures("beside_the_table")
def test_the_query_in_duckdb(number):
    assert duckdb.sql(blocks("sql")[number]).fetchall() == ANSWERS[number](ROWS)


@pytest.mark.parametrize("number", range(len(ANSWERS)), ids=lambda number: ANSWERS[number].__name__)
@pytest.mark.usefixtures("beside_the_table")
def test_the_query_in_polars(number):
    names = {}
    exec(blocks("python")[number], names)  # this is what a reader runs
    assert names["answer"].rows() == ANSWERS[number](ROWS)
