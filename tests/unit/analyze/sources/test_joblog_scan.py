"""The search for lines of interest gives the lines that a plain search gives, whatever the blocks."""

from __future__ import annotations

import io

from hypothesis import given, settings
from hypothesis import strategies as st

from roundk.analyze.sources.joblog import scan
from roundk.analyze.sources.joblog.reading import LITERALS

LINE = st.text(st.sampled_from("ab \té🏖\0"), max_size=30).map(str.encode) | st.binary(max_size=20).map(
    lambda data: data.replace(b"\n", b"").replace(b"\r", b"")
)
FOUND = st.tuples(LINE, st.sampled_from([b"needle", b"pin"]), LINE).map(b"".join)


def scanned(data, *, attentive=False):
    scanner = scan.Scanner(io.BytesIO(data), ["needle", "pin"], lambda *_: None)
    scanner.attentive = attentive
    lines = [(raw.number, raw.text) for raw in scanner if raw.is_hit or attentive]
    return lines, scanner.lines


@given(
    lines=st.lists(LINE | FOUND, max_size=30),
    block=st.integers(64, 400),
    ahead=st.integers(0, 100),
    end=st.sampled_from([b"\n", b"\r\n"]),
    is_cut=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_lines_and_their_numbers(lines, block, ahead, end, is_cut):
    data = end.join(lines) + (b"" if is_cut else end)
    expected = [
        (number, line.decode("utf-8", "replace"))
        for number, line in enumerate(data.split(b"\n"), start=1)
        if b"needle" in line or b"pin" in line
    ]
    block = max(block, max(map(len, lines), default=0) + len(end))  # a line beyond a block is cut, by design
    was = scan.BLOCK, scan.AHEAD
    scan.BLOCK, scan.AHEAD = block, ahead
    try:
        found, count = scanned(data)
    finally:
        scan.BLOCK, scan.AHEAD = was
    assert found == expected
    assert count == data.count(b"\n") + (bool(data) and not data.endswith(b"\n"))


def test_every_line_is_given_where_it_is_asked_for():
    data = b"one\ntwo needle\n\nfour\rfive\n"
    assert scanned(data, attentive=True)[0] == [(1, "one"), (2, "two needle"), (3, ""), (4, "four"), (4, "five")]


def test_progress_bar_is_a_line_of_its_own():
    scanner = scan.Scanner(io.BytesIO(b"12:00 begin\r 10%|#\r 20%|## needle\n"), ["needle"], lambda *_: None)
    ((number, text, is_hit, lead),) = list(scanner)
    assert (number, text, is_hit) == (1, " 20%|## needle", True)
    assert lead.startswith("12:00 begin")


def test_search_has_its_quick_form():
    assert len(LITERALS) <= scan.MOST_LITERALS
    assert min(map(len, LITERALS)) >= 4
