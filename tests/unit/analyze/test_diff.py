"""`roundk diff`: what was planted between two runs is told, and nothing else."""

from __future__ import annotations

import json
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import click.testing
import dumps
import jobs
import polars as pl
import pytest
import test_corpus

from roundk.analyze import sources
from roundk.analyze.commands.diff import command
from roundk.analyze.difference import compare as whole
from roundk.analyze.difference.found import Found, Topic
from roundk.analyze.difference.run import run_of
from roundk.analyze.difference.values import Values
from roundk.analyze.output import diff
from roundk.tracer import schema

CASES = sorted(path.name for path in test_corpus.CASES.iterdir() if path.is_dir())[::9]
HOSTS = {rank: f"h{rank // 4}" for rank in range(16)}


# Values


def values(*pairs, hosts=HOSTS):
    return Values.of(pairs, hosts)


def on(value, ranks):
    return [(value, rank) for rank in ranks]


@pytest.mark.parametrize(
    ("pairs", "text"),
    [
        (on("22", range(16)), "22"),
        (on(None, range(16)), "not set"),
        (on("a", range(12)) + on("b", range(12, 16)), "a on 3 hosts, b on h3"),
        (on("a", range(12)) + on(None, range(12, 16)), "a on 3 hosts, not set on h3"),
        (on("a", range(15)) + on("b", [15]), "a on 15 ranks, b on rank 15"),
        ([(str(rank % 4), rank) for rank in range(16)], "0, 1, 2, 3 by rank"),
        ([(str(rank), rank) for rank in range(4)], "0, 1, 2, 3 by rank"),
        ([("eth0", "h0"), ("eth0", "h1"), ("eth1", "h2")], "eth0 on 2 hosts, eth1 on h2"),
    ],
)
def test_values_are_told_with_who_has_them(pairs, text):
    assert values(*pairs).text == text


def test_hosts_that_differ_from_the_rest_are_known():
    assert values(*on("a", range(12)), *on("b", range(12, 16))).odd_hosts == {"h3"}
    assert values(*((str(rank % 4), rank) for rank in range(16))).odd_hosts == frozenset()


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (on("x", range(16)), on("x", range(8)), True),
        (on("x", range(16)), on("y", range(16)), False),
        (on("x", range(15)) + on("y", [15]), on("x", [0]) + on("y", range(1, 16)), False),
        (on("x", range(15)) + on("y", [15]), on("y", [3]) + on("x", [r for r in range(16) if r != 3]), True),
        ([(str(r % 4), r) for r in range(16)], [(str(r % 4), r) for r in range(8)], True),
    ],
)
def test_values_are_the_same_or_not(a, b, same):
    assert values(*a).is_as(values(*b)) == same


# NCCL logs


def nccl_log(version, net, hca, *, hosts=4, settings=None, silent=()):
    """INFO lines of a rank per host in one ring, with NCCL's spelling of `version`."""
    lines = [f"NCCL version {version}"]
    for rank in range(hosts):
        who = f"node-{rank}:10{rank}:11{rank} [0] NCCL INFO"
        peer = (rank + 1) % hosts
        for name, value in (settings or {}).items():
            if (rank, name) not in silent:
                lines.append(f"{who} {name} set by environment to {value}")
        lines.append(f"{who} Bootstrap : Using eth0:192.0.2.{rank}<0>")
        if net == "IB":
            devices = f"NET/IB : Using [0]{hca}:1/RoCE [RO]; OOB eth0:192.0.2.{rank}<0>"
        else:
            lines.append(f"{who} NET/IB : No device found.")
            devices = f"NET/Socket : Using [0]eth0:192.0.2.{rank}<0>"
        lines += [f"{who} {devices}", f"{who} Using network {net}"]
        end = f"comm 0x5{rank} rank {rank} nranks {hosts} cudaDev 0 nvmlDev 0 busId 1b000 commId 0x1ad9"
        lines.append(f"{who} ncclCommInitRank {end} - Init START")
        via = "NET/IB/0/GDRDMA" if net == "IB" else "NET/Socket/0"
        for channel in range(2):
            lines.append(f"{who} Channel {channel:02d}/0 : {rank}[0] -> {peer}[0] [send] via {via}")
        lines.append(f"{who} ncclCommInitRank {end} - Init COMPLETE")
    return "\n".join(lines) + "\n"


