from __future__ import annotations

import json

import pytest
from comm_dumps import HASH, SIGNED, T, comm, record
from dumps import dump, entry, rows, write
from dumps import load as load_dumps
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roundk.analyze import sources
from roundk.analyze.sources import ncclx
from roundk.analyze.sources.inputs import Hints


@pytest.fixture
def load(tmp_path):
    def read(dumps, **hints):
        files = {f"comm_dump_{rank}": json.dumps(of).encode() for rank, of in dumps.items()}
        items = write(tmp_path, files)
        assert all(ncclx.recognises(item) for item in items)
        return ncclx.load(items, Hints(**hints))

    return read


def facts(part, kind):
    found = part.facts.filter(kind=kind)
    return [(row["rank"], json.loads(row["fields"])) for row in found.iter_rows(named=True)]


def test_states_come_from_times_and_not_from_the_list(load):
    """With nothing running, the first pending collective is called current."""
    of = comm(0, [record(1, 0, 1, 3)], [record(2, 4)], [record(3, 5)])
    part = load({0: {HASH: of}, 1: {HASH: comm(1, [record(1, 0, 1, 3)], [record(2, 4, 5)])}})
    assert rows(part.calls, "rank", "seq", "op", "outcome", "start_ns", "end_ns", "is_timed") == [
        (0, 1, "all_reduce", "completed", (T + 1000) * 1000, (T + 3000) * 1000, True),
        (0, 2, "all_reduce", "open", None, None, True),
        (0, 3, "all_reduce", "open", None, None, True),
        (1, 1, "all_reduce", "completed", (T + 1000) * 1000, (T + 3000) * 1000, True),
        (1, 2, "all_reduce", "open", (T + 5000) * 1000, None, True),
    ]
    assert rows(part.progress, "rank", "enqueued", "started", "completed", "is_start_told", "counts") == [
        (0, 3, 1, 1, True, "collectives"),
        (1, 2, 2, 1, True, "collectives"),
    ]
    assert rows(part.groups, "name", "desc", "backend", "ranks") == [("0", "default_pg", "ncclx", [0, 1])]
    assert rows(part.calls, "numel", "bytes_in", "dtype", "reduce_op", "root")[0] == (
        1024,
        4096,
        "float32",
        "SUM",
        None,
    )


def test_rcclx_and_older_dumps_have_one_current_collective(load):
    of = comm(0, [record(1, 0, 1, 3)])
    del of["CT_currentColls"]
    one = load(
        {0: of | {"CT_currentColl": json.dumps(record(2, 4, 5))}, 1: of | {"rank": "1", "CT_currentColl": "null"}}
    )
    assert rows(one.calls, "rank", "seq", "outcome") == [(0, 1, "completed"), (0, 2, "open"), (1, 1, "completed")]


@pytest.mark.parametrize("spelled", [json.dumps(HASH), HASH, json.dumps("0x" + HASH.upper()), str(SIGNED), SIGNED])
def test_a_hash_is_the_same_however_it_is_written(load, spelled):
    part = load({0: comm(0, [record(1, 0, 1, 2)]), 1: comm(1, [record(1, 0, 1, 2)]) | {"commHash": spelled}})
    assert part.groups["ranks"].to_list() == [[0, 1]]


def test_an_unquoted_description_is_a_description(load):
    part = load({0: comm(0, [record(1, 0, 1, 2)]) | {"commDesc": "DP:3"}})
    assert rows(part.groups, "name", "desc") == [("3", "DP")]


def test_sizes_are_those_of_the_whole_call(load):
    calls = [
        record(1, 0, 1, 2, opName="AllGather", redOp=""),
        record(2, 0, 1, 2, opName="ReduceScatter"),
        record(3, 0, 1, 2, opName="Broadcast", root=1, dataType="commBfloat16"),
        record(4, 0, 1, 2, count=-5, dataType="commWeird"),
    ]
    part = load({0: comm(0, calls), 1: comm(1, calls)})
    assert rows(part.calls, "op", "numel", "bytes_in", "bytes_out", "root", "reduce_op")[:4] == [
        ("all_gather", 1024, 4096, 8192, None, None),
        ("reduce_scatter", 2048, 8192, 4096, None, "SUM"),
        ("broadcast", 1024, 2048, 2048, 1, None),
        ("all_reduce", None, None, None, None, "SUM"),
    ]


def test_members_are_named_by_their_global_ranks(load):
    """A communicator of ranks 1 and 3; ranks in it are 0 and 1."""
    dumps = {
        rank: {
            HASH: comm(rank, [record(1, 0, 1, 2)], size=4),
            "ab": comm(place, [record(1, 0, 1, 2, opName="Reduce", root=1)], name="ab", desc="TP:9"),
        }
        for rank, place in ((1, 0), (3, 1))
    }
    part = load(dumps)
    assert dict(rows(part.groups, "name", "ranks")) == {"0": [0, 1, 2, 3], "9": [1, 3]}
    assert [root for op, root in rows(part.calls, "op", "root") if op == "reduce"] == [3, 3]


