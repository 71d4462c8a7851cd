"""What many runs say together: counts, shares, hours, weeks, repeats, places; and the file that tells the places."""

from __future__ import annotations

import datetime as dt
import json
import random
import re

import fleets
import polars as pl
import pytest

from roundk.analyze.batch import fleet, llama3, shares, topology
from roundk.analyze.batch.table import CATEGORIES, Category
from roundk.analyze.output import fleet as text
from roundk.analyze.output import fleethtml, fleetjson

HOUR = dt.timedelta(hours=1)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    file = fleets.topology(tmp_path_factory.mktemp("topology") / "t.csv", [f"node-{n:03d}" for n in range(118)])
    return fleet.fleet(fleets.mixed(), topology.read(file))


def test_every_run_is_counted_once(mixed):
    of = mixed.states
    parts = (of.interrupted, of.slow, of.healthy, of.in_progress, of.problems, of.other)
    # As the plan of `fleets.mixed` says: of 20 runs 15 interrupted, 2 slow, 2 healthy, 1 not judged.
    assert parts == (225, 30, 30, 0, 15, 0)
    assert sum(parts) == of.total == 300
    assert sum(one.count for one in mixed.categories) == sum(one.count for one in mixed.causes) == 225
    assert {one.category: one.count for one in mixed.categories} == {
        Category.NETWORK: 75,
        Category.HOST: 45,
        Category.GPU: 30,
        Category.CODE: 30,
        Category.UNDETERMINED: 45,
    }
    assert dict(mixed.untold) == {"INSUFFICIENT_EVIDENCE": 30, "RANK_NOT_ENTERED": 15}
    for one in (*mixed.categories, *mixed.causes):
        assert sum(one.sure.values()) == one.count


def test_causes_add_up_to_their_category(mixed):
    for category in mixed.categories:
        of = [one for one in mixed.causes if one.category is category.category]
        assert sum(one.count for one in of) == category.count
        assert sum(one.gpu_hours_lost for one in of) == pytest.approx(category.gpu_hours_lost)
        assert all(CATEGORIES[one.name] is category.category for one in of)


def test_further_roots_and_unknown_states_do_not_count_twice_or_vanish():
    rows = [
        fleets.run("a", cause="LINK_FLAP"),
        fleets.run("a", verdict=1, cause="GPU_FAULT"),
        fleets.run("b", status="strange"),
        fleets.run("c", status="error", problem="took too long"),
        fleets.run("d", status="healthy", problem="rank_3 cannot be read"),
    ]
    made = fleet.fleet(fleets.table(rows))
    assert (made.states.total, made.states.interrupted, made.states.other, made.states.partly) == (4, 1, 1, 1)
    assert [one.name for one in made.causes] == ["LINK_FLAP"]
    assert [run for run, _ in made.problems] == ["c", "d"]


def test_percentages_that_are_printed_follow_from_the_counts(mixed):
    printed = text.render(mixed, width=80)
    rows = [
        (found[1], int(found[2]), float(found[3]))
        for found in re.finditer(r"^ +([\w ]+?) +(\d+) +(\d+\.\d) %", printed, re.MULTILINE)
        if found[1] != "all"
    ]
    assert len(rows) >= 12
    assert shares.check(rows[:12], 225) == []
    told = json.loads(fleetjson.render(mixed))["interruptions"]
    for listed in (told["by_category"], told["by_cause"]):
        assert shares.check([(one["name"], one["count"], one["percent"]) for one in listed], told["total"]) == []
        assert sum(one["count"] for one in listed) == told["total"]


def test_check_finds_what_is_printed_wrong():
    assert shares.check([("a", 1, 33.3), ("b", 2, 66.7)], 3) == []
    assert [one.computed for one in shares.check([("a", 1, 33.4)], 3)] == [33.3]
    # Half a digit may be rounded either way.
    assert shares.check([("a", 1, 12.5), ("b", 1, 12.5)], 8) == []
    assert shares.check([("a", 1, 6.2), ("b", 1, 6.3)], 16) == []


def test_published_table_sums_to_what_was_published_and_one_percentage_is_wrong():
    assert len(llama3.ROWS) == 18
    assert sum(row.count for row in llama3.ROWS) == 419
    assert llama3.UNEXPECTED + llama3.PLANNED == 466
    (wrong,) = llama3.misprints()
    assert (wrong.name, wrong.printed, wrong.computed) == ("Faulty GPU", 30.1, 35.3)
    printed = sum(row.printed for row in llama3.ROWS if row.theirs == "GPU")
    assert printed == pytest.approx(llama3.PRINTED_GPU)
    by = llama3.by_category()
    assert by == {
        Category.GPU: 268,
        Category.NETWORK: 42,
        Category.HOST: 46,
        Category.CODE: 56,
        Category.UNDETERMINED: 7,
    }
    notes = " ".join(llama3.footnotes())
    for said in ("148/419 = 35.3 %", "268/419 = 64.0 %", "35, 8.4 %", "42, 10.0 %", "not the 60 %", "47 planned"):
        assert said in notes
    assert llama3.hours_between() == pytest.approx(3.09, abs=0.005)


