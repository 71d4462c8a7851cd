"""Call sites: the right line, the loop around it, and not torch's or the standard library's."""

from __future__ import annotations

import contextlib
import json

from roundk.hooks import sites
from roundk.tracer import side

SOURCE = """
def flat(call):
    call()

def loops(call, stop):
    for outer in range(1):
        while not stop():
            call()
        call()
    call()

def branches(call):
    for i in range(2):
        if i == 0:
            call()
            continue
        try:
            call()
        finally:
            pass
"""


def lines_with_loops(function, *args):
    found = []

    def call():
        import sys

        frame = sys._getframe(1)
        found.append((frame.f_lineno, sites.loop_line(frame.f_code, frame.f_lasti)))

    function(call, *args)
    return found


def test_the_innermost_loop_around_a_call():
    namespace = {}
    exec(compile(SOURCE, "train.py", "exec"), namespace)
    answers = iter([False, True])
    assert lines_with_loops(namespace["flat"]) == [(3, None)]
    assert lines_with_loops(namespace["loops"], lambda: next(answers)) == [(8, 7), (9, 6), (10, None)]
    assert lines_with_loops(namespace["branches"]) == [(15, 13), (18, 13)]


def recorded(path):
    return [line for line in map(json.loads, filter(None, path.read_text().split("\n"))) if line["kind"] == "site"]


def test_a_site_is_stored_once_with_its_stack(tmp_path):
    path = tmp_path / "rank.jsonl"
    file = side.SideFile(str(path))
    file.renew(1)
    known = sites.Sites(file)

    def entered():
        return known.here()

    def kernel():
        return entered()

    def helper():
        return kernel()

    ids = [helper() for _ in range(3)]
    assert ids == [1, 1, 1]
    [site] = recorded(path)
    assert site["file"] == __file__
    assert site["function"].endswith("helper")
    assert site["stack"][0] == f"{__file__}:{site['line']} {site['function']}"
    assert any("test_a_site_is_stored_once_with_its_stack" in frame for frame in site["stack"])


def test_the_standard_librarys_frames_are_not_the_users(tmp_path):
    path = tmp_path / "rank.jsonl"
    file = side.SideFile(str(path))
    file.renew(1)
    known = sites.Sites(file)

    def entered():
        return known.here()

    def kernel():
        return entered()

    with contextlib.ExitStack() as stack:
        stack.callback(kernel)  # called from contextlib.py
        expected = "test_the_standard_librarys_frames_are_not_the_users"
    [site] = recorded(path)
    assert (site["file"], site["function"]) == (__file__, expected)
