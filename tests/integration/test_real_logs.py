"""What a real torchrun prints when a gloo job fails, read as a log: torch's own spellings, not ours of them."""

from __future__ import annotations

import json
import pathlib

from harness import SCRIPTS, Job, torchrun

from roundk.analyze.sources import joblog
from roundk.analyze.sources.inputs import Hints, Input


def log_of(tmp_path, how, **env):
    job = Job(torchrun(SCRIPTS / "failing_gloo.py", how, ranks=2), tmp_path, env=env, roundk=False)
    ended = job.wait()
    assert ended.code == 1, ended.stderr
    return joblog.load([Input("stderr", pathlib.Path(job.err))], Hints()), ended.stderr


def facts(found, kind):
    return [{**row, **json.loads(row["fields"])} for row in found.facts.iter_rows(named=True) if row["kind"] == kind]


def ranks(found):
    return {row["rank"]: row for row in found.ranks.iter_rows(named=True)}


def line_of(text, needle):
    return next(number for number, line in enumerate(text.splitlines(), start=1) if needle in line)


def test_rank_that_raises(tmp_path):
    found, text = log_of(tmp_path, "raise")
    raised, victim = ranks(found)[1], ranks(found)[0]
    assert (raised["exception_type"], raised["exception_message"]) == ("ValueError", "could not decode sample 7")
    source = (SCRIPTS / "failing_gloo.py").read_text()
    assert raised["exception_site"] == f"{SCRIPTS / 'failing_gloo.py'}:{line_of(source, 'raise ValueError')}"
    assert (raised["exit_code"], raised["exit_source"]) == (1, "agent")
    assert victim["exit_signal"] == 15 or victim["exit_code"] == 1  # the agent is sometimes slower than the rank
    (root,) = [row for row in facts(found, "elastic_failure") if row["is_first_observed"]]
    assert f"(pid: {root['pid']})" in text
    assert all(row["rank"] is None for row in facts(found, "agent_exception"))


def test_rank_that_comes_too_late_is_not_the_one_that_is_blamed(tmp_path):
    found, text = log_of(tmp_path, "late")
    (timeout,) = facts(found, "gloo_timeout")
    assert (timeout["rank"], timeout["timeout_ms"]) == (0, 3000)
    assert timeout["source"] == f"stderr:{line_of(text, 'Timed out waiting')}"
    first = {row["rank"]: row["is_first_observed"] for row in facts(found, "elastic_failure")}
    assert first == {0: True, 1: False}
    assert ranks(found)[1]["exit_signal"] == 15
    assert {row["rank"] for row in facts(found, "elastic_closing")} == {1}


def test_monitored_barrier_names_who_did_not_come(tmp_path):
    found, _ = log_of(tmp_path, "monitored")
    (barrier,) = facts(found, "monitored_barrier")
    assert (barrier["rank"], barrier["ranks"], barrier["reporter"], barrier["timeout_ms"]) == (0, [1], 0, 3000)


def test_different_calls(tmp_path):
    found, _ = log_of(tmp_path, "mismatch", TORCH_DISTRIBUTED_DEBUG="DETAIL")
    mismatches = facts(found, "fingerprint_mismatch")
    assert mismatches
    for row in mismatches:
        sides = {side["rank"]: (side["op"], side["shape"]) for side in row["sides"]}
        assert sides == {0: ("all_reduce", "4"), 1: ("broadcast", "3")}
        assert row["rank"] == row["sides"][0]["rank"]
