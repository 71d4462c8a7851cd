"""Lines of a run's files that a disk or another program has changed: told by file and line, the rest read."""

from __future__ import annotations

import copy
import json
import pathlib
import shutil

import pyarrow as pa
import pytest
import sysfs_tree
from hypothesis import given, settings
from hypothesis import strategies as st

from roundk.tracer import links, reader, rundir, schema, side_lines, words

LINES = [
    {"kind": "alive", "time_ns": 2},
    {"kind": "start", "time_ns": 1, "schema": words.SCHEMA_VERSION, "host": "h0", "pid": 1, "sysfs_root": None},
    {"kind": "counters", "id": 1, "of": "netdev", "device": "eth0", "port": None, "lag_ms": 0, "names": ["a", "b"]},
    {"kind": "word", "id": 1, "text": "up"},
    {"kind": "look", "id": 1, "counters": [[1, 2], [5, 1]]},
    {"kind": "netdev", "time_ns": 3, "error_ns": 1, "device": "eth0", "is_up": False, "is_admin_up": True,
     "is_gone": False, "changes": None},
    {"kind": "ib_port", "time_ns": 3, "error_ns": 1, "device": "mlx5_0", "port": 1, "state": "1: DOWN", "is_up": False},
    {"kind": "used", "time_ns": 3, "of": "ib", "device": "mlx5_0", "port": 1, "by": "NCCL_IB_HCA"},
    {"kind": "address", "time_ns": 3, "address": "10.0.0.1"},
    {"kind": "gap", "time_ns": 3, "for_ms": 700},
    {"kind": "unreadable", "time_ns": 3, "what": "tcp", "why": "no"},
    {"kind": "xid", "time_ns": 3, "bus_id": "0000:dc:00", "xid": 79, "is_switch": False, "text": "Xid 79"},
    {"kind": "off", "time_ns": 3, "why": "no space"},
]  # fmt: skip


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A run directory of a sampler, its side file and that one's lines."""
    root = tmp_path_factory.mktemp("recorded")
    sysfs_tree.add_netdev(root / "sys", "eth0")
    sysfs_tree.add_port(root / "sys", "mlx5_0", 1)
    sysfs_tree.set_tcp(root / "proc", out=10, retransmitted=1, timeouts=0)
    sampler = links.Sampler(rundir.prepare(str(root / "run")), sysfs_root=str(root / "sys"))
    sampler._begin()
    for _ in range(2):
        for one in sampler._rounds:
            one.read(sampler._store)
    for line in LINES[5:]:
        sampler._store.event(line["kind"], **{key: line[key] for key in line if key not in ("kind", "time_ns")})
    sampler.close()
    [file] = (root / "run").glob("*/links-*.jsonl")
    return root / "run", file, [json.loads(line) for line in file.read_text().splitlines()]


def write(file, lines):
    file.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))


ODD = st.one_of(
    st.none(), st.booleans(), st.integers(), st.sampled_from([-1, 2**31, 2**63, -(2**70), 10**30, 2**20]), st.floats(),
    st.text(max_size=5), st.sampled_from(["\ud800", "\udcff", "1" * 400, "\x1b[31m"]),
    st.recursive(st.integers() | st.text(max_size=2), lambda inside: st.lists(inside, max_size=3), max_leaves=4),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
)  # fmt: skip


def spoilt(data, lines):
    """The lines with one to three of them changed in some way."""
    changed = copy.deepcopy(lines)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(changed) - 1))
        if not isinstance(changed[at], dict) or not changed[at] or data.draw(st.integers(0, 9)) == 0:
            changed[at] = data.draw(ODD)
            continue
        key = data.draw(st.sampled_from(sorted(changed[at])))
        if data.draw(st.booleans()):
            changed[at][key] = data.draw(ODD)
        elif isinstance(changed[at][key], list) and changed[at][key]:
            changed[at][key][0:1] = [data.draw(ODD)]
        else:
            del changed[at][key]
    return changed


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_whatever_a_line_holds_the_rest_is_read(recorded, data):
    run, file, lines = recorded
    changed = spoilt(data, lines)
    changed = [json.dumps(line) for line in changed]
    write(file, changed)
    found = reader.read_run(run)
    assert found.counters.schema == schema.COUNTERS
    found.counters.validate(full=True)
    found.facts.validate(full=True)
    assert all(pa.scalar(text).as_py() for text in found.facts["text"].to_pylist())
    _, bad = side_lines.sorted_out(
        (
            (number, line if isinstance(line := json.loads(raw), dict) else None)
            for number, raw in enumerate(changed, 1)
        ),
        side_lines.SAMPLER,
    )
    told = [problem.path for problem in found.unreadable]
    assert told == ([f"{file.relative_to(run)}:{bad[0].at}"] if bad else [])