def test_hours_and_time_between_failures():
    begin = fleets.START
    timed = {"started_at": begin, "onset_at": begin + 8 * HOUR, "ended_at": begin + 10 * HOUR, "world_size": 16}
    rows = [
        fleets.run("a", **timed, gpu_hours=160.0, gpu_hours_lost=32.0),
        fleets.run("b", **timed, gpu_hours=160.0, status="healthy"),
        fleets.run("c", gpu_hours_lost=8.0),
        fleets.run("d"),
    ]
    made = fleet.fleet(fleets.table(rows))
    assert (made.lost.gpu_hours, made.lost.known, made.lost.of) == (40.0, 2, 3)
    # Two runs of ten hours, of which one was interrupted.
    assert (made.between.hours_between, made.between.gpu_hours_between) == (20.0, 320.0)
    assert (made.between.runs, made.between.interruptions) == (2, 1)
    assert not made.between.only_interrupted


def test_weeks_without_interruptions_are_rows_and_hours_fall_into_their_weeks():
    sunday = fleets.week(1) - 20 * HOUR
    rows = [
        fleets.run("a", onset_at=fleets.week(0) + HOUR, cause="LINK_FLAP"),
        fleets.run("b", onset_at=fleets.week(3), cause="GPU_FAULT"),
        # 12 hours before Monday begins and 12 after: START is at 8 o'clock.
        fleets.run("c", status="healthy", started_at=sunday, ended_at=sunday + 24 * HOUR, gpu_hours=240.0),
        fleets.run("d"),
    ]
    trend = fleet.fleet(fleets.table(rows)).trend
    assert [(week.name, week.count) for week in trend.weeks] == [
        ("2026-W28", 1),
        ("2026-W29", 0),
        ("2026-W30", 0),
        ("2026-W31", 1),
    ]
    assert [week.gpu_hours for week in trend.weeks] == pytest.approx([120.0, 120.0, 0.0, 0.0])
    assert trend.weeks[0].interruptions[Category.NETWORK] == 1
    assert trend.untimed == 1


def test_clock_at_its_beginning_makes_no_thousand_weeks():
    rows = [fleets.run("a", onset_at=dt.datetime(1970, 1, 2, tzinfo=dt.UTC)), fleets.run("b", onset_at=fleets.START)]
    trend = fleet.fleet(fleets.table(rows)).trend
    assert (len(trend.weeks), trend.earlier) == (1, 1)


def test_job_that_fails_the_same_way_is_told_with_what_it_names():
    told = {"job": "9", "cause": "LINK_FLAP", "culprit_links": [fleets.link("n1")], "culprit_hosts": ["n1"]}
    rows = [fleets.run(f"9/{n}", ["n1", "n2"], **told) for n in range(3)]
    rows += [fleets.run("9/3", ["n1"], job="9", status="healthy"), fleets.run("8/0", job="8", cause="LINK_FLAP")]
    rows += [fleets.run(f"7/{n}", job="7", structure="INSUFFICIENT_EVIDENCE") for n in range(4)]
    (one,) = fleet.fleet(fleets.table(rows)).repeats
    assert (one.job, one.runs, one.attempts) == ("9", ("9/0", "9/1", "9/2"), 4)
    assert (one.culprit, one.culprit_in) == ("n1:mlx5_0:1", 3)


def test_hang_whose_culprits_share_a_plane_says_so(tmp_path):
    hosts = [f"n{n}" for n in range(8)]
    placed = topology.read(fleets.topology(tmp_path / "t.csv", hosts, rails=8, planes=4))
    told = {"cause": "CONGESTION", "structure": "ALL_ENTERED_NONE_COMPLETED"}
    rows = [
        fleets.run(
            "one plane", hosts, culprit_links=[fleets.link("n1", "mlx5_2"), fleets.link("n4", "mlx5_6")], **told
        ),
        fleets.run("two", hosts, culprit_links=[fleets.link("n1", "mlx5_2"), fleets.link("n4", "mlx5_3")], **told),
        fleets.run("one port", hosts, culprit_links=[fleets.link("n1", "mlx5_2")], **told),
    ]
    made = fleet.fleet(fleets.table(rows), placed)
    assert [(one.run, one.kind, one.name, one.culprits, one.of) for one in made.shared] == [
        ("one plane", "plane", "plane2", 2, 4)
    ]
    assert "both culprits of run one plane lie in plane2; the run used 4 planes" in " ".join(text.render(made).split())
    parts = {one.name: one for one in made.parts}
    assert (parts["plane2"].jobs, parts["plane2"].of) == (3, 3)
    assert parts["plane2"].expected == pytest.approx(1 / 4 + 2 / 4 + 1 / 4)