def written(folder, name, text):
    path = folder / name
    path.mkdir()
    (path / "job.log").write_text(text)
    return path


def told(a, b):
    """What `compare` finds between two paths."""
    runs = [run_of(str(path), *sources.load([str(path)]), now_ns=jobs.ns(10**6)) for path in (a, b)]
    return whole.compare(*runs)


def rows(found, *topics):
    return {row.name: (row.a, row.b) for row in found.rows if not topics or row.topic in topics}


def test_a_fall_back_to_sockets_and_another_version_come_first(tmp_path):
    good = nccl_log("2.21.5+cuda12.4", "IB", "mlx5_0", settings={"NCCL_IB_TIMEOUT": "22", "NCCL_DEBUG": "INFO"})
    bad = nccl_log("2.27.3+cuda12.9", "Socket", "", settings={"NCCL_IB_TIMEOUT": "18", "NCCL_DEBUG": "INFO"})
    found = told(written(tmp_path, "good", good), written(tmp_path, "bad", bad))
    assert rows(found) == {
        "network that NCCL uses": ("IB", "Socket"),
        "connections": ("8 NET/IB", "8 NET/Socket"),
        "network devices": ("mlx5_0", "eth0"),
        "GPUDirect RDMA": ("on", "off"),
        "NCCL": ("2.21.5", "2.27.3"),
        "NCCL_IB_TIMEOUT": ("22", "18"),
    }
    assert found.rows[0].topic is Topic.TRANSPORTS
    assert "NCCL_DEBUG" in found.same[Topic.SETTINGS]
    assert "4 hosts" in found.same[Topic.HOSTS]


def test_a_host_without_the_setting_of_the_others(tmp_path):
    settings = {"NCCL_IB_HCA": "mlx5_0"}
    good = nccl_log("2.27.3", "IB", "mlx5_0", settings=settings)
    bad = nccl_log("2.27.3", "IB", "mlx5_0", settings=settings, silent={(2, "NCCL_IB_HCA")})
    found = told(written(tmp_path, "good", good), written(tmp_path, "bad", bad))
    assert rows(found) == {"NCCL_IB_HCA": ("mlx5_0", "mlx5_0 on 3 hosts, not set on node-2")}
    assert found.rows[0].hosts == {"node-2"}


def test_what_differs_within_both_runs_is_told_apart_and_is_no_difference(tmp_path):
    log = nccl_log("2.27.3", "IB", "mlx5_0", settings={"NCCL_IB_HCA": "mlx5_0"}, silent={(2, "NCCL_IB_HCA")})
    found = told(written(tmp_path, "a", log), written(tmp_path, "b", log))
    assert found.rows == []
    assert [(row.name, row.a) for row in found.inside] == [("NCCL_IB_HCA", "mlx5_0 on 3 hosts, not set on node-2")]


def test_a_log_without_settings_has_not_recorded_them(tmp_path):
    good = nccl_log("2.27.3", "IB", "mlx5_0", settings={"NCCL_IB_TIMEOUT": "22"})
    quiet = "\n".join(line for line in good.split("\n") if "NCCL INFO" not in line or "Init" in line)
    found = told(written(tmp_path, "good", good), written(tmp_path, "bad", quiet))
    assert rows(found) == {}
    assert ("settings", "B") in {(one.name, one.where) for one in found.untold}
    assert ("connections of NCCL's channels", "B") in {(one.name, one.where) for one in found.untold}


def test_dumps_of_two_versions(tmp_path):
    for name, version in (("a", "2.21.5"), ("b", "2.27.5")):
        made = dumps.dump([dumps.entry(number) for number in range(5)], comm_lib_version=version)
        dumps.write(tmp_path / name, {"dump_0": made, "dump_1": made})
    assert rows(told(tmp_path / "a", tmp_path / "b")) == {"NCCL": ("2.21.5", "2.27.5")}


# Calls, groups, hosts of jobs written down by hand


def between(a, b):
    return whole.compare(*(run_of(name, trace, (), now_ns=jobs.ns(10**6)) for name, trace in (("a", a), ("b", b))))


def job(rounds=6, world=4, extra_at=None, **columns):
    made = jobs.Job(world)
    for number in range(rounds):
        if number == extra_at:
            made.round(op="barrier", numel=0, site="other")
        made.round(**columns)
    return made.clean(*range(world), at=100).trace(ended=101, exit_code=0)