SAMPLE = pathlib.Path(__file__).parents[3] / "sample_traces" / "never_entered"


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A copy of a recorded job of torchrun with four ranks, one of which never entered its last round."""
    return pathlib.Path(shutil.copytree(SAMPLE, tmp_path_factory.mktemp("job") / "run"))


@pytest.fixture
def change(job):
    """Change a line of a file of the job, given by how its name begins and the line's kind."""
    kept = {}

    def change(name, kind, /, **fields):
        [file] = job.glob(f"node-a/{name}*.jsonl")
        kept[file] = file.read_text()
        lines = objects(kept[file])
        at = next(at for at, line in enumerate(lines) if line["kind"] == kind)
        write(file, [*lines[:at], {**lines[at], **fields}, *lines[at + 1 :]])
        return f"{file.relative_to(job)}:{at + 1}"

    yield change
    for file, text in kept.items():
        file.write_text(text)


def objects(text):
    return [json.loads(line) for line in text.splitlines() if line.strip("\0 ")]


def calls_of(run, but=None):
    rows = run.calls.select(["rank", "op", "seq", "enter_ns", "end_ns"]).to_pylist()
    return [row for row in rows if row["rank"] != but]


@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_whatever_the_lines_of_a_rank_or_a_parent_hold_the_rest_is_read(job, data):
    whole = reader.read_run(job)
    file = data.draw(st.sampled_from(sorted(job.glob("node-a/*.jsonl"))))
    text = file.read_text()
    try:
        write(file, [json.dumps(line) for line in spoilt(data, objects(text))])
        found = reader.read_run(job)
    finally:
        file.write_text(text)
    for name in ("calls", "groups", "ranks", "sites", "facts", "stacks", "steps"):
        table = getattr(found, name)
        assert table.schema == getattr(schema, name.upper())
        table.validate(full=True)
    rank = int(file.name.split("-")[1]) if file.name.startswith("rank-") else None
    told = {problem.path.partition(":")[0] for problem in found.unreadable}
    assert told <= {str(file.relative_to(job))}
    if found.attempts == whole.attempts:
        assert calls_of(found, but=rank) == calls_of(whole, but=rank)


def test_a_damaged_place_costs_the_place(change, job):
    where = change("rank-00000", "site", line="nineteen")
    found = reader.read_run(job)
    why = 'this line is left out: `line` is "nineteen", not the number of a line'
    assert [(one.path, one.why) for one in found.unreadable] == [(where, why)]
    mine = [row["site"] for row in found.calls.select(["rank", "site"]).to_pylist() if row["rank"] == 0]
    assert None in mine
    assert set(mine) != {None}


def test_calls_of_a_damaged_group_are_counted_as_lost(change, job):
    change("rank-00000", "group", ranks=[[0, 10**12, 1]])
    found = reader.read_run(job)
    lost = dict(zip(found.ranks["rank"].to_pylist(), found.ranks["calls_lost"].to_pylist(), strict=True))
    assert lost[0] > 0
    assert lost[1] == lost[2] == lost[3] == 0


@pytest.mark.parametrize("fields", [{"kind": None}, {"attempt": "first"}, {"time_ns": -5}])
def test_a_rank_whose_first_line_is_damaged_keeps_its_calls(change, job, fields):
    whole = reader.read_run(job)
    where = change("rank-00002", "process", **fields)
    found = reader.read_run(job)
    assert [one.path for one in found.unreadable] == [where]
    assert calls_of(found) == calls_of(whole)
    assert (found.world_size, found.attempts) == (4, whole.attempts)


@pytest.mark.parametrize(
    ("name", "kind", "time_ns"),
    [
        ("launcher-", "start", 1_795_986_799_000_000_000),  # after all that the launcher did
        ("launcher-", "start", 2**63 - 1),
        ("rank-00001", "process", 1),
        ("agent-", "exit", 1),
    ],
)
def test_a_wrong_time_in_one_line_drops_no_file(change, job, name, kind, time_ns):
    whole = reader.read_run(job)
    change(name, kind, time_ns=time_ns)
    found = reader.read_run(job)
    assert calls_of(found) == calls_of(whole)
    assert found.ranks["exit_signal"].to_pylist()[1:] == whole.ranks["exit_signal"].to_pylist()[1:]