def test_members_without_a_dump_are_told(load):
    dumps = {rank: {HASH: comm(rank, size=4), "ab": comm(place, name="ab", size=3)} for rank, place in ((1, 0), (3, 2))}
    part = load(dumps)
    assert "1 NCCLX communicators (ab) have members without a dump" in part.notes[0]


def test_twenty_past_collectives_are_all_that_is_kept(load):
    part = load({0: comm(0, [record(number, 0, 1, 2) for number in range(81, 101)])})
    assert rows(part.ranks, "data", "calls", "calls_lost", "first_call") == [("present", 20, 81, 82)]


def test_groups_of_sends_and_receives(load):
    """They count in `collId`: equal numbers on two ranks are not one round any more."""
    p2p = {"MetadataType": "GroupedP2PMetaData", "count": None}
    calls = [
        record(1, 0, 1, 2),
        record(2, 3, 4, 5, opName="Send", ranksInGroupedP2P=[0, 1], **p2p),
        record(3, 6, 7, opName="SendRecv", ranksInGroupedP2P=[1, 2, 3], **p2p),
        record(4, 8),
    ]
    part = load({0: comm(0, calls), 1: comm(1, [record(1, 0, 1, 2)])})
    assert rows(part.calls.filter(rank=0), "seq", "op", "peer", "outcome") == [
        (1, "all_reduce", None, "completed"),
        (2, "send", 1, "completed"),
        (4, "all_reduce", None, "open"),
    ]
    assert facts(part, "grouped_p2p") == [(0, {"comm": HASH, "number": 3, "peers": [1, 2, 3], "is_started": True})]
    assert set(part.progress["counts"]) == {"calls"}
    assert any("carry sends and receives" in note for note in part.notes)


@pytest.mark.parametrize(
    ("op", "state", "waits"),
    [
        ({"opType": "SEND", "POSTED": 9, "TRANSMITTED": 8, "DONE": 8}, "waiting_gpu", "the kernel of this rank"),
        ({"opType": "SEND", "POSTED": 9, "TRANSMITTED": 9, "DONE": 6}, "sending", "the network"),
        ({"opType": "RECV", "POSTED": 9, "RECEIVED": 8, "TRANSMITTED": 8, "DONE": 8}, "receiving", "the sender"),
        ({"opType": "RECV", "POSTED": 9, "RECEIVED": 9, "TRANSMITTED": 8, "DONE": 8}, "flushing", "this host's GPU"),
        ({"opType": "RECV", "POSTED": 9, "RECEIVED": 9, "TRANSMITTED": 9, "DONE": 8}, "waiting_gpu", "the kernel"),
        ({"opType": "RECV", "POSTED": 9, "RECEIVED": 9, "TRANSMITTED": 9, "DONE": 9}, "unknown", "not told"),
    ],
)
def test_what_a_proxy_does_and_waits_for(load, op, state, waits):
    steps = {name: {"step": at, "ts": T} for name, at in op.items() if name != "opType"}
    proxy = {"opCount": 18, "channelId": 1, "rank": 0, "remoteRank": 2, "opType": op["opType"], "startTs": T, **steps}
    part = load({0: comm(0, PT_activeOps=[proxy, {"status": "DONE"}, "garbage"])})
    ((rank, fields),) = facts(part, "proxy_op")
    assert (rank, fields["state"], fields["remote_rank"], fields["channel"]) == (0, state, 2, 1)
    assert fields["waits_for"].startswith(waits)
    assert part.facts.filter(kind="proxy_op")["time_ns"].to_list() == [T * 1000]


def test_the_mapper_calls_a_put_a_receive(load):
    requests = [
        {"event": {"type": "RecvCtrlStart", "remoteBuffer": 1, "length": 4}, "seqNum": 3},
        {"event": {"type": "RecvCtrlStart"}, "seqNum": 4},
    ]
    part = load({0: comm(0, MT_unfinishedRequests=requests, MT_recvNotifiedByPeer={"1": 2, "x": -1})})
    assert facts(part, "mapper")[0][1] == {
        "comm": HASH,
        "notified_by_peer": {"1": 2},
        "unfinished": ["PutStart", "RecvCtrlStart"],
    }