def test_equal_jobs_do_not_differ():
    found = between(job(), job())
    assert found.rows == []
    assert any("order of the calls" in name for name in found.same[Topic.CALLS])


def test_an_extra_call_is_found_where_it_is_made():
    found = rows(between(job(), job(extra_at=3)), Topic.CALLS)
    place = ("all_reduce SUM of 4 float32 at train.py:21", "barrier at train.py:33")
    assert found == {
        "first other call: number 4 of default_pg, ranks 0-3": place,
        "barrier at u/train.py:33 main": ("-", "calls it"),
    }


def test_other_sizes_differ_in_a_job_of_the_same_size_and_are_natural_in_a_larger_one():
    ((name, texts),) = rows(between(job(numel=4), job(numel=8)), Topic.CALLS).items()
    assert name == "first other call: number 1 of default_pg, ranks 0-3"
    assert texts == ("all_reduce SUM of 4 float32 at train.py:21", "all_reduce SUM of 8 float32 at train.py:21")
    larger = between(job(numel=4), job(numel=8, world=8))
    assert rows(larger) == {
        "world size": ("4 ranks", "8 ranks"),
        "default_pg": ("1 group of 4 ranks, gloo", "1 group of 8 ranks, gloo"),
    }


def test_a_call_of_one_rank_is_found_if_that_rank_is_blamed_though_it_is_not_among_the_first():
    def made(odd):
        one = jobs.Job(16).rounds(5)
        one.round(late={14: 0.0}, without=[14] if odd else [])
        if odd:
            one.call(14, one.clock, None, op="barrier", numel=0)
        return one.trace()

    names = rows(between(made(odd=False), made(odd=True)), Topic.CALLS)
    assert "first other call: number 6 of default_pg, rank 14" in names


def test_a_place_that_the_run_did_not_reach_is_no_difference():
    whole_run = jobs.Job(2).rounds(20).round(site="save").clean(0, 1, at=100).trace(ended=101, exit_code=0)
    found = between(whole_run, job(rounds=5, world=2))
    assert rows(found) == {}
    (late,) = [one for one in found.untold if "save.py" in one.name]
    assert (late.where, late.why) == ("B", "the run ended before: it made 5 calls per rank")


def test_calls_of_one_function_at_other_lines_are_one_row():
    found = between(job(site="loop_a"), job(site="loop_b"))
    assert rows(found) == {"same calls at other lines": ("train.py:21", "train.py:24")}


def test_groups_of_another_size_and_other_members():
    def made(*groups):
        one = jobs.Job(8).rounds(3)
        for ranks in groups:
            one.groups[len(one.groups)] = (str(len(one.groups)), "TP", "nccl", list(ranks))
        return one.clean(*range(8), at=100).trace(ended=101, exit_code=0)

    four = made(range(4), range(4, 8))
    assert rows(between(four, made(range(2), range(2, 4), range(4, 6), range(6, 8)))) == {
        "TP": ("2 groups of 4 ranks, nccl", "4 groups of 2 ranks, nccl")
    }
    assert rows(between(four, made([0, 2, 4, 6], [1, 3, 5, 7]))) == {
        "members, TP": ("ranks 0-3; and 1 more", "ranks 0, 2, 4, 6; and 1 more")
    }
    assert rows(between(four, made())) == {"TP": ("2 groups of 4 ranks, nccl", "-")}


def placed(*hosts):
    made = jobs.Job(len(hosts)).rounds(3)
    for rank, host in enumerate(hosts):
        made.rank(rank, host=host)
    return made.clean(*range(len(hosts)), at=100).trace(ended=101, exit_code=0)


def test_new_hosts_and_other_places():
    assert rows(between(placed(*"aabb"), placed(*"aabc"))) == {
        "only in one": ("-", "c"),
        "ranks of a host": ("b: 2, 3", "b: 2"),
    }
    assert rows(between(placed(*"aabb"), placed(*"bbaa"))) == {
        "ranks of a host": ("a: 0, 1; b: 2, 3", "a: 2, 3; b: 0, 1")
    }
    assert rows(between(placed(*"aabb"), placed(*"ccdd"))) == {"only in one": ("a, b", "c, d")}