BASE = "host,device,rack,rail,plane\n"
DEVICES = "h1,mlx5_0/1,r1,0,0\nh1,mlx5_1,r1,1,1\nh2,mlx5_0/1,r1,0,0\nh2,mlx5_1,r1,1,1\n"


@pytest.mark.parametrize(
    "more",
    [
        "h1,mlx5_0/1,r1,0,0\n",
        "h1,mlx5_0,r1,0,0\n",
        "h1,mlx5_0,,0,\n",
        "h1,mlx5_1,r1,,\nh1,mlx5_1,,1,1\n",
        "h1,,r1,,\nh1,,r1,,\n",
        DEVICES * 3,
    ],
)
def test_a_row_that_says_nothing_new_changes_no_number(tmp_path, more):
    told = {"cause": "LINK_FLAP", "culprit_hosts": ["h1"]}
    rows = [
        fleets.run("a", ["h1", "h2"], culprit_links=[fleets.link("h1", "mlx5_0", 1)], **told),
        fleets.run("b", ["h1", "h2"], culprit_links=[fleets.link("h1", "mlx5_1", None)], **told),
    ]

    def numbers(rows_of_file):
        (tmp_path / "t.csv").write_text(BASE + rows_of_file)
        made = fleet.fleet(fleets.table(rows), topology.read(tmp_path / "t.csv"))
        return made.blame, made.parts, made.presence

    once = numbers(DEVICES)
    assert dict(once[0].tested)["port"] == 4
    assert numbers(DEVICES + more) == once


def test_a_device_in_another_place_than_its_numbered_port_is_a_further_port(tmp_path):
    (tmp_path / "t.csv").write_text("host,device,rail\nh1,m0,0\nh1,m0/2,1\n")
    placed = topology.Placed(topology.read(tmp_path / "t.csv"), ["h1"])
    assert placed.labels(topology.Kind.RAIL, "h1") == {"0": 1, "1": 1}
    assert placed.devices("h1") == {("m0", None), ("m0", 2)}
    assert placed.label(topology.Kind.RAIL, "h1", "m0") == "0"


def test_even_spread_adds_up_to_the_jobs(tmp_path):
    # Rail a has ten ports of twelve: of two rails that a job names it is one, and the others share the other.
    lines = [f"h{n},m{n},a" for n in range(10)] + ["h10,m10,b", "h11,m11,c"]
    (tmp_path / "t.csv").write_text("host,device,rail\n" + "\n".join(lines) + "\n")
    hosts = [f"h{n}" for n in range(12)]

    def named(name, *numbers):
        links = [fleets.link(f"h{n}", f"m{n}", None) for n in numbers]
        return fleets.run(name, hosts, cause="LINK_FLAP", culprit_links=links)

    rows = [named("a", 0), named("b", 10), named("c", 1, 2), named("d", 0, 10)]
    made = fleet.fleet(fleets.table(rows), topology.read(tmp_path / "t.csv"))
    expected = {one.name: one.expected for one in made.parts}
    assert expected == pytest.approx({"a": 3 * 10 / 12 + 1, "b": 3 / 12 + 1 / 2, "c": 3 / 12 + 1 / 2})
    assert sum(expected.values()) == pytest.approx(sum(one.jobs for one in made.parts)) == 5


