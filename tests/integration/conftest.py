from __future__ import annotations

import harness
import pytest


@pytest.fixture
def start(tmp_path):
    """Start a job; whatever is left of it after the test is killed."""
    jobs = []

    def start(command, **options):
        options.setdefault("cwd", tmp_path)
        jobs.append(harness.Job(command, **options))
        return jobs[-1]

    yield start
    for job in jobs:
        job.kill()