def test_a_new_host_that_the_verdict_names_comes_first():
    bad = jobs.Job(4).rounds(20).hang(without=[3])
    for rank, host in enumerate("abcz"):
        bad.rank(rank, host=host)
    bad.exits(3, at=bad.clock, signal=9).exits(0, 1, 2, at=bad.clock + 60, signal=15)
    good = replace(placed(*"abcd"), command=("torchrun", "train.py"))
    found = between(
        good, replace(bad.trace(ended=bad.clock + 61, exit_code=1), command=("torchrun", "--x", "train.py"))
    )
    assert (found.rows[0].name, found.rows[0].b) == ("only in one", "z")
    assert found.rows[0].touches == ("the verdict on B names z",)
    assert rows(found)["command line"] == ("-", "--x")


# Step time


def stepped(durations_s, world=2):
    ends = [jobs.T0]
    for seconds in durations_s:
        ends.append(ends[-1] + round(seconds * jobs.S))
    table = [
        {"rank": rank, "step": number, "start_ns": ends[number - 1] if number else None, "end_ns": end}
        for rank in range(world)
        for number, end in enumerate(ends)
    ]
    return replace(job(world=world), steps=jobs.table(table, schema.STEPS))


def noisy(seed, mean=1.0, count=100, together=0.0):
    """Steps around `mean`; `together`: how much of a step's deviation is that of the one before it."""
    draw = random.Random(seed)
    found, deviation = [], 0.0
    for _ in range(count):
        deviation = together * deviation + draw.gauss(0, 0.1) * mean
        found.append(max(mean + deviation, 0.01))
    return found


def test_steps_that_are_slower_than_the_spread_are_told():
    found = rows(between(stepped(noisy(1)), stepped(noisy(2, mean=1.2))), Topic.STEP_TIME)
    ((name, (a, b)),) = found.items()
    assert name == "time of a step"
    ratio = float(b.split(": ")[1].removesuffix(" x A"))
    assert 1.15 < ratio < 1.25
    assert a.endswith("100 steps")


@pytest.mark.parametrize("together", [0.0, 0.8])
def test_steps_of_equal_runs_are_not_told_to_differ(together):
    wrong = sum(
        bool(rows(between(stepped(noisy(seed, together=together)), stepped(noisy(seed + 1000, together=together)))))
        for seed in range(25)
    )
    assert wrong <= 1, f"{wrong} of 25 pairs that come from one distribution"


def test_single_long_steps_all_through_a_run_show_in_the_mean():
    long = [step + (3 if number % 7 == 0 else 0) for number, step in enumerate(noisy(2))]
    ((name, _),) = rows(between(stepped(noisy(1)), stepped(long)), Topic.STEP_TIME).items()
    assert name == "mean time of a step"
    once = [step + (30 if number == 50 else 0) for number, step in enumerate(noisy(2))]
    assert rows(between(stepped(noisy(1)), stepped(once)), Topic.STEP_TIME) == {}


def test_too_few_steps_are_not_compared():
    found = between(stepped(noisy(1)), stepped(noisy(2, mean=9, count=10)))
    assert rows(found) == {}
    (one,) = [one for one in found.untold if one.topic is Topic.STEP_TIME]
    assert (one.where, one.why) == ("B", "20 steps are needed, A has 100, B has 10")


# The command


def invoke(*arguments, width=80):
    done = click.testing.CliRunner(env={"COLUMNS": str(width)}).invoke(command, [str(one) for one in arguments])
    return done.exit_code, done.stdout


@pytest.mark.parametrize("width", [80, 120])
def test_the_text_keeps_to_the_width_and_its_columns(tmp_path, width):
    settings = {f"NCCL_SETTING_WITH_A_LONG_NAME_{k}": "value " * 20 for k in range(20)}
    good = written(tmp_path, "good", nccl_log("2.21.5", "IB", "mlx5_0", settings={"NCCL_DEBUG": "INFO"}))
    bad = written(tmp_path, "bad", nccl_log("2.27.3", "Socket", "", settings=settings))
    code, text = invoke(good, bad, width=width)
    assert code == 1
    assert max(map(len, text.splitlines())) <= width
    lines = text.splitlines()
    head = next(line for line in lines if line.startswith("Transports"))
    row = next(line for line in lines if line.startswith("  network that NCCL"))
    at_a, at_b = head.index(" A ") + 1, len(head) - 1
    assert (row[at_a : at_a + 2], row[at_b:]) == ("IB", "Socket")
    assert "more (--format json has all)" in text