@pytest.mark.parametrize("name", ["t.parquet", "t.PQ"])
@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"host,rack\na,1\n"])
def test_a_damaged_parquet_file_is_called_one(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(topology.TopologyError, match="no Parquet file that can be read"):
        topology.read(tmp_path / name)


def test_left_out_files_are_in_all_forms_of_the_report():
    told = ["/x/notes.log: left out, as to which of 2 runs it belongs cannot be told", "/x/\udcff: Permission denied"]
    made = fleet.fleet(fleets.table([fleets.run("a")]), None, told)
    shown = " ".join(text.render(made).split())
    assert "Left out: 2 - /x/notes.log: left out, as to which of 2 runs" in shown
    assert json.loads(fleetjson.render(made))["left_out"] == [told[0], "/x/\\xff: Permission denied"]
    page = fleethtml.render(made)
    assert "<h2>Left out</h2>" in page
    assert told[0] in page
    assert "Left out" not in fleethtml.render(fleet.fleet(fleets.table([fleets.run("a")])))


def test_onset_column_has_onsets_only():
    rows = [
        fleets.run("well", status="healthy", started_at=fleets.START, ended_at=fleets.START + HOUR),
        fleets.run("not", onset_at=fleets.START + 2 * HOUR, ended_at=fleets.START + 3 * HOUR),
    ]
    page = fleethtml.render(fleet.fleet(fleets.table(rows))).replace("<wbr>", "")
    (head,) = re.findall(r'<table id="all"><thead><tr>(.*?)</tr>', page)
    at = re.findall(r">([^<]+)</th>", head).index("onset (UTC)")
    body = page.split('<table id="all">')[1].split("<tbody>")[1].split("</tbody>")[0]
    cells = {row[0]: row for one in body.split("</tr>") if (row := re.findall(r"<td[^>]*>(.*?)</td>", one))}
    assert (cells["well"][at], cells["not"][at]) == ("", "2026-07-06 10:00")


@pytest.mark.parametrize(
    ("causes", "said"),
    [
        ({"PROCESS_STOPPED": 3, "OOM_KILLED": 2, "GPU_FAULT": 5}, "most by GPUs and hosts (5 each)"),
        ({"PROCESS_STOPPED": 3, "OOM_KILLED": 2, "EXCEPTION": 1}, "most by hosts (5, 83.3 %, PROCESS_STOPPED 3), then"),
        (
            {"PROCESS_STOPPED": 2, "OOM_KILLED": 2, "EXCEPTION": 1},
            "most by hosts (4, 80.0 %, OOM_KILLED and PROCESS_STOPPED 2 each), then code (1)",
        ),
        ({"PROCESS_STOPPED": 1, "OOM_KILLED": 1, "HOST_STALL": 1, "EXCEPTION": 1}, "most by hosts (3, 75.0 %), then"),
        ({"EXCEPTION": 2}, "interrupted, all by code (EXCEPTION)."),
    ],
)
def test_headline_names_the_leading_cause(causes, said):
    rows = [fleets.run(f"{cause}{n}", cause=cause) for cause, count in causes.items() for n in range(count)]
    assert said in " ".join(text.render(fleet.fleet(fleets.table(rows))).split())


def test_one_host_is_one_host():
    made = fleet.fleet(fleets.table([fleets.run(f"a{n}", ["h"]) for n in range(12)]))
    assert "over about 1 host; " in made.presence.test


def test_long_names_may_be_broken_at_their_joints_and_numbers_nowhere():
    told = {"cause": "LINK_FLAP", "onset_at": fleets.START, "gpu_hours_lost": 12.3}
    page = fleethtml.render(fleet.fleet(fleets.table([fleets.run("team_a/run-1", ["h"], **told)])))
    row = page.split('<table id="all">')[1].split("<tbody>")[1]
    assert "team_<wbr>a/<wbr>run-<wbr>1<" in row
    assert ">LINK_<wbr>FLAP<" in row
    assert ">2026-07-06 08:00<" in row
    assert ">12.3<" in row


def test_hours_of_short_runs_are_told_as_their_mean_is():
    end = {"started_at": fleets.START, "ended_at": fleets.START + dt.timedelta(seconds=40), "world_size": 2}
    made = fleet.fleet(fleets.table([fleets.run(f"a{n}", **end) for n in range(12)]))
    told = " ".join(text.render(made).split())
    assert "A run lasts 40.0 s on average until it is interrupted (8 min 0 s of 12 runs over 12 interruptions)" in told


@pytest.mark.parametrize(
    ("names", "theirs", "missing"),
    [
        (["node1"], "node1.cluster.local", ()),
        (["node1.cluster.local"], "node1", ()),
        (["node1.a"], "node1.b", ("node1.a",)),
        (["10.0.0.1"], "10.0.0.2", ("10.0.0.1",)),
        (["node1", "node2"], "node1.cluster.local", ("node2",)),
    ],
)
def test_short_and_whole_host_names_are_one_host_unless_that_is_ambiguous(tmp_path, names, theirs, missing):
    file = tmp_path / "t.csv"
    file.write_text(f"host,rack\n{theirs},r1\n")
    made = fleet.fleet(fleets.table([fleets.run("a", names)]), topology.read(file))
    assert made.layout.missing == missing


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ("", "is empty; its first line has to name the columns"),
        ("node,rack\na,1\n", "line 1: no column `host`; the columns are: node, rack"),
        ("host,device\na,mlx5_0\n", "line 1: none of the columns rack, rail, plane"),
        ("host,rack\n", "holds no row below its head"),
        ("host,rack\na,1\n,2\n", "line 3: no host"),
        ("host,rack\na,1,2\n", "line 2: 3 fields, and the head has 2"),
        ("host,rack\na,1\na,2\n", "line 3: a is in rack 2, and in rack 1 by line 2"),
        ("host,device,rail\na,m0,1\n\na,m0,2\n", "line 4: a m0 is in rail 2, and in rail 1 by line 2"),
        ("host,rail\na,1\na,2\n", "a column `device` tells which of its ports lies where"),
        ("host,device,rail\na,m0/x,1\n", "line 2: device `m0/x`: the port behind the / is no number"),
        ("PAR1 and no more", "no Parquet file that can be read"),
        (b"host,rack\n\xff,1\n", "no CSV text"),
    ],
)
def test_topology_errors_say_where_and_what(tmp_path, told, message):
    file = tmp_path / "topology.csv"
    file.write_bytes(told if isinstance(told, bytes) else told.encode())
    with pytest.raises(topology.TopologyError, match=re.escape(message)) as caught:
        topology.read(file)
    assert str(file) in str(caught.value)


