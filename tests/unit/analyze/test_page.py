"""The page: it loads nothing, runs nothing of its inputs, shows the stacks of both sides and a mark for every rank."""

from __future__ import annotations

import base64
import hashlib
import html.parser
import pathlib
import re

import pytest
import wide
from jobs import Job

from roundk.analyze import diagnose, heat
from roundk.analyze.case import build
from roundk.analyze.output import html as page
from roundk.analyze.output.beside import beside
from roundk.analyze.picture import pictures
from roundk.analyze.trace import Trace


def case_of(trace):
    return build(trace, now_ns=trace.ended_ns or 2 * 10**18, stall_ns=diagnose.STALL_NS)


def hung():
    job = Job(4).rounds(5).hang(without=[1], gave_up=20)
    return case_of(job.trace(ended=job.clock + 1, exit_code=1))


class Page(html.parser.HTMLParser):
    """What a page holds: tags with their attributes, scripts, the text of its elements."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.scripts, self.texts, self.open = [], [], [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        (self.scripts if self.open[-1:] == ["script"] else self.texts).append(data)


def page_of(case):
    report = diagnose.report(case)
    return page.render(case, report, pictures(case, report))


def test_page_loads_nothing_and_runs_only_its_own_script():
    found = Page(page_of(hung()))
    assert not found.open
    assert {tag for tag, _ in found.tags} & {"img", "iframe", "object", "embed", "form", "base", "a"} == set()
    assert not [a for _, attrs in found.tags for a in attrs if a.startswith("on") or a in ("src", "xlink:href")]
    assert [attrs["href"] for _, attrs in found.tags if "href" in attrs] == ["data:,"]
    (script,) = found.scripts
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = [attrs["content"] for _, attrs in found.tags if "http-equiv" in attrs]
    assert policy.startswith("default-src 'none';")
    assert f"script-src 'sha256-{digest}';" in policy
    assert not re.search(r"url\((?!#)|@import", page_of(hung()))


def test_page_shows_hostile_names_as_text():
    name = "</script><script>alert(1)</script>\x00\u202e\" onload='x' <img src=x>"
    case = case_of(wide.hung(16, 3, host=name + "-{}", name=name))
    told = page_of(case)
    found = Page(told)
    assert len(found.scripts) == 1
    assert "img" not in {tag for tag, _ in found.tags}
    assert not [attrs for _, attrs in found.tags if "onload" in attrs]
    assert "\x00" not in told
    assert "\u202e" not in told
    assert any("<script>alert(1)</script>" in piece for piece in found.texts)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Job().rounds(3).trace(ended=5, exit_code=0),
        lambda: Job().trace(ended=5, exit_code=1),
        lambda: Job().rounds(3).hang(gave_up=3).trace(ended=9, exit_code=1),
        lambda: Trace(root=pathlib.Path("x"), is_post_mortem=True),
    ],
)
def test_page_of_a_run_with_little_to_show(make):
    case = case_of(make())
    found = Page(page_of(case))
    assert diagnose.report(case).verdicts[0].summary in found.texts


def test_page_has_the_stacks_of_both_sides_and_folds_equal_ones():
    job = Job(4).rounds(5).hang(without=[1], gave_up=20)
    job.stack(1, "/home/u/data.py:57 load_batch", "/home/u/train.py:21 main", at=job.clock - 10)
    for rank in (0, 2, 3):
        job.stack(rank, "/x/site-packages/torch/d.py:9 all_reduce", "/home/u/train.py:24 main", at=job.clock - 10)
    case = case_of(job.trace(ended=job.clock + 1, exit_code=1))
    report = diagnose.report(case)
    blamed, waiting = beside(case, report.verdicts[0], pictures(case, report)[0])
    assert [(one.ranks, [line.text for line in one.lines]) for one in blamed.stacks] == [
        ((1,), ["load_batch  /home/u/data.py:57", "main  /home/u/train.py:21"])
    ]
    assert [(one.ranks, [line.is_users for line in one.lines]) for one in waiting.stacks] == [
        ((0, 2, 3), [False, True])
    ]


def test_page_without_stacks_shows_where_the_calls_were_made():
    case = hung()
    report = diagnose.report(case)
    blamed, waiting = beside(case, report.verdicts[0], pictures(case, report)[0])
    assert [(one.ranks, one.what) for one in blamed.stacks] == [((1,), "where it called all_reduce #5, its last call")]
    assert [(one.ranks, one.what) for one in waiting.stacks] == [((0, 2, 3), "where it called all_reduce #6")]


def test_map_has_one_mark_per_rank_and_the_missing_one_is_behind():
    case = case_of(wide.hung(64, 21))
    report = diagnose.report(case)
    ranks = heat.known_ranks(case)
    marks = heat.states(case, report.verdicts[0], pictures(case, report)[0], ranks)
    assert marks == "w" * 21 + "c" + "w" * 42
    (family,), level = heat.families(case, report.verdicts[0], ranks)
    assert (family.text, family.marks, level) == ("default_pg", "0" * 21 + "1" + "0" * 42, 1)


@pytest.mark.parametrize(("behind", "mark"), [(0, "0"), (1, "1"), (2, "2"), (9, "2"), (10, "3"), (99, "3"), (100, "4")])
def test_marks_of_a_frontier(behind, mark):
    assert heat.mark(behind) == mark


def test_page_of_16384_ranks_stays_small():
    told = page_of(case_of(wide.hung(16_384, 9_001, rounds=2)))
    assert len(told.encode()) < 3_000_000
    assert any(attrs.get("data-marks", "").count("c") == 1 for _, attrs in Page(told).tags)
