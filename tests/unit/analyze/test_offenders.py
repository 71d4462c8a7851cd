"""What comes back more often than chance allows, against scipy, against planted faults, and against chance itself."""

from __future__ import annotations

import math
import random

import fleets
import numpy as np
import pytest
from scipy import stats

from roundk.analyze.batch import blame, exact, fleet, jobs, presence, topology
from roundk.analyze.batch.topology import Kind, Placed

NAMES = [f"node-{number:03d}" for number in range(120)]


def placements(seed, planted=0, count=40, size=8):
    """Failures drawn evenly; a host planted in some of them, and drawn into no other."""
    draw = random.Random(seed)
    bad = set(draw.sample(range(count), planted))
    for number in range(count):
        hosts = draw.sample(NAMES[1:] if planted else NAMES, size)
        if number in bad:
            hosts[0] = NAMES[0]
        yield fleets.run(f"run{number}", hosts)


def present(rows, topology_hosts=0):
    return presence.find(jobs.of(fleets.table(rows)), topology_hosts)


def blamed(rows, placed=None):
    found = jobs.of(fleets.table(rows))
    return blame.find(found, Placed(placed, found.hosts))


def units(answer):
    return [one.unit.name for one in answer.findings]


@pytest.mark.parametrize("seed", range(5))
def test_poisson_binomial_is_scipys(seed):
    chances = np.random.default_rng(seed).uniform(0, 1, 30)
    for least in range(31):
        ours = math.exp(exact.log_tail(list(chances), least))
        assert ours == pytest.approx(stats.poisson_binom.sf(least - 1, chances), rel=1e-9)
    assert math.exp(exact.log_tail([8 / 120] * 40, 10)) == pytest.approx(stats.binom.sf(9, 40, 8 / 120), rel=1e-9)


def test_tails_that_no_float_holds_keep_their_order():
    assert exact.log_tail([1 / 8] * 500, 500) == pytest.approx(500 * math.log(1 / 8))
    assert exact.log_tail([1.0, 1.0, 0.5], 3) == pytest.approx(math.log(0.5))
    assert exact.log_tail([0.5], 2) == -math.inf


def test_hypergeometric_tail_is_scipys():
    for marked, total, draws in ((30, 100, 12), (5, 9, 7), (320, 900, 40)):
        for least in range(draws + 2):
            ours = math.exp(exact.log_hypergeometric_tail(marked, total, draws, least))
            assert ours == pytest.approx(stats.hypergeom.sf(least - 1, total, marked, draws), rel=1e-7, abs=1e-300)


@pytest.mark.parametrize("seed", range(20))
def test_host_in_ten_of_forty_failures_is_found(seed):
    answer = present(placements(seed, planted=10))
    assert units(answer)[:1] == [NAMES[0]]
    (first, *_) = answer.findings
    assert first.jobs == 10
    # 40 failures of 8 hosts, out of 120: 2.67 by chance. That there are 120 is estimated, from about 112 that are seen.
    assert first.expected == pytest.approx(2.67, abs=0.3)
    assert len(first.runs) == 10


def test_even_placement_names_at_most_one_host_in_twenty_tables():
    assert sum(len(units(present(placements(seed)))) for seed in range(20)) <= 1


def test_restarts_of_one_job_count_once():
    rows = [fleets.run(f"run{n}", NAMES[:8], job="77", attempt=n) for n in range(10)]
    rows += list(placements(3, count=30))
    assert units(present(rows)) == []
    apart = [row | {"job": f"7{n}"} if row["job"] else row for n, row in enumerate(rows)]
    found = units(present(apart))
    assert set(found) <= set(NAMES[:8])
    assert found  # The same hosts in ten jobs of their own are a series.


def test_host_that_is_used_more_is_not_blamed_for_it():
    draw = random.Random(5)
    rows = []
    for number in range(300):
        hosts = [NAMES[0], *draw.sample(NAMES[1:], 7)] if number % 3 == 0 else draw.sample(NAMES[1:], 8)
        rows.append(fleets.run(f"run{number}", hosts, status="failed" if number % 5 == 0 else "healthy"))
    assert units(present(rows)) == []
    # Without the healthy runs its use is not known, and it stands out.
    assert units(present([row for row in rows if row["status"] == "failed"])) == [NAMES[0]]


def test_host_whose_jobs_fail_is_found_by_use():
    draw = random.Random(6)
    rows = []
    for number in range(300):
        hosts = draw.sample(NAMES, 8)
        failed = number % 10 == 0 or NAMES[3] in hosts
        rows.append(fleets.run(f"run{number}", hosts, status="failed" if failed else "healthy"))
    answer = present(rows)
    assert units(answer) == [NAMES[3]]
    assert answer.test == presence.USAGE


def test_uneven_placement_names_nobody_and_says_so():
    draw = random.Random(8)
    rows = [fleets.run(f"a{n}", draw.sample(NAMES[:20], 8)) for n in range(60)]
    rows += [fleets.run(f"b{n}", draw.sample(NAMES[20:], 8)) for n in range(20)]
    answer = present(rows)
    assert answer.findings == ()
    assert "not placed evenly" in answer.remark


