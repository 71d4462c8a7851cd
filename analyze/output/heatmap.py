"""A map with one cell per rank, as SVG: cells of one colour are one path, so that 16,384 ranks stay small and sharp."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from roundk.analyze.output.safe import Html, element

_WIDTH: Final = 1090
_LEFT: Final = 56
_RIGHT: Final = 12
_TOP: Final = 14
_BOTTOM: Final = 12
_ONE_ROW: Final = 16
_NUMBERED: Final = 24
"""Cells of this size hold the rank's number."""

_RULED: Final = 6
"""Cells of this size are told apart by lines; smaller ones only host by host."""

_HOST: Final = 8
"""Ranks of a usual host."""

_DARK: Final = "c34"
_BRIGHT: Final = "12"
"""Marks whose cells are as dark, or as bright, in a dark page as in a light one."""

_MAX_LABELS: Final = 8
_MAX_RINGS: Final = 200


def draw(
    marks: str, ranks: Sequence[int], says: Mapping[str, str], classes: Mapping[str, str], ringed: set[int]
) -> Html:
    """The map.

    Args:
        marks: One character per rank.
        ranks: The ranks, ascending.
        says: What each character says.
        classes: The class of its cells.
        ringed: Ranks that are marked.
    """
    columns = _columns(len(ranks))
    rows = math.ceil(len(ranks) / columns)
    # A row of up to 16 takes half of the page, so that two maps stand side by side.
    cell = max(4, min(30 if columns <= _ONE_ROW else 44, (_WIDTH - _LEFT) // columns))
    # The number of a ringed rank lies beside it inside the map, to the left of those at its right end.
    width, height = _LEFT + columns * cell + (0 if columns <= _ONE_ROW else _RIGHT), _TOP + rows * cell + _BOTTOM
    picture = element(
        "svg",
        *(element("path", class_=classes[mark], d=path) for mark, path in _paths(marks, columns, cell)),
        _grid(columns, rows, cell),
        *_row_names(ranks, columns, rows, cell),
        *(_numbers(marks, ranks, columns, cell) if cell >= _NUMBERED else ()),
        *_rings(marks, ranks, columns, cell, classes, ringed),
        width=width,
        height=height,
        viewBox=f"0 0 {width} {height}",
        role="img",
        aria_label="one cell per rank",
        data_marks=marks,
        data_says=json.dumps(dict(says)),
        data_left=_LEFT,
        data_top=_TOP,
        data_cell=cell,
        data_columns=columns,
    )
    return element("div", element("div", picture, class_="scroll"), _legend(marks, says, classes), _tip(), class_="map")


def _columns(count: int) -> int:
    """Ranks in a row: a power of two, so that hosts do not break, and rows wider than the map is high."""
    if count <= _ONE_ROW:
        return max(count, 1)
    return int(max(_ONE_ROW, 2 ** math.ceil(math.log2(math.sqrt(2 * count)))))


def _paths(marks: str, columns: int, cell: int) -> Iterator[tuple[str, str]]:
    """Per mark, its cells: a box for each run of them in a row."""
    runs: dict[str, list[str]] = {}
    for row in range(math.ceil(len(marks) / columns)):
        line, at = marks[row * columns : (row + 1) * columns], 0
        while at < len(line):
            end = at
            while end < len(line) and line[end] == line[at]:
                end += 1
            box = f"M{_LEFT + at * cell} {_TOP + row * cell}h{(end - at) * cell}v{cell}h{(at - end) * cell}z"
            runs.setdefault(line[at], []).append(box)
            at = end
    return ((mark, "".join(boxes)) for mark, boxes in runs.items())


def _grid(columns: int, rows: int, cell: int) -> Html:
    step = 1 if cell >= _RULED else _HOST
    right, bottom = _LEFT + columns * cell, _TOP + rows * cell
    lines = [f"M{_LEFT + at * cell} {_TOP}V{bottom}" for at in range(step, columns, step)]
    lines += [f"M{_LEFT} {_TOP + at * cell}H{right}" for at in range(1, rows)] if cell >= _RULED else []
    return element("path", class_="grid", d="".join(lines))


def _row_names(ranks: Sequence[int], columns: int, rows: int, cell: int) -> Iterator[Html]:
    every = max(1, math.ceil(16 / cell))
    for row in range(0, rows, every) if rows > 1 else ():
        yield element(
            "text", f"{ranks[row * columns]}", class_="dim small", x=_LEFT - 8, y=_TOP + row * cell + min(cell, 16) - 3,
            text_anchor="end",
        )  # fmt: skip


def _numbers(marks: str, ranks: Sequence[int], columns: int, cell: int) -> Iterator[Html]:
    for at, rank in enumerate(ranks):
        x, y = _LEFT + (at % columns + 0.5) * cell, _TOP + (at // columns + 0.5) * cell + 4
        ground = "cell onhot" if marks[at] in _DARK else "cell onbright" if marks[at] in _BRIGHT else "cell"
        yield element("text", f"{rank}", class_=ground, x=x, y=y)


def _rings(
    marks: str, ranks: Sequence[int], columns: int, cell: int, classes: Mapping[str, str], ringed: set[int]
) -> Iterator[Html]:
    """A frame around each marked rank, and its number beside the first ones that have room."""
    named: list[tuple[int, int]] = []
    marked = [(at, rank) for at, rank in enumerate(ranks) if rank in ringed][:_MAX_RINGS]
    for at, rank in marked:
        column, row = at % columns, at // columns
        reach = max(0.0, 7 - cell / 2)
        x, y = _LEFT + column * cell, _TOP + row * cell
        side = cell + 2 * reach
        frame = {"x": x - reach, "y": y - reach, "width": side, "height": side, "rx": 3}
        if reach:
            yield element("rect", class_=classes[marks[at]], **frame)
        yield element("rect", class_="ring", **frame)
        free = all(abs(row - r) * cell > 15 or abs(column - c) * cell > 90 for r, c in named)
        if cell < _NUMBERED and len(named) < _MAX_LABELS and free:
            named.append((row, column))
            left = column > columns * 0.85
            yield element(
                "text", f"rank {rank}", class_="hot halo", x=x - reach - 6 if left else x + cell + reach + 6,
                y=y + cell / 2 + 4.5, text_anchor="end" if left else "start",
            )  # fmt: skip


def _legend(marks: str, says: Mapping[str, str], classes: Mapping[str, str]) -> Html:
    keys = []
    for mark, text in says.items():
        count = marks.count(mark)
        if count:
            box = element("svg", element("rect", class_=classes[mark], width=12, height=12), width=12, height=12)
            keys.append(element("span", box, f"{text} ({count:,})"))
    return element("div", *keys, class_="legend")


def _tip() -> Html:
    return element("div", class_="tip")