def test_the_process_says_more(load):
    info = {"totalCommDurPerIterationUs": "5000", "NetworkPerfMonitor": json.dumps({"avgBw": 41.5, "commAvgBw": []})}
    errors = {"badNics": {"mlx5_0": {"1": {"timestampMs": T // 1000, "errorMessage": "port down"}}}}
    part = load({0: {HASH: comm(0), "GlobalInfo": info | {"processGlobalErrors": json.dumps(errors)}}})
    assert facts(part, "comm_time") == [(0, {"per_iteration_us": 5000})]
    assert facts(part, "network_speed") == [(0, {"gb_per_s": 41.5})]
    assert facts(part, "nic_error") == [(0, {"device": "mlx5_0", "port": "1", "message": "port down"})]
    assert part.facts.filter(kind="nic_error")["time_ns"].to_list() == [T * 1000]


def test_inside_flight_recorder_dumps(tmp_path):
    """They add what they know beside calls; calls where the recorder has none."""
    states = {rank: {HASH: comm(rank, [record(1, 0, 1, 2)], CT_currentIteration=7)} for rank in (0, 1)}
    full = load_dumps(
        tmp_path / "a", {f"t_{rank}": dump([entry(0)], nccl_comm_state=of) for rank, of in states.items()}
    )
    assert rows(full.calls, "rank", "op", "source_op") == [
        (0, "all_reduce", "all_reduce"),
        (1, "all_reduce", "all_reduce"),
    ]
    assert [(rank, fields["iteration"]) for rank, fields in facts(full, "comm")] == [(0, 7), (1, 7)]
    none = load_dumps(tmp_path / "b", {f"t_{rank}": dump([], nccl_comm_state=of) for rank, of in states.items()})
    assert rows(none.calls, "rank", "group", "source_op") == [(0, 1, "AllReduce"), (1, 1, "AllReduce")]
    assert rows(none.groups, "group", "backend", "ranks") == [(0, "", [0, 1]), (1, "ncclx", [0, 1])]


def test_the_rank_is_in_the_name_or_in_the_default_group(tmp_path):
    files = {
        "dump_b": json.dumps({HASH: comm(5, size=8)}).encode(),
        "x": json.dumps({"ab": comm(1, desc="TP:1")}).encode(),
    }
    part = ncclx.load(write(tmp_path, files), Hints())
    assert rows(part.ranks, "rank", "data") == [(5, "empty")]
    assert [(one.path, "--rank-pattern" in one.why) for one in part.unreadable] == [("x", True)]


def test_what_is_no_dump_beside_its_peers_is_told(tmp_path):
    files = {f"comm_dump_{rank}": json.dumps({HASH: comm(rank, size=4)}).encode() for rank in range(2)}
    write(tmp_path, {**files, "comm_dump_2": b"", "comm_dump_3": b"\x01\xffgarbage" * 9, "notes": b"\x01\x02"})
    trace, _ = sources.load([str(tmp_path)])
    assert sorted((one.path, one.why.split(",")[0]) for one in trace.unreadable) == [
        ("comm_dump_2", "it is empty"),
        ("comm_dump_3", "its peers are comm dumps"),
    ]


@pytest.mark.parametrize(
    ("content", "is_one"),
    [
        (json.dumps({HASH: comm(0)}), True),
        (json.dumps(comm(0)), True),
        ("{}", False),
        ('{"commHash": "1"}', False),
        ('{"version": "2.10", "pg_config": {}}', False),
        ("[1]", False),
        ("", False),
        ("commHash nRanks", False),
    ],
)
def test_dumps_are_recognised_by_content(tmp_path, content, is_one):
    (item,) = write(tmp_path, {"x_1": content.encode()})
    assert ncclx.recognises(item) is is_one


anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=8,
)
KEYS = [*comm(0), *record(1), "ranksInGroupedP2P", "PT_activeOps", "MT_putFinishedByPeer", "GlobalInfo", "badNics"]


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.dictionaries(st.sampled_from(KEYS), anything, max_size=6), max_size=3),
    st.dictionaries(st.sampled_from(KEYS), anything.map(json.dumps), max_size=4),
)
def test_nothing_that_a_dump_says_upsets_the_reader(tmp_path, records, values):
    changed = [record(number, 0, 1, 2) | one for number, one in enumerate(records)]
    of = comm(0, changed) | values
    part = ncclx.load(write(tmp_path, {"d_0": json.dumps({HASH: of, "GlobalInfo": values}).encode()}), Hints())
    assert len(part.read) + len(part.unreadable) == 1
    assert (part.calls["seq"] >= 0).all()


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damage_gives_partial_data_or_a_reason(tmp_path, data):
    content = bytearray(json.dumps({HASH: comm(0, [record(1, 0, 1, 2)], PT_activeOps=[{"rank": 1}])}).encode())
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = bytes(content[: data.draw(st.integers(1, len(content)))])
    part = ncclx.load(write(tmp_path, {"d_0": content}), Hints())
    assert len(part.read) + len(part.unreadable) == 1
    assert all(one.why for one in part.unreadable)


@given(st.lists(st.tuples(st.integers(1, 10**9), st.booleans()), min_size=1, max_size=10, unique_by=lambda one: one[0]))
def test_generated_content_survives(made):
    of = comm(0, [record(number, 0, 1, 2 if is_done else None) for number, is_done in made])
    tables = ncclx.read({0: ("d_0", {HASH: of})})
    found = rows(tables.calls.sort("seq"), "seq", "outcome")
    assert found == [(number, "completed" if is_done else "open") for number, is_done in sorted(made)]
