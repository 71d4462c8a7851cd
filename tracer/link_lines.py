"""Which lines of a link sampler's side file can be used: each is looked at once, here, and what is left is as written.

`linkstore` says what the kinds are. A line that a damaged disk or another program has changed is left out and told, and
nothing that it would have named is guessed.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    _Line = dict[str, Any]

_INT64: Final = 2**63
_INT32: Final = 2**31
_MOST_ID: Final = 1_048_576
"""Ids of counters: 16 times as many as a sampler gives. An array is as long as the largest."""
_MOST_LAG_MS: Final = 86_400_000
"""A day; a kernel keeps hardware counters for ten seconds at most."""
_SHOWN: Final = 40
"""Characters of a value that is told as wrong."""


class Bad(NamedTuple):
    """A line that cannot be used: its number, and why."""

    at: int
    why: str


class _Field(NamedTuple):
    """What a key's value must be."""

    is_right: Callable[[Any], bool]
    what: str
    may_lack: bool = False

    @property
    def or_null(self) -> _Field:
        return self._replace(may_lack=True)


def _whole(low: int, high: int) -> Callable[[Any], bool]:
    def check(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and low <= value < high

    return check


def _is_spans(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(one, list) and len(one) == 2 and all(map(_ID.is_right, one)) and sum(one) <= _MOST_ID
        for one in value
    )


_TIME: Final = _Field(_whole(0, _INT64), "a time in nanoseconds")
_COUNT: Final = _Field(_whole(0, _INT64), "a number from 0 to 2^63 - 1")
_NUMBER: Final = _Field(_whole(-_INT64, _INT64), "a number of 64 bits")
_ID: Final = _Field(_whole(1, _MOST_ID), f"a number from 1 to {_MOST_ID - 1:,}")
_WIDE_ID: Final = _Field(_whole(1, _INT64), "a number from 1 to 2^63 - 1")
_PORT: Final = _Field(_whole(0, _INT32), "the number of a port")
_LAG: Final = _Field(_whole(0, _MOST_LAG_MS), "a number of milliseconds below a day")
_TEXT: Final = _Field(lambda value: isinstance(value, str), "a text")
_NAME: Final = _Field(lambda value: isinstance(value, str) and value != "", "a name")
_FLAG: Final = _Field(lambda value: isinstance(value, bool), "true or false")
_NAMES: Final = _Field(
    lambda value: isinstance(value, list) and all(isinstance(one, str) for one in value), "a list of names"
)
_SPANS: Final = _Field(_is_spans, "a list of pairs of ids' first and number")

_KINDS: Final[dict[str, dict[str, _Field]]] = {
    "alive": {"time_ns": _TIME},
    "start": {"time_ns": _TIME, "schema": _COUNT.or_null, "host": _NAME.or_null},
    "counters": {
        "id": _ID,
        "of": _NAME,
        "device": _TEXT,
        "port": _PORT.or_null,
        "lag_ms": _LAG,
        "names": _NAMES,
    },
    "word": {"id": _WIDE_ID, "text": _TEXT},
    "look": {"id": _WIDE_ID, "counters": _SPANS},
    "netdev": {
        "time_ns": _TIME,
        "error_ns": _COUNT.or_null,
        "device": _NAME,
        "is_up": _FLAG,
        "is_admin_up": _FLAG.or_null,
        "is_gone": _FLAG.or_null,
        "changes": _NUMBER.or_null,
    },
    "ib_port": {
        "time_ns": _TIME,
        "error_ns": _COUNT.or_null,
        "device": _NAME,
        "port": _PORT.or_null,
        "state": _TEXT,
        "is_up": _FLAG,
    },
    "used": {"time_ns": _TIME, "of": _NAME, "device": _NAME, "port": _PORT.or_null, "by": _TEXT},
    "address": {"time_ns": _TIME, "address": _NAME, "is_used": _FLAG.or_null},
    "gap": {"time_ns": _TIME, "for_ms": _COUNT},
    "unreadable": {"time_ns": _TIME, "what": _TEXT, "why": _TEXT},
    "xid": {"time_ns": _TIME, "bus_id": _TEXT, "xid": _NUMBER, "is_switch": _FLAG.or_null, "text": _TEXT},
    "off": {"time_ns": _TIME, "why": _TEXT},
    "deleted": {"time_ns": _TIME},
    "lost": {"time_ns": _TIME},
    "end": {"time_ns": _TIME},
}
_NAMING: Final = frozenset({"counters", "word", "look"})
"""Kinds that give ids; each id is given once."""


def sorted_out(lines: Iterable[tuple[int, _Line | None]]) -> tuple[list[_Line], list[Bad]]:
    """The lines that can be used, with their number under `at`, and the others.

    Args:
        lines: Number of each line, and what it holds; None: no JSON object.
    """
    good: list[_Line] = []
    bad: list[Bad] = []
    given: dict[tuple[str, int], int] = {}
    for at, line in lines:
        why = "it is not whole" if line is None else _wrong(line) or _given_before(line, given)
        if line is None or why:
            bad.append(Bad(at, str(why)))
            continue
        good.append({**line, "at": at})
        given |= dict.fromkeys(_ids(line), at)
    return good, bad


def began_ns(lines: Iterable[_Line]) -> int:
    """When a sampler started; where no line of its start is left, its last sign of life; 0 without any."""
    times = [(line["kind"] == "start", line["time_ns"]) for line in lines if "time_ns" in line]
    return int(max(times, default=(False, 0))[1])


def _wrong(line: _Line) -> str:
    """What is wrong with a line by itself; empty: nothing."""
    kind = line.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        return f"`kind` is {_shown(kind)}, which this version of roundk does not know" if kind else "`kind` is missing"
    for name, field in _KINDS[kind].items():
        value = line.get(name)
        if value is None and field.may_lack:
            continue
        if name not in line:
            return f"`{name}` is missing"
        if not field.is_right(value):
            return f"`{name}` is {_shown(value)}, not {field.what}"
    if kind == "counters" and line["id"] + len(line["names"]) > _MOST_ID:
        return f"`id` is {line['id']}, too large for {len(line['names'])} names"
    return ""


def _given_before(line: _Line, given: dict[tuple[str, int], int]) -> str:
    first = next((given[one] for one in _ids(line) if one in given), None)
    return "" if first is None else f"line {first} gives the same id"


def _ids(line: _Line) -> list[tuple[str, int]]:
    """The ids that a line gives."""
    kind = line["kind"]
    count = len(line["names"]) if kind == "counters" else 1 if kind in _NAMING else 0
    return [(kind, number) for number in range(line["id"], line["id"] + count)] if count else []


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