def test_the_exit_code_tells_whether_anything_differs(tmp_path):
    log = nccl_log("2.27.3", "IB", "mlx5_0")
    same = [written(tmp_path, name, log) for name in ("a", "b")]
    assert invoke(*same)[0] == 0
    assert "NOTHING DIFFERS" in invoke(*same)[1]
    other = written(tmp_path, "c", nccl_log("2.27.3", "Socket", ""))
    assert invoke(same[0], other)[0] == 1
    assert invoke(same[0])[0] == 2


def test_json_has_all_of_it(tmp_path):
    good = written(tmp_path, "good", nccl_log("2.21.5", "IB", "mlx5_0"))
    bad = written(tmp_path, "bad", nccl_log("2.27.3", "Socket", ""))
    code, text = invoke("--format", "json", good, bad)
    told = json.loads(text)
    assert code == 1
    assert set(told) == {"schema", "a", "b", "differs", "not_everywhere", "same", "not_recorded", "told"}
    assert told["b"]["path"] == str(bad)
    first = told["differs"][0]
    assert (first["topic"], first["name"], first["a"], first["b"]) == (
        "transports",
        "network that NCCL uses",
        "IB",
        "Socket",
    )


def test_words_from_files_do_not_steer_the_terminal(tmp_path):
    bad = nccl_log("2.27.3", "IB", "mlx5_0", settings={"NCCL_NAME": "\x1b[31mred"})
    good = nccl_log("2.27.3", "IB", "mlx5_0", settings={"NCCL_NAME": "x"})
    _, text = invoke(written(tmp_path, "good", good), written(tmp_path, "bad", bad))
    assert "\x1b" not in text
    assert "red" in text


def test_settings_of_links_are_those_of_the_ports_that_the_job_uses():
    def made(mtu):
        trace = job()
        samples = [
            {"time_ns": jobs.T0, "host": host, "kind": "netdev", "device": device, "counter": "mtu", "value": value}
            for host, device, value in (
                ("a", "eth0", mtu),
                ("b", "eth0", 9000),
                ("a", "docker0", 1500),
                ("a", "eth7", mtu + 1),
            )
        ]
        counters = jobs.table([{**one, "is_read": True, "source": "x"} for one in samples], schema.COUNTERS)
        used = [
            {"host": host, "kind": "port_used", "fields": json.dumps({"kind": "netdev", "device": "eth0"})}
            for host in ("a", "b")
        ]
        facts = jobs.table([{**one, "text": "", "source": "x"} for one in used], schema.FACTS)
        return replace(trace, counters=counters, facts=pl.concat([trace.facts, facts]))

    assert rows(between(made(9000), made(1500))) == {"MTU": ("9000", "1500 on a, 9000 on b")}
    assert diff.render_json(*(run_of("x", made(9000), (), now_ns=0),) * 2, between(made(9000), made(9000)))


# Damaged files, and ranks that nothing is told of

SKIP = pathlib.Path(__file__).parents[3] / "sample_traces" / "skip"
NOISE = random.Random(7).randbytes(300)


def damaged(folder, *patterns):
    shutil.copytree(SKIP, folder)
    for pattern in patterns:
        for path in folder.glob(pattern):
            path.write_bytes(NOISE)
    return folder


def untold(found, where, *, is_unread):
    return {one.name for one in found.untold if (one.where, one.is_unread) == (where, is_unread)}


@pytest.mark.parametrize("width", [80, 120])
def test_a_damaged_file_is_named_and_its_rank_is_not_read(tmp_path, width):
    bad = damaged(tmp_path / "bad", "h0/rank-*.arrow")
    name = next(SKIP.glob("h0/rank-*.arrow")).name
    code, text = invoke(SKIP, bad, width=width)
    assert code == 0
    assert f"could not be read in B: h0/{name} (" in text
    assert "Not read in B: calls of rank 0." in text
    assert "Not recorded in B" not in text
    assert max(map(len, text.splitlines())) <= width
    assert f"could not be read in A: h0/{name} (" in invoke(bad, SKIP)[1]
    files = json.loads(invoke("--format", "json", SKIP, bad)[1])["b"]["unreadable"]
    assert [one["path"] for one in files] == [f"h0/{name}"]


