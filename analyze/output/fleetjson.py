"""What many runs say together, as JSON."""

from __future__ import annotations

import datetime as dt
import json
import math
from dataclasses import asdict
from typing import Any, Final

from roundk.analyze.batch import llama3, shares
from roundk.analyze.batch.fleet import Counted, Fleet
from roundk.analyze.batch.offenders import Answer, Finding

SCHEMA: Final = 1
"""Version of this form."""


def render(fleet: Fleet) -> str:
    """The report as indented JSON text: times in ISO 8601, UTC; shares in percent, computed from the counts."""
    told = {
        "schema": SCHEMA,
        "runs": asdict(fleet.states),
        "interruptions": {
            "total": fleet.states.interrupted,
            "first": _time(fleet.first),
            "last": _time(fleet.last),
            "by_category": [_counted(one) for one in fleet.categories],
            "by_cause": [_counted(one) for one in fleet.causes],
            "undetermined_structures": [{"structure": name, "count": count} for name, count in fleet.untold],
        },
        "slow_by_cause": [_counted(one) for one in fleet.slow],
        "gpu_hours_lost": {
            "gpu_hours": fleet.lost.gpu_hours,
            "known_of_runs": fleet.lost.known,
            "of_runs": fleet.lost.of,
        },
        "between_failures": asdict(fleet.between),
        "repeat_offenders": {"blame": _answer(fleet.blame), "presence": _answer(fleet.presence)},
        "topology": None if fleet.layout is None else asdict(fleet.layout),
        "places": [asdict(one) for one in fleet.parts],
        "shared_places": [asdict(one) for one in fleet.shared],
        "repeats": [asdict(one) for one in fleet.repeats],
        "weeks": [
            {
                "week": week.name,
                "begins": week.begins.isoformat(),
                "interruptions": week.count,
                "by_category": dict(week.interruptions),
                "gpu_hours": week.gpu_hours,
                "per_1000_gpu_hours": week.per_1000_gpu_hours,
            }
            for week in fleet.trend.weeks
        ],
        "without_a_time": fleet.trend.untimed,
        "earlier_than_the_weeks": fleet.trend.earlier,
        "problems": [{"run": run, "problem": why} for run, why in fleet.problems],
        "left_out": [_utf8(one) for one in fleet.left_out],
        "reference": _reference(),
    }
    return json.dumps(told, indent=2)


def _utf8(text: str) -> str:
    """Text in which bytes of a file's name that are no UTF-8 are written out."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _counted(one: Counted) -> dict[str, Any]:
    return {
        "name": one.name,
        "category": one.category,
        "count": one.count,
        "total": one.total,
        "percent": one.share,
        "by_confidence": dict(one.sure),
        "gpu_hours_lost": one.gpu_hours_lost,
        "gpu_hours_lost_of_runs": one.lost_of,
    }


def _answer(answer: Answer) -> dict[str, Any]:
    return {
        "test": answer.test,
        "jobs": answer.jobs,
        "tested": dict(answer.tested),
        "findings": [_finding(one) for one in answer.findings],
        "not_more_than_chance": [_finding(one) for one in answer.most],
        "remark": answer.remark,
    }


def _finding(one: Finding) -> dict[str, Any]:
    return {
        "kind": one.unit.kind,
        "name": one.unit.name,
        "jobs": one.jobs,
        "used_in_jobs": one.used_in,
        "expected": one.expected,
        "p": one.p,
        "log10_p": one.log_p / math.log(10),
        "p_corrected": one.corrected,
        "runs": one.runs,
        "causes": dict(one.causes),
        "first": _time(one.first),
        "last": _time(one.last),
    }


def _reference() -> dict[str, Any]:
    return {
        "name": llama3.NAME,
        "source": llama3.SOURCE,
        "unexpected": llama3.UNEXPECTED,
        "planned": llama3.PLANNED,
        "hours_between": llama3.hours_between(),
        "by_category": {
            category: {"count": count, "percent": shares.percent(count, llama3.UNEXPECTED)}
            for category, count in llama3.by_category().items()
        },
        "rows": [
            {
                "component": row.component,
                "their_category": row.theirs,
                "category": row.category,
                "count": row.count,
                "percent": shares.percent(row.count, llama3.UNEXPECTED),
                "percent_printed": row.printed,
            }
            for row in llama3.ROWS
        ],
        "footnotes": llama3.footnotes(),
    }


def _time(at: dt.datetime | None) -> str | None:
    return None if at is None else at.astimezone(dt.UTC).isoformat()
