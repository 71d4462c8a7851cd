"""Of what topics a file that could not be read may have told."""

from __future__ import annotations

import re
from typing import Final

from roundk.analyze.difference.found import Topic
from roundk.analyze.difference.run import Run

_OF_CALLS: Final = frozenset({Topic.CALLS, Topic.STEP_TIME})
_OF_RANK: Final = frozenset({Topic.VERSIONS, Topic.SETTINGS, Topic.GROUPS, Topic.CALLS, Topic.STEP_TIME, Topic.HOSTS})
_OF_LAUNCHER: Final = frozenset({Topic.VERSIONS, Topic.COMMAND})
_OWN: Final = (
    (re.compile(r"rank-\d+-\d+-[\d*]+\.arrow$"), _OF_CALLS),
    (re.compile(r"rank-\d+-\d+\.jsonl$"), _OF_RANK),
    (re.compile(r"rank-\d+-\d+\.(exit|stacks)$"), frozenset[Topic]()),
    (re.compile(r"links-\d+"), frozenset({Topic.LINKS})),
    (re.compile(r"launcher-\d+"), _OF_LAUNCHER),
    (re.compile(r"agent-\d+|early-\d+"), frozenset[Topic]()),
)
"""The files of a run directory, `roundk.tracer.rundir`, and what is in them; any other may hold anything."""
_LINE: Final = re.compile(r":\d+$")
"""Behind the name of a file of which a line could not be read."""


def topics(run: Run) -> frozenset[Topic]:
    """Topics that the files of a run which could not be read may have told of."""
    return frozenset[Topic]().union(*(_of(_LINE.sub("", one.path).rsplit("/", 1)[-1]) for one in run.trace.unreadable))


def _of(name: str) -> frozenset[Topic]:
    return next((told for pattern, told in _OWN if pattern.match(name)), frozenset(Topic))
