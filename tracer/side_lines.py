"""Which lines of a run's files can be used: each is looked at once, here, and what is left is as written.

`side`, `linkstore` and `hooks` say what the kinds are; listed here are the keys that the reader uses. A line that a
damaged disk or another program has changed is left out and told, and nothing that it would have named is guessed.
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
_MOST_RANKS: Final = 1_048_576
"""More than the largest job has; there is a row for each."""
_MOST_PLACES: Final = 16_777_216
"""Ids of places and groups. An array is as long as the largest."""
_LONGEST_NS: Final = 366 * 86_400_000_000_000
"""A year: no process of a job lives longer."""
_MOST_LAG_MS: Final = 86_400_000
"""A day; a kernel keeps hardware counters for ten seconds at most."""
_SURROGATE: Final = "\\ud"
"""How JSON spells half a character: Python's sign for a byte that is no text, or one of the two of an emoji."""
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


def _is_rank_runs(value: Any) -> bool:
    """`[first, number, step]` of each run of a group's ranks, none of them twice."""
    if not isinstance(value, list) or not all(
        isinstance(one, list) and len(one) == 3 and all(map(_RANK.is_right, one)) and one[2] for one in value
    ):
        return False
    count = sum(number for _, number, _ in value)
    if count > _MOST_RANKS or any(first + number * step > _MOST_RANKS for first, number, step in value):
        return False
    if len(value) == 1:  # as nearly all are, and in the files of all ranks: there is nothing to go through
        return True
    ranks = {rank for first, number, step in value for rank in range(first, first + number * step, step)}
    return len(ranks) == int(count)


def _is_loops(value: Any) -> bool:
    return isinstance(value, list) and all(one is None or _LINE_NUMBER.is_right(one) for one in value)


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

_RANK: Final = _Field(_whole(0, _MOST_RANKS), f"a number from 0 to {_MOST_RANKS - 1:,}")
_SIZE: Final = _Field(_whole(0, _MOST_RANKS + 1), f"a number from 0 to {_MOST_RANKS:,}")
_RANK_RUNS: Final = _Field(_is_rank_runs, "a list of runs of ranks, each its first, number and step, no rank twice")
_PLACE: Final = _Field(_whole(0, _MOST_PLACES), f"a number from 0 to {_MOST_PLACES - 1:,}")
_PID: Final = _Field(_whole(0, _INT32), "the id of a process")
_CODE: Final = _Field(_whole(1 - _INT32, _INT32), "an exit code")
_SMALL: Final = _Field(_whole(0, _INT32), "a number from 0 to 2^31 - 1")
_LINE_NUMBER: Final = _Field(_whole(0, _INT32), "the number of a line")
_LOOPS: Final = _Field(_is_loops, "a list of the numbers of lines")
_LIST: Final = _Field(lambda value: isinstance(value, list), "a list")
_BY_NAME: Final = _Field(lambda value: isinstance(value, dict), "values by name")


class Kinds(NamedTuple):
    """What a sort of file may hold.

    Attributes:
        fields: The keys of each kind that are used.
        other: The same of any other kind; None: there is no other.
        naming: Kinds that give ids; each id is given once.
    """

    fields: dict[str, dict[str, _Field]]
    other: dict[str, _Field] | None
    naming: frozenset[str] = frozenset()


_ABOUT: Final = {
    "time_ns": _TIME.or_null,
    "rank": _RANK.or_null,
    "pid": _PID.or_null,
    "world_size": _SIZE.or_null,
    "attempt": _SMALL.or_null,
}
_RAISED: Final = {**_ABOUT, "time_ns": _TIME, "type": _TEXT.or_null, "message": _TEXT.or_null, "site": _TEXT.or_null}

RANK: Final = Kinds(
    {
        "alive": {"time_ns": _TIME},
        "process": {**_ABOUT, "host": _NAME.or_null, "main_thread": _NUMBER.or_null, "network": _BY_NAME.or_null},
        "environment": dict.fromkeys(("settings", "recorder", "versions"), _BY_NAME.or_null),
        "group": {
            "id": _PLACE,
            "name": _TEXT,
            "desc": _TEXT.or_null,
            "backend": _TEXT.or_null,
            "epoch": _SMALL.or_null,
            "size": _SIZE.or_null,
            "ranks": _RANK_RUNS,
        },
        "site": {
            "id": _PLACE,
            "file": _TEXT,
            "line": _LINE_NUMBER,
            "function": _TEXT,
            "loop": _LINE_NUMBER.or_null,
            "stack": _NAMES.or_null,
            "loops": _LOOPS.or_null,
        },
        "signature": {"id": _COUNT, "op": _TEXT.or_null, "splits": _LIST.or_null},
        "exception": _RAISED,
        "thread_exception": _RAISED,
        "goodbye": {"time_ns": _TIME},
        "lost": {**_ABOUT, "calls": _COUNT, "why": _TEXT.or_null},
        "off": {**_ABOUT, "why": _TEXT.or_null},
    },
    other=_ABOUT,
    naming=frozenset({"group", "site", "signature"}),
)
"""Of a rank."""

