"""Real faults under real jobs: what roundk says of each is compared with what was done. See `run.py` for the long form.

The verdict without the samples of links must be right too, as far as it goes: less sure, and never wrong.
"""

from __future__ import annotations

import lab
import pytest
import recording
import verdicts
from job import Zygote

FAST = (
    ("healthy", "4x1"),
    ("flap_1s", "4x1"),
    ("link_down", "4x1"),
    ("decoy_stop", "4x1"),
    ("stop_3s", "4x1"),
    ("kill", "4x2"),
    ("never", "4x1"),
    ("slow_rank", "4x1"),
    ("rate", "4x1"),
    ("one_way", "4x1"),
    ("mtu", "4x1"),
)


@pytest.fixture(scope="module")
def zygote():
    if reason := lab.missing():
        pytest.skip(f"no faults can be injected here: {reason}")
    with lab.only_one(), Zygote() as zygote:
        yield zygote


@pytest.mark.parametrize(("scenario", "form"), FAST, ids=[name for name, _ in FAST])
def test_the_verdict_is_true(zygote, tmp_path, scenario, form):
    """In two of three runs at least, where the first is wrong: `run.py` holds all scenarios to 98 % of many runs."""
    wrong = _wrong(zygote, tmp_path / "0", scenario, form)
    if wrong:
        again = [_wrong(zygote, tmp_path / str(number), scenario, form) for number in (1, 2)]
        assert not any(again), [wrong, *again]


def _wrong(zygote, folder, scenario, form):
    """What is wrong with the verdicts of one run; an innocent host at high confidence is never right."""
    recorded = recording.record(zygote, scenario, folder, form=form, seed=folder.name)
    judged = verdicts.judge(verdicts.analyze(recorded.run, recorded.now_ns), recorded.truth, form)
    report = verdicts.analyze_without_links(recorded.run, recorded.now_ns)
    without = verdicts.judge(report, recorded.truth, form, links=False)
    assert not judged.innocents, judged.told
    assert not without.innocents, without.told
    said = [f"with links: {judged.told}"] if judged.wrong else []
    return said + ([f"without the samples of links: {without.told}"] if without.wrong else [])