def test_with_all_segments_damaged_calls_links_and_steps_are_not_read(tmp_path):
    code, text = invoke(SKIP, damaged(tmp_path / "bad", "*/*.arrow"))
    assert code == 0
    assert "Not read in B: settings of links; calls." in text
    assert "B has 0; not all files there could be read" in " ".join(text.split())
    assert "4 more files" in text
    assert "Not recorded in B" not in text


@pytest.mark.parametrize("pattern", ["h2/rank-*.jsonl", "h2/launcher-*.jsonl", "h2/links-*", "*/rank-*.jsonl"])
def test_damage_alone_makes_no_difference(tmp_path, pattern):
    assert told(SKIP, damaged(tmp_path / "bad", pattern)).rows == []


def test_what_a_damaged_file_held_of_a_host_is_not_read(tmp_path):
    found = told(SKIP, damaged(tmp_path / "bad", "h2/rank-*.jsonl"))
    assert {"host h2", "calls of rank 2"} <= untold(found, "B", is_unread=True)


def test_a_dump_that_is_damaged_is_named(tmp_path):
    made = dumps.dump([dumps.entry(number) for number in range(5)])
    for name in ("a", "b"):
        dumps.write(tmp_path / name, {"dump_0": made, "dump_1": made})
    (tmp_path / "b" / "dump_1").write_bytes(NOISE)
    code, text = invoke(tmp_path / "a", tmp_path / "b")
    assert code == 0
    assert "could not be read in B: dump_1 (" in text
    assert "Not read in B: calls of rank 1." in text


def test_a_value_that_only_a_damaged_file_may_have_is_no_difference():
    a = values(*on("22", range(12)), *on("18", range(12, 16)))
    b = values(*on("22", range(12)))
    for lost, differs in ((frozenset({Topic.SETTINGS}), False), (frozenset(), True), (frozenset({Topic.LINKS}), True)):
        found = Found(lost=(frozenset(), lost))
        found.values(Topic.SETTINGS, "NCCL_IB_TIMEOUT", a, b)
        assert bool(found.rows) == differs
        assert untold(found, "B", is_unread=True) == (set() if differs else {"NCCL_IB_TIMEOUT of all"})
    found = Found(lost=(frozenset(), frozenset({Topic.SETTINGS})))
    found.values(Topic.SETTINGS, "NCCL_IB_TIMEOUT", a, values(*on("23", range(12))))
    assert found.rows


def without(trace, rank):
    return replace(trace, calls=trace.calls.filter(pl.col("rank") != rank))


def test_a_place_of_a_rank_that_the_other_run_tells_nothing_of_is_not_recorded():
    extra, plain = job(extra_at=3), job()
    is_kept = (pl.col("rank") == 0) | (pl.col("op").cast(pl.String) != "barrier")
    only_0 = replace(extra, calls=extra.calls.filter(is_kept))
    place = "barrier at u/train.py:33 main"
    assert place in rows(between(only_0, plain))
    found = between(only_0, without(plain, 0))
    assert place not in rows(found)
    assert {place, "calls of rank 0"} <= untold(found, "B", is_unread=False)
    assert place in rows(between(only_0, without(plain, 3)))


def test_a_place_before_the_first_call_that_is_kept_is_no_difference():
    first, plain = job(extra_at=0), job()
    ring = plain.ranks.with_columns(first_call=pl.lit(4, plain.ranks.schema["first_call"]))
    found = between(first, replace(plain, ranks=ring))
    assert "barrier at u/train.py:33 main" not in rows(found)
    assert any("no longer recorded" in one.why for one in found.untold)


# World size


def raised(rank):
    return (
        f"[rank{rank}]: Traceback (most recent call last):\n"
        f'[rank{rank}]:   File "train.py", line 3, in <module>\n'
        f"[rank{rank}]: ValueError: x\n"
    )


def test_ranks_that_a_log_names_are_no_world_size(tmp_path):
    log = written(tmp_path, "log", raised(0))
    found = told(log, SKIP)
    assert found.rows == []
    assert "world size" in untold(found, "A", is_unread=False)
    assert json.loads(invoke("--format", "json", log, SKIP)[1])["a"]["world_size"] is None
    assert told(log, written(tmp_path, "other", raised(5))).rows == []


def world_of(size, left=None, *, config=True):
    """Dumps of the first `left` of `size` ranks; torch before 2.4 writes no members."""
    made = {}
    for rank in range(size if left is None else left):
        made[f"dump_{rank}"] = dumps.dump([dumps.entry(number) for number in range(5)], world=size)
        if not config:
            del made[f"dump_{rank}"]["pg_config"]
    return made


