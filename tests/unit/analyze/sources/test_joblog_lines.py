"""Every known line says the same alone and behind what launchers, collectors and progress bars put in front."""

from __future__ import annotations

import re

import log_lines
import logs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

IDS = [line[0] for line in log_lines.LINES]


@pytest.mark.parametrize(("line", "kind", "fields"), [line[1:] for line in log_lines.LINES], ids=IDS)
def test_line(line, kind, fields):
    found = logs.part(line + "\n")
    row = next(row for row in logs.facts(found) if row["kind"] == kind)
    assert {name: row["fields"].get(name) for name in fields} == fields
    assert row["source"] == "job.log:1"
    assert row["text"]


PREFIXES = [
    "[rank3]: ",
    "[rank3]:",
    "[1,3]<stderr>:",
    "[prterun-node-a-1@1,3]<stdout>: ",
    "3: ",
    "  3: ",
    "[default3]:",
    "[trainer22|3]:",
    "(RayTrainWorker pid=615, ip=192.0.2.6) ",
    "(WorkerDict pid=99) ",
    "\x1b[36m(WorkerDict pid=99)\x1b[0m ",
    "2026-09-18T19:29:24.123456789Z stderr F ",
    "2026-09-18 19:29:24,123 ",
    "[2026-09-18 19:29:24] ",
    "2026-09-18T19:29:24+0200 node-c kernel: ",
    "Sep 18 19:29:24 node-c kernel: ",
    "18:11:06.680 ",
    "[80746] ",
    "node-c [stderr] ",
    "worker-1  | ",
    "[pod/train-0/main] ",
    "ERROR: ",
    "\x1b[31m",
    "Train:  20%|##        | 375/1881 [01:02<03:04]",
    "\r 45%|####      | 9/20 [00:10<00:12,  1.1s/it]\r 50%|#####     | 10/20",
    "\x00\x00\x00",
]
PRINTED_BY = {"group_rank", "pid", "local_rank", "after_ns", "uptime_s", "peer_host", "onset_ns"}
"""Fields that come of the prefixes, or of both."""
BARS = {prefix for prefix in PREFIXES if "%|" in prefix}


def said(found, kind):
    row = next(row for row in logs.facts(found) if row["kind"] == kind)
    return {name: value for name, value in row["fields"].items() if name not in PRINTED_BY}


@settings(max_examples=80, deadline=None)
@given(
    line=st.sampled_from(log_lines.LINES),
    prefixes=st.lists(st.sampled_from(PREFIXES), max_size=4),
    suffix=st.sampled_from(["", "\r", "\x1b[0m", " "]),
    noise=st.sampled_from([b"", b"iteration 12 | loss: 2.3\n", b"\xff\xfe\x80 not UTF-8\n", b"\r\n\r\n"]),
)
def test_line_says_the_same_behind_any_prefixes(line, prefixes, suffix, noise):
    text, kind = line.text, line.kind
    alone = said(logs.part(text + "\n"), kind)
    prefixed = "".join(prefixes) + text + suffix
    found = logs.part(noise + prefixed.encode() + b"\n" + noise)
    assert said(found, kind) == alone


_TIME = re.compile(r"(\[[EWI])\d{3,4} \d\d:\d\d:\d\d\.\d+")


@settings(max_examples=40, deadline=None)
@given(
    lines=st.lists(st.sampled_from([k for k in log_lines.LINES if k.text.startswith("[rank")]), min_size=2, max_size=4)
)
def test_lines_glued_together_are_cut_apart(lines):
    # At one time: lines of days apart are of several attempts.
    glued = _TIME.sub(r"\g<1>0626 10:42:17.101223001", "".join(line.text.rstrip(".") + "." for line in lines))
    kinds = {row["kind"] for row in logs.facts(logs.part(glued + "\n"))}
    assert {line.kind for line in lines} <= kinds