PARENT: Final = Kinds(
    {
        "alive": {"time_ns": _TIME},
        "start": {**_ABOUT, "time_ns": _TIME, "command": _NAMES.or_null, "versions": _BY_NAME.or_null},
        "state": {**_ABOUT, "time_ns": _TIME, "pid": _PID, "state": _TEXT, "code": _CODE.or_null},
        "exit": {**_ABOUT, "time_ns": _TIME, "pid": _PID, "code": _CODE},
        "end": {**_ABOUT, "time_ns": _TIME, "code": _CODE},
    },
    other=_ABOUT,
)
"""Of a launcher or an agent."""

EARLY: Final = Kinds(
    {
        "exception": {**_RAISED, "rank": _RANK, "pid": _PID},
        "off": {**_ABOUT, "time_ns": _TIME, "rank": _RANK, "pid": _PID, "why": _TEXT},
    },
    other=_ABOUT,
)
"""Of a process without files of its own."""

MARK: Final = Kinds(
    {}, other={"kind": _TEXT.or_null, "time_ns": _TIME.or_null, "call": _NUMBER.or_null, "why": _TEXT.or_null}
)
"""Of the headline of a dump of stacks."""

_OF_SAMPLER: Final[dict[str, dict[str, _Field]]] = {
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
SAMPLER: Final = Kinds(_OF_SAMPLER, other=None, naming=frozenset({"counters", "word", "look"}))
"""Of a sampler of links."""


def object_of(raw: str) -> _Line | None:
    """What a line holds; None: it is no whole JSON object."""
    try:
        line = json.loads(raw)
        if _SURROGATE in raw.lower():
            line = _written_out(line)
    except (ValueError, RecursionError):  # no JSON; brackets in brackets by the thousand
        return None
    return line if isinstance(line, dict) else None


def _written_out(value: Any) -> Any:
    """The same with what is no text, as in a name of bytes that are no UTF-8, written out.

    No table and no report takes half a character, and one such name must not cost the rest.
    """
    if isinstance(value, dict):
        return {_written_out(key): _written_out(inside) for key, inside in value.items()}
    if isinstance(value, list):
        return [_written_out(inside) for inside in value]
    return _text_of(value) if isinstance(value, str) else value


def _text_of(text: str) -> str:
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # not of Python's names of bytes, but half a pair
        return text.encode("utf-8", "backslashreplace").decode()


def sorted_out(lines: Iterable[tuple[int, _Line | None]], kinds: Kinds) -> tuple[list[_Line], list[Bad]]:
    """The lines that can be used, with their number under `at`, and the others.

    Args:
        lines: Number of each line, and what it holds; None: no JSON object.
        kinds: What the file may hold.
    """
    good: list[_Line] = []
    bad: list[Bad] = []
    given: dict[tuple[str, int], int] = {}
    for at, line in lines:
        why = "it is not whole" if line is None else _wrong(line, kinds) or _given_before(line, kinds, given)
        if line is None or why:
            bad.append(Bad(at, str(why)))
            continue
        good.append({**line, "at": at})
        given |= dict.fromkeys(_ids(line, kinds), at)
    return good, bad


def began_ns(start_ns: int, last_ns: int) -> int:
    """When a process began, by its start; by its last sign of life where that is not told or cannot be.

    Args:
        start_ns: Its start as told; 0: not told.
        last_ns: Its last sign of life; 0: none.
    """
    return start_ns if start_ns and last_ns - start_ns <= _LONGEST_NS else last_ns


def last_ns(lines: Iterable[_Line]) -> int:
    """The last time that a file tells, its sign of life mostly; 0 without any."""
    return max((int(line.get("time_ns") or 0) for line in lines), default=0)


def _wrong(line: _Line, kinds: Kinds) -> str:
    """What is wrong with a line by itself; empty: nothing."""
    kind = line.get("kind")
    fields = kinds.fields.get(kind, kinds.other) if isinstance(kind, str) else None
    if fields is None:
        return f"`kind` is {_shown(kind)}, which this version of roundk does not know" if kind else "`kind` is missing"
    for name, field in fields.items():
        value = line.get(name)
        if value is None and field.may_lack:
            continue
        if name not in line:
            return f"`{name}` is missing"
        if not field.is_right(value):
            return f"`{name}` is {_shown(value)}, not {field.what}"
    if kinds is SAMPLER and kind == "counters" and line["id"] + len(line["names"]) > _MOST_ID:
        return f"`id` is {line['id']}, too large for {len(line['names'])} names"
    if kinds is RANK and kind == "group":
        count = sum(number for _, number, _ in line["ranks"])
        if count and line.get("size") not in (None, count):
            return f"`ranks` are {count}, and `size` is {line['size']}"
    return ""


def _given_before(line: _Line, kinds: Kinds, given: dict[tuple[str, int], int]) -> str:
    first = next((given[one] for one in _ids(line, kinds) if one in given), None)
    return "" if first is None else f"line {first} gives the same id"


def _ids(line: _Line, kinds: Kinds) -> list[tuple[str, int]]:
    """The ids that a line gives."""
    kind = line["kind"]
    count = 0 if kind not in kinds.naming else len(line["names"]) if kind == "counters" else 1
    return [(kind, number) for number in range(line["id"], line["id"] + count)] if count else []


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