def test_dumps_with_members_tell_the_world_size_and_without_them_only_who_left_one(tmp_path):
    dumps.write(tmp_path / "two", world_of(2))
    dumps.write(tmp_path / "four", world_of(4))
    dumps.write(tmp_path / "lacking", world_of(4, left=3))
    assert rows(told(tmp_path / "two", tmp_path / "four"))["world size"] == ("2 ranks", "4 ranks")
    found = told(tmp_path / "four", tmp_path / "lacking")
    assert found.rows == []
    assert "calls of rank 3" in untold(found, "B", is_unread=False)
    dumps.write(tmp_path / "old", world_of(4, config=False))
    dumps.write(tmp_path / "older", world_of(4, left=3, config=False))
    found = told(tmp_path / "old", tmp_path / "older")
    assert found.rows == []
    assert "world size" in untold(found, "both", is_unread=False)


def test_a_host_that_a_log_does_not_name_is_not_gone(tmp_path):
    log = nccl_log("2.27.3", "IB", "mlx5_0")
    part = "\n".join(line for line in log.split("\n") if "node-3:" not in line) + "\n"
    found = told(written(tmp_path, "whole", log), written(tmp_path, "part", part))
    assert "only in one" not in rows(found)
    assert "host node-3" in untold(found, "B", is_unread=False)


# Size, usage


def test_ten_thousand_differences_are_bounded(tmp_path):
    names = [f"NCCL_THING_{k:05}" for k in range(5_000)]
    good = nccl_log("2.27.3", "IB", "mlx5_0", hosts=2, settings=dict.fromkeys(names, "0"))
    bad = nccl_log("2.27.3", "IB", "mlx5_0", hosts=2, settings={f"{name}_B": "1" for name in names})
    paths = written(tmp_path, "good", good), written(tmp_path, "bad", bad)
    for width in (80, 120):
        code, text = invoke(*paths, width=width)
        assert code == 1
        assert "DIFFERS  10000 things" in text.replace(",", "")
        assert len(text.splitlines()) < 60
        assert max(map(len, text.splitlines())) <= width
    assert len(json.loads(invoke("--format", "json", *paths)[1])["differs"]) == 10_000


@pytest.mark.parametrize("names", [("", ""), ("", SKIP), (SKIP, ""), ("-", "-")])
def test_a_name_that_is_no_run_is_a_usage_error(names):
    assert invoke(*names)[0] == 2


def test_ctrl_c_is_not_something_that_differs():
    command = [sys.executable, "-m", "roundk", "diff", "-", str(SKIP)]
    # Where this runs in the background of a shell, SIGINT is ignored and so is by what it starts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as job:
        job.stdin.write(b"x\n" * 500_000)  # a pipe holds 64 KiB: that this returns shows that it reads
        job.stdin.flush()
        time.sleep(2)  # until it waits for more
        job.send_signal(signal.SIGINT)
        try:
            assert job.wait(timeout=60) == 130
            assert job.stderr.read() == b"roundk: interrupted\n"
        finally:
            job.kill()
    signal.signal(signal.SIGINT, before)


# Inputs of every kind


@pytest.mark.parametrize("name", CASES)
def test_a_run_does_not_differ_from_itself_whatever_it_left(name, tmp_path):
    folder = str(test_corpus.inputs_of(test_corpus.CASES / name, tmp_path))
    run = run_of(folder, *sources.load([folder]), now_ns=jobs.ns(10**6))
    found = whole.compare(run, run)
    assert found.rows == []
    assert {one.where for one in found.untold} <= {"both"}
    assert "NOTHING DIFFERS" in diff.render(run, run, found)


def test_which_run_is_named_first_changes_the_sides_only(tmp_path):
    good = written(tmp_path, "good", nccl_log("2.21.5", "IB", "mlx5_0", settings={"NCCL_IB_TIMEOUT": "22"}))
    bad = written(tmp_path, "bad", nccl_log("2.27.3", "Socket", "", settings={"NCCL_IB_HCA": "mlx5_0"}))
    there, back = rows(told(good, bad)), rows(told(bad, good))
    assert back == {name: (b, a) for name, (a, b) in there.items()}
    assert there