def test_a_samplers_wrong_start_drops_none_of_its_samples(tmp_path):
    run = pathlib.Path(shutil.copytree(SAMPLE.with_name("link_flap"), tmp_path / "run"))
    whole = reader.read_run(run)
    [file] = run.glob("h1/links-*.jsonl")
    write(file, [{**line, "time_ns": 1} if line["kind"] == "start" else line for line in objects(file.read_text())])
    assert len(reader.read_run(run).counters) == len(whole.counters)


def test_files_of_an_earlier_run_are_counted(job):
    file = job / "node-a" / "rank-00007-1.jsonl"
    file.write_text(json.dumps({"kind": "process", "rank": 7, "time_ns": 1_795_986_000_000_000_000}) + "\n")
    try:
        found = reader.read_run(job)
    finally:
        file.unlink()
    assert len(found.ranks) == 4
    assert any(note.startswith("1 file of processes that were gone before") for note in found.notes)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"ranks": [[0, 2, 1]]}, "`ranks` are 2, and `size` is 4"),
        ({"ranks": [[0, 2, 1], [0, 2, 1]]}, "no rank twice"),
        ({"ranks": [[0, 16_777_215, 1]]}, "`ranks` is"),
        ({"ranks": [[0, 1_000_000, 1]] * 50}, "`ranks` is"),
    ],
)
def test_members_that_cannot_be_are_told_and_nobodys(change, job, fields, why):
    where = change("rank-00001", "group", **fields)
    found = reader.read_run(job)
    assert [one.path for one in found.unreadable] == [where]
    assert why in found.unreadable[0].why
    assert sorted(map(len, found.groups["ranks"].to_pylist())) == sorted(
        map(len, reader.read_run(SAMPLE).groups["ranks"].to_pylist())
    )


def test_an_id_of_a_rank_is_given_once(job):
    [file] = job.glob("node-a/rank-00001-*.jsonl")
    text = file.read_text()
    lines = objects(text)
    at = next(at for at, line in enumerate(lines) if line["kind"] == "group" and line["name"] == "0")
    write(file, [*lines[: at + 1], {**lines[at], "ranks": [[4, 4, 1]]}, *lines[at + 1 :]])
    try:
        found = reader.read_run(job)
    finally:
        file.write_text(text)
    assert [(one.path, "gives the same id" in one.why) for one in found.unreadable] == [
        (f"{file.relative_to(job)}:{at + 2}", True)
    ]
    assert calls_of(found) == calls_of(reader.read_run(SAMPLE))


@pytest.mark.parametrize("size", [2**40, 1_000_000, -1, "4"])
def test_a_world_size_beyond_reason_is_no_size(change, job, size):
    change("rank-00001", "process", world_size=size)
    found = reader.read_run(job)
    assert (found.world_size, len(found.ranks)) == (4, 4)


def test_an_end_that_a_parent_tells_is_read_behind_a_damaged_line(change, job):
    whole = reader.read_run(job)
    change("agent-", "exit", pid=None)
    found = reader.read_run(job)
    assert found.ranks["exit_signal"].to_pylist()[1:] == whole.ranks["exit_signal"].to_pylist()[1:]
    assert 15 in whole.ranks["exit_signal"].to_pylist()[1:]


def test_lines_as_the_sampler_writes_them_are_good(recorded):
    assert side_lines.sorted_out(enumerate(recorded[2], 1), side_lines.SAMPLER)[1] == []
    good, bad = side_lines.sorted_out(enumerate(LINES, 1), side_lines.SAMPLER)
    assert (good, bad) == ([{**line, "at": at} for at, line in enumerate(LINES, 1)], [])