def test_topology_is_read_from_parquet_too(tmp_path):
    table = {"host": ["a", "a"], "device": ["m0", "m1/2"], "rail": [0, 1]}
    pl.DataFrame(table).write_parquet(tmp_path / "t.parquet")
    made = topology.Placed(topology.read(tmp_path / "t.parquet"), ["a"])
    assert made.label(topology.Kind.RAIL, "a", "m1", 2) == "1"
    assert made.label(topology.Kind.RAIL, "a", "m0", 1) == "0"
    assert made.label(topology.Kind.RAIL, "a") is None


def fleets_of_every_size():
    yield "nothing", []
    yield "one", [fleets.run("a", ["h"], cause="LINK_FLAP", culprit_links=[fleets.link("h")])]
    yield "no interruption", [fleets.run(f"a{n}", ["h"], status="healthy") for n in range(3)]
    yield "only problems", [fleets.run(f"a{n}", status="error", problem="no file can be read") for n in range(3)]
    yield "all undetermined", [fleets.run(f"a{n}", ["h", "g"]) for n in range(3)]
    draw = random.Random(1)
    names = [f"host-{n}.pod.example" for n in range(400)]
    yield "3,000 runs", [fleets.run(f"a{n}", draw.sample(names, 16), job=str(n)) for n in range(3000)]


@pytest.mark.parametrize(
    ("name", "rows"), list(fleets_of_every_size()), ids=lambda one: one if isinstance(one, str) else ""
)
def test_fleets_of_every_size_are_told(name, rows):
    made = fleet.fleet(fleets.table(rows))
    says = {
        "nothing": "No runs.",
        "one": "1 of 1 run was interrupted, by the network (LINK_FLAP).",
        "no interruption": "None of 3 runs was interrupted.",
        "only problems": "None of 3 runs could be judged.",
        "all undetermined": "3 of 3 runs were interrupted; of none the cause could be told.",
        "3,000 runs": "3,000 of 3,000 runs were interrupted; of none the cause could be told.",
    }
    for width in (80, 120):
        told = text.render(made, width=width)
        assert says[name] in " ".join(told.split())
        assert max(map(len, told.splitlines())) <= width
    assert says[name] in fleethtml.render(made)
    assert json.loads(fleetjson.render(made))["runs"]["total"] == len(rows)


def test_first_screen_of_a_terminal_says_what_kills_the_jobs(mixed):
    first = "\n".join(text.render(mixed, width=80).splitlines()[:30])
    for said in (
        "most by the network (75, 33.3 %, LINK_FLAP ",
        "node-017:mlx5_3:1",
        "GPU-hours lost",
        "LINK_FLAP",
        "undetermined",
    ):
        assert said in " ".join(first.split())
    assert all(len(line) <= 80 for line in text.render(mixed, width=80).splitlines())


def test_json_has_its_parts(mixed):
    told = json.loads(fleetjson.render(mixed))
    assert told["schema"] == 1
    found = told["repeat_offenders"]["blame"]["findings"]
    assert [one["name"] for one in found] == ["node-017:mlx5_3:1", "node-042"]
    assert found[0]["p_corrected"] < 0.05
    assert len(found[0]["runs"]) == found[0]["jobs"]
    assert len(told["reference"]["rows"]) == 18
    assert told["weeks"][0]["week"] == "2026-W28"
