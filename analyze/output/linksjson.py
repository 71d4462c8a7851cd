"""What a job's links did, as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, Final

from roundk.analyze.links import names
from roundk.analyze.links.counted import per_s
from roundk.analyze.links.view import Links
from roundk.analyze.verdict import Report

SCHEMA: Final = 1
"""Version of this form."""


def render(links: Links, report: Report) -> str:
    """The links as indented JSON text.

    Every counter that was read is there, moved or not; rates are per second, and null where a time is not known or
    nothing was read in it. Throughput is in bytes, whatever unit the counter has.

    Args:
        links: What is known of them.
        report: The report on the job.
    """
    first = report.verdicts[0]
    told = {
        "schema": SCHEMA,
        "status": report.status.value,
        "structure": first.structure.value,
        "cause": first.cause,
        "begin_ns": links.begin_ns,
        "end_ns": links.end_ns,
        "hosts": links.hosts,
        "rounds": [asdict(one) for one in links.windows],
        "events": [asdict(one) for one in links.events],
        "ports": [asdict(one) for one in links.ports],
        "counters": [_counter(row) for row in links.counters.iter_rows(named=True)],
        "peers": list(links.peers.iter_rows(named=True)),
        "unreadable": list(links.unread.iter_rows(named=True)),
        "at_largest": list(links.full.iter_rows(named=True)),
        "not_watched": [
            {"host": one.host, "time_ns": one.time_ns, "what": one.text, "source": one.source} for one in links.gaps
        ],
    }
    return json.dumps(told, indent=2)


def _counter(row: dict[str, Any]) -> dict[str, Any]:
    made = dict(row)
    made["per_s"] = per_s(row["moved"], row["run_ns"])
    made["inside"] = row["inside"] if row["covered_ns"] else None
    made["inside_per_s"] = per_s(row["inside"], row["covered_ns"])
    if row["counter"] in names.BYTES:
        factor = names.BYTES[row["counter"]][1]
        for name in ("per_s", "inside_per_s"):
            rate = made[name]
            made["bytes_" + name] = None if rate is None else rate * factor
    return made
