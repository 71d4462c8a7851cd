"""What a run leaves behind, in a random form, and the report on it."""

from __future__ import annotations

import time

from generated import emit_dumps, emit_logs, emit_run, emit_table

from roundk.analyze import sources
from roundk.analyze.diagnose import diagnose

LOGS = 0.4
"""Share of the dumps that come with the job's log."""


def leave(case, folder):
    """Write what is left of a job; give the form in words, and what makes the report."""
    draw = case.rng.random()
    if draw < 0.25:
        recording = emit_run.Recording(case)
        case.is_left_behind = False
        return recording.words(), recording.report
    if draw < 0.37:
        return emit_table.write(case, folder), lambda: _of_files(folder)
    form = emit_dumps.form(case)
    emit_dumps.write(case, form, folder)
    case.lost = frozenset(form.missing | form.truncated | form.empty)
    case.has_sites = form.has_frames and not form.is_json
    words = _described(form)
    if case.truth.needs.startswith("hang") and case.rng.random() < LOGS:
        emit_logs.write(case, folder / "job.log")
        words += " log"
    return words, lambda: _of_files(folder)


def _of_files(folder):
    trace, _ = sources.load([str(folder)])
    return diagnose(trace, now_ns=time.time_ns())


def _described(form):
    words = [f"dumps-{form.version}", form.backend, "json" if form.is_json else "pickle"]
    for name in ("has_frames", "is_timed", "only_active", "buffer", "missing", "truncated", "empty", "other_version"):
        value = getattr(form, name)
        if value:
            words.append(name if value is True else f"{name}={value}")
    return " ".join(words)