@pytest.mark.parametrize(
    ("line", "key", "value", "why"),
    [
        (2, "id", 0, "`id` is 0, not a number from 1 to 1,048,575"),
        (2, "id", True, "`id` is true, not a number from 1 to 1,048,575"),
        (2, "id", 1_048_575, "`id` is 1048575, too large for 2 names"),
        (2, "port", 2**31, "`port` is 2147483648, not the number of a port"),
        (2, "lag_ms", -1, "`lag_ms` is -1, not a number of milliseconds below a day"),
        (2, "names", ["a", 1], '`names` is ["a", 1], not a list of names'),
        (2, "device", None, "`device` is null, not a text"),
        (3, "id", 2**63, "`id` is 9223372036854775808, not a number from 1 to 2^63 - 1"),
        (3, "text", 1.5, "`text` is 1.5, not a text"),
        (4, "counters", [[1, 2_000_000]], "`counters` is [[1, 2000000]], not a list of pairs of ids' first and number"),
        (4, "counters", 7, "`counters` is 7, not a list of pairs of ids' first and number"),
        (5, "time_ns", 2**63, "`time_ns` is 9223372036854775808, not a time in nanoseconds"),
        (5, "is_up", 1, "`is_up` is 1, not true or false"),
        (12, "kind", "of", '`kind` is "of", which this version of roundk does not know'),
        (12, "why", "x" * 50, None),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_line_is_told(line, key, value, why):
    good, bad = side_lines.sorted_out([(7, {**LINES[line], key: value})], side_lines.SAMPLER)
    assert [one.why for one in bad] == ([why] if why else [])
    assert all(one.at == 7 for one in bad)
    assert len(good) == (why is None)


@pytest.mark.parametrize("line", range(len(LINES)))
def test_a_line_that_lacks_its_kind_is_left_out(line):
    lacking = {key: value for key, value in LINES[line].items() if key != "kind"}
    _, bad = side_lines.sorted_out([(1, lacking)], side_lines.SAMPLER)
    assert [one.why for one in bad] == ["`kind` is missing"]


def test_an_id_is_given_once():
    lines = [LINES[2], {**LINES[2], "id": 2}, {**LINES[2], "id": 3}]
    good, bad = side_lines.sorted_out(enumerate(lines, 1), side_lines.SAMPLER)
    assert [line["id"] for line in good] == [1, 3]
    assert bad == [side_lines.Bad(2, "line 1 gives the same id")]


def test_bad_lines_are_told_by_file_and_line_and_those_behind_are_read(recorded):
    run, file, lines = recorded
    first = next(at for at, line in enumerate(lines) if line["kind"] == "counters" and line["device"] == "eth0")
    write(file, [*lines[:first], '{"kind":"wo', "[" * 100_000, *lines[first:]])
    found = reader.read_run(run)
    assert [(one.path, one.why) for one in found.unreadable] == [
        (f"{file.relative_to(run)}:{first + 1}", "this line is left out: it is not whole; so is 1 other line")
    ]
    assert "eth0" in found.counters["device"].to_pylist()


def test_without_its_start_a_sampler_is_of_the_run_by_its_sign_of_life(recorded):
    run, file, lines = recorded
    write(file, [line for line in lines if line["kind"] != "start"])
    launcher = file.with_name("launcher-1.jsonl")
    started = next(line["time_ns"] for line in lines if line["kind"] == "start")
    for began_ns, is_kept in ((started, True), (lines[0]["time_ns"] + 1, False)):
        launcher.write_text(json.dumps({"kind": "start", "time_ns": began_ns, "command": ["x"]}) + "\n")
        try:
            assert bool(len(reader.read_run(run).counters)) is is_kept
        finally:
            launcher.unlink()


def test_a_name_of_bytes_that_are_no_text_is_written_out(recorded):
    run, file, lines = recorded
    write(file, [{**line, "device": "od\udcfd"} if line.get("device") == "eth0" else line for line in lines])
    found = reader.read_run(run)
    assert "od\\xfd" in found.counters["device"].to_pylist()
    assert {json.loads(fields).get("device") for fields in found.facts["fields"].to_pylist()} >= {"od\\xfd"}
    assert found.unreadable == ()


def test_whole_characters_stay_and_half_ones_are_written_out(recorded):
    run, file, lines = recorded
    write(file, [{**line, "device": "\U0001f600\ud800"} if line.get("device") == "eth0" else line for line in lines])
    assert "\U0001f600\\ud800" in reader.read_run(run).counters["device"].to_pylist()


def test_another_schema_version_is_noted(recorded):
    run, file, lines = recorded
    write(file, [{**line, "schema": 99} if line["kind"] == "start" else line for line in lines])
    [note] = [note for note in reader.read_run(run).notes if "schema" in note]
    assert note.startswith(f"written with schema 99, read by a roundk that knows {words.SCHEMA_VERSION}")
    write(file, lines)
    assert not [note for note in reader.read_run(run).notes if "schema" in note]
