"""The report as JSON: the contract that programs and tests read."""

from __future__ import annotations

import json

from roundk.analyze.verdict import Report


def render(report: Report) -> str:
    """The report as indented JSON text."""
    return json.dumps(report.to_json(), indent=2)