def test_too_few_runs_say_so():
    answer = present(placements(1, count=2))
    assert answer.findings == ()
    assert "too few" in answer.remark
    assert "2 interrupted jobs" in answer.remark


def link_fault(number, host, hosts, rail, **told):
    return fleets.run(
        f"run{number}",
        {host, *hosts},
        **{
            "cause": "LINK_FLAP",
            "culprit_hosts": [host],
            "culprit_links": [fleets.link(host, f"mlx5_{rail}")],
            "job": str(number),
        }
        | told,
    )


def test_fault_on_one_rail_names_the_rail_and_no_host(tmp_path):
    draw = random.Random(11)
    placed = topology.read(fleets.topology(tmp_path / "t.csv", NAMES, planes=4))
    rows = []
    for number in range(30):
        hosts = draw.sample(NAMES, 8)
        rows.append(link_fault(number, hosts[0], hosts, 3))
    answer = blamed(rows, placed)
    assert [(one.unit.kind, one.unit.name) for one in answer.findings] == [(Kind.RAIL, "rail3")]
    # 8 rails: one in eight.
    assert answer.findings[0].expected == pytest.approx(30 / 8)
    assert answer.findings[0].jobs == 30


def test_faulty_host_is_named_and_not_its_rack_rail_or_plane(tmp_path):
    draw = random.Random(12)
    placed = topology.read(fleets.topology(tmp_path / "t.csv", NAMES))
    rows = []
    for number in range(24):
        hosts = draw.sample(NAMES[1:], 7)
        bad = NAMES[0] if number < 8 else hosts[0]
        rows.append(link_fault(number, bad, hosts, draw.randrange(8)))
    answer = blamed(rows, placed)
    assert [(one.unit.kind, one.unit.name) for one in answer.findings] == [(Kind.HOST, NAMES[0])]


def test_faulty_port_is_named_and_not_its_host():
    draw = random.Random(13)
    rows = [link_fault(number, NAMES[0], draw.sample(NAMES[1:], 7), 3) for number in range(8)]
    answer = blamed(rows)
    assert [(one.unit.kind, one.unit.name) for one in answer.findings] == [(Kind.PORT, f"{NAMES[0]}:mlx5_3:1")]


def test_bad_rail_and_bad_host_are_both_named(tmp_path):
    draw = random.Random(14)
    placed = topology.read(fleets.topology(tmp_path / "t.csv", NAMES))
    rows = []
    for number in range(40):
        hosts = draw.sample(NAMES[1:], 7)
        if number < 25:
            rows.append(link_fault(number, hosts[0], hosts, 5))
        else:
            told = {"cause": "HOST_STALL", "culprit_hosts": [NAMES[0]], "job": str(number)}
            rows.append(fleets.run(f"run{number}", {NAMES[0], *hosts}, **told))
    assert units(blamed(rows, placed)) == ["rail5", NAMES[0]]


@pytest.mark.parametrize(
    "told",
    [
        {"cause_confidence": "low", "structure_confidence": "low"},
        {"cause": "CODE_DIVERGENCE", "culprit_links": []},
        {"status": "healthy", "structure": None, "cause": None},
    ],
)
def test_what_is_unsure_or_of_the_code_blames_no_host(told):
    draw = random.Random(15)
    rows = [link_fault(number, NAMES[0], draw.sample(NAMES[1:], 7), 3, **told) for number in range(20)]
    answer = blamed(rows)
    assert answer.findings == ()
    assert "No run names" in answer.remark


def test_even_blame_is_rarely_a_series():
    false = 0
    for seed in range(40):
        draw = random.Random(1000 + seed)
        rows = []
        for number in range(60):
            hosts = draw.sample(NAMES, 8)
            rows.append(link_fault(number, draw.choice(hosts), hosts, draw.randrange(8)))
        false += bool(blamed(rows).findings)
    # Holm holds it at 5 % of the tables: more than 6 of 40 have a chance of 1.4 % under that.
    assert false <= 6


def test_racks_of_unequal_part_are_not_blamed_for_their_size(tmp_path):
    # Seven of the eight hosts of every job stand in one rack: it is named in seven of eight jobs by chance.
    file = tmp_path / "t.csv"
    file.write_text("host,rack\n" + "".join(f"{name},{'big' if n < 60 else 'small'}\n" for n, name in enumerate(NAMES)))
    draw = random.Random(16)
    rows = []
    for number in range(60):
        hosts = [*draw.sample(NAMES[:60], 7), draw.choice(NAMES[60:])]
        told = {"cause": "HOST_STALL", "culprit_hosts": [hosts[number % 8]], "job": str(number)}
        rows.append(fleets.run(f"run{number}", hosts, **told))
    assert blamed(rows, topology.read(file)).findings == ()


def test_offenders_are_the_same_in_any_order_of_the_rows(tmp_path):
    table = fleets.mixed()
    placed = topology.read(fleets.topology(tmp_path / "t.csv", NAMES))
    once = fleet.fleet(table, placed)
    again = fleet.fleet(table.sample(fraction=1, shuffle=True, seed=3), placed)
    assert once.blame == again.blame
    assert once.presence == again.presence
    assert {one.unit.text for one in once.blame.findings} == {"port node-017:mlx5_3:1", "host node-042"}
