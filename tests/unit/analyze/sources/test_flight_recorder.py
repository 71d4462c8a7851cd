from __future__ import annotations

import json
import os
import pickle
import re

import polars as pl
import pytest
from dumps import MS, T0, dump, entry, group, load, pickled, rows, scheduled, status, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roundk.analyze import sources
from roundk.analyze.output import inventory
from roundk.analyze.sources import flight_recorder
from roundk.analyze.sources.inputs import Hints
from roundk.analyze.sources.merge import merge
from roundk.tracer.errors import RunError

INPLACE = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def as_json(whole):
    """A dump as torch writes it as JSON: no stacks, 0 for None, counters as text, no empty list of entries."""
    made = dict(whole)
    made["entries"] = [
        {key: 0 if value is None else value for key, value in one.items() if key != "frames"}
        for one in whole.get("entries", [])
    ]
    if not made["entries"]:
        del made["entries"]
    made["pg_status"] = {key: {name: str(at) for name, at in of.items()} for key, of in whole["pg_status"].items()}
    return made | {"nccl_comm_state": {}}


def test_a_dump_becomes_tables(tmp_path):
    frames = [
        {"name": "all_reduce", "filename": "/opt/lib/python3.12/site-packages/torch/distributed/c10d.py", "line": 5},
        {"name": "step", "filename": "/app/train.py", "line": 57},
        {"name": "<module>", "filename": "/app/train.py", "line": 80},
    ]
    calls = [{"frames": frames, **entry(0)}, {"frames": frames, **scheduled(1)}]
    part = load(tmp_path, {f"nccl_trace_rank_{rank}": dump(calls) for rank in (0, 1)})
    assert rows(part.groups, "name", "desc", "backend", "ranks") == [("0", "default_pg", "nccl", [0, 1])]
    assert rows(part.calls, "rank", "group", "seq", "op", "source_op", "numel", "bytes_in", "dtype", "outcome") == [
        (rank, 0, seq, "all_reduce", "all_reduce", 8, 32, "float32", outcome)
        for rank in (0, 1)
        for seq, outcome in ((1, "completed"), (2, "open"))
    ]
    assert rows(part.calls, "enter_ns", "issued_ns", "start_ns", "end_ns", "is_timed")[:2] == [
        (T0, T0, T0 + MS // 2, T0 + 2 * MS, True),
        (T0 + 10 * MS, T0 + 10 * MS, None, None, True),
    ]
    assert rows(part.calls, "shapes", "site", "thread")[0] == ("[[4, 2]] -> [[4, 2]]", 0, 140000000000001)
    assert rows(part.sites, "file", "line", "function") == [("/app/train.py", 57, "step")]
    assert part.sites["stack"][0].to_list()[1:] == ["/app/train.py:57 step", "/app/train.py:80 <module>"]
    assert rows(part.ranks, "rank", "data", "calls", "calls_lost", "first_call", "last_alive_ns") == [
        (rank, "present", 2, 0, 1, T0 + 10 * MS) for rank in (0, 1)
    ]
    assert part.world_size == 2
    assert part.versions == ("Flight Recorder 2.10, pickle, communication library 2.27.5",)
    assert not part.unreadable
    assert not part.notes


def test_json_says_the_same_as_a_pickle(tmp_path):
    calls = [entry(0), scheduled(1), entry(2, state="started", retired=False, time_discovered_completed_ns=None)]
    counters = {"0": status(3, 3, 1)}
    whole = dump(calls, counters=counters)
    one = load(tmp_path, {f"trace_{rank}": whole for rank in (0, 1)})
    other = load(tmp_path, {f"rank_{rank}.json": as_json(whole) for rank in (0, 1)})
    assert one.calls.equals(other.calls)
    assert one.groups.equals(other.groups)
    assert one.progress.drop("source").equals(other.progress.drop("source"))
    assert rows(one.progress, "enqueued", "started", "completed", "is_start_told")[0] == (3, 3, 1, True)


def test_stacks_that_differ_outside_torch_are_different_sites(tmp_path):
    """Two ranks call the same helper from two places: the line of the call is the same."""
    helper = {"name": "barrier", "filename": "/opt/lib/lightning/ddp.py", "line": 321}
    frames = {rank: [helper, {"name": "f", "filename": "/app/run.py", "line": 10 * rank}] for rank in (0, 1)}
    part = load(tmp_path, {f"t{rank}": dump([{"frames": frames[rank], **entry(0)}]) for rank in (0, 1)})
    assert rows(part.sites, "file", "line") == [("/opt/lib/lightning/ddp.py", 321)] * 2
    assert rows(part.calls, "site") == [0, 1]


# Schemas


def bare_list():
    """A dump of torch 2.2."""
    return [
        {
            "pg_id": 0,
            "seq_id": number,
            "profiling_name": "nccl:all_reduce",
            "time_created_us": T0 // 1000 + number,
            "input_sizes": [[3]],
            "output_sizes": [[3]],
            "state": "completed",
            "retired": True,
            "frames": [{"name": "f", "filename": "/a.py", "line": 1}],
        }
        for number in (4, 5)
    ]


def test_the_highest_rank_seen_is_no_world_size(tmp_path):
    part = load(tmp_path, {f"nccl_trace_rank_{rank}": bare_list() for rank in (0, 2)})
    assert "2 of at least 3 with data" in inventory.render(merge([part], None, tmp_path, []), [part])


def test_torch_2_2_is_a_bare_list(tmp_path):
    listed = bare_list()
    part = load(tmp_path, {"nccl_trace_rank_0": listed, "nccl_trace_rank_1": listed})
    assert rows(part.calls, "rank", "seq", "enter_ns", "numel", "bytes_in", "outcome") == [
        (rank, seq, T0 + 1000 * seq, 3, None, "completed") for rank in (0, 1) for seq in (4, 5)
    ]
    assert rows(part.groups, "name", "ranks") == [("0", [0, 1])]
    assert rows(part.ranks, "calls", "calls_lost", "first_call") == [(2, 3, 4)] * 2
    assert part.versions == ("Flight Recorder of torch 2.2, pickle",)
    assert "no dump tells the members of 1 group (0)" in part.notes[0]


def test_torch_2_3_numbers_its_groups(tmp_path):
    def one(pg_id):
        made = entry(0, pg_id=pg_id, seq_id=7)
        return {key: made[key] for key in made if key not in ("process_group", "collective_seq_id", "p2p_seq_id")}

    head = {"version": "1.4", "pg_config": {"0": [0, 1, 2, 3], "1": [0, 1]}}
    other = {"version": "1.4", "pg_config": {"0": [0, 1, 2, 3], "1": [2, 3]}}
    files = {f"trace_{rank}": (head if rank < 2 else other) | {"entries": [one(1)]} for rank in range(4)}
    # In the file itself the numbers are integers.
    config = {
        rank: {int(key): ranks for key, ranks in files[f"trace_{rank}"]["pg_config"].items()} for rank in range(4)
    }
    files = {name: pickle.dumps(of | {"pg_config": config[int(name[-1])]}, 2) for name, of in files.items()}
    part = load(tmp_path, files)
    names = {key: (name, ranks) for key, name, ranks in rows(part.groups, "group", "name", "ranks")}
    assert [names[key] for key in rows(part.calls, "group")] == [("1", [0, 1])] * 2 + [("1", [2, 3])] * 2
    assert rows(part.calls, "seq") == [7] * 4
    assert part.world_size == 4


def test_numbers_as_text_and_an_unknown_version_with_unknown_fields(tmp_path):
    call = entry(0, seq="5", collective_seq_id="5", input_dtypes="Float", split_of_tomorrow=[1, 2], state="paused")
    part = load(tmp_path, {"trace_0": dump([call], world=1, version="3.0", something={"else": [1]})})
    assert rows(part.calls, "seq", "dtype", "outcome") == [(5, "float32", "failed")]


def test_all_to_all_tells_its_splits(tmp_path):
    call = entry(0, "nccl:all_to_all", input_split_sizes=[3, 1], output_split_sizes=[2, 2])
    part = load(tmp_path, {"trace_0": dump([call], version="2.11")})
    assert rows(part.calls, "op", "shapes") == [("all_to_all", "[[4, 2]] -> [[4, 2]] splits [3, 1] -> [2, 2]")]


def test_versions_may_differ(tmp_path):
    old = dump([entry(0)], version="2.4", comm_lib_version="")
    del old["comm_lib_version"]
    part = load(tmp_path, {"trace_0": old, "trace_1": dump([entry(0)], nccl_version="2.21.5", comm_lib_version="")})
    assert part.calls.height == 2
    assert len(part.versions) == 2


@pytest.mark.parametrize(
    ("name", "op", "source_op", "backend"),
    [
        ("nccl:_all_gather_base", "all_gather_into_tensor", "_all_gather_base", "nccl"),
        ("nccl:_reduce_scatter_base", "reduce_scatter_tensor", "_reduce_scatter_base", "nccl"),
        ("xccl:all_reduce_barrier", "barrier", "all_reduce_barrier", "xccl"),
        ("ncclx:allreduce_coalesced", "all_reduce_coalesced", "allreduce_coalesced", "ncclx"),
        ("nccl:reduce_scatter_tensor_coalesced", *["reduce_scatter_tensor_coalesced"] * 2, "nccl"),
        ("gloo:all_to_all", "all_to_all", "all_to_all", "gloo"),
        ("nccl2:all_gather_single", "all_gather_into_tensor", "all_gather_single", "nccl2"),
        ("ucc:swizzle", "swizzle", "swizzle", "ucc"),
        ("all_reduce", "all_reduce", "all_reduce", ""),
    ],
)
def test_operations_and_backends(tmp_path, name, op, source_op, backend):
    part = load(tmp_path, {"trace_0": dump([entry(0, name)])})
    assert rows(part.calls, "op", "source_op") == [(op, source_op)]
    assert rows(part.groups, "backend") == [backend]


# Ends


def test_retired_without_an_end_has_failed(tmp_path):
    part = load(tmp_path, {"trace_0": dump([scheduled(0, retired=True), scheduled(1)])})
    assert rows(part.calls, "outcome", "end_ns") == [("failed", None), ("open", None)]


def test_gloo_is_done_when_retired(tmp_path):
    calls = [scheduled(0, "gloo:all_reduce", retired=True), scheduled(1, "gloo:barrier")]
    broken = {"": {"name": "", "desc": "", "ranks": "[]"}}
    whole = {rank: dump(calls, counters={"0": status(5, -1, 4)}, comm_lib_version="") for rank in (0, 2)}
    part = load(tmp_path, {f"t_{rank}": one | {"pg_config": broken} for rank, one in whole.items()})
    assert rows(part.calls, "outcome", "end_ns", "is_timed")[:2] == [("completed", None, False), ("open", None, False)]
    # The default group is of all ranks: where there are ranks 0 and 2, there is a rank 1.
    assert rows(part.groups, "name", "desc", "backend", "ranks") == [("0", "default_pg", "gloo", [0, 1, 2])]
    assert (
        rows(part.progress, "enqueued", "started", "completed", "is_start_told", "counts")
        == [(5, None, 4, False, "calls")] * 2
    )
    assert "no dump tells the members" in part.notes[0]


def test_gloo_of_torch_2_14_names_all_groups_nothing(tmp_path):
    calls = {
        0: [scheduled(0, "gloo:barrier"), scheduled(1, "gloo:barrier", process_group=("1", "undefined"), pg_id=1)],
        1: [scheduled(0, "gloo:barrier"), scheduled(1, "gloo:barrier", process_group=("1", "undefined"), pg_id=1)],
        2: [scheduled(0, "gloo:barrier")],
    }
    config = {"": {"name": "", "desc": "", "ranks": "[0, 1, 2]"}}
    part = load(tmp_path, {f"t{rank}": dump(of) | {"pg_config": config} for rank, of in calls.items()})
    assert rows(part.groups, "name", "ranks") == [("0", [0, 1, 2]), ("1", [0, 1])]


def test_the_start_is_the_end_less_the_duration_where_that_is_sound(tmp_path):
    calls = [
        entry(0, duration_ms=1.25),
        entry(1, duration_ms=50.0),  # would have begun before it was entered
        entry(2, duration_ms=float("nan")),
        scheduled(3, duration_ms=1.0),
    ]
    part = load(tmp_path, {"trace_0": dump(calls)})
    start = [T0 + 2 * MS - 1_250_000, T0 + 10 * MS + MS // 2, T0 + 20 * MS + MS // 2, None]
    assert rows(part.calls, "start_ns") == start


def test_members_of_a_coalesced_collective_end_with_it(tmp_path):
    members = [scheduled(number, "nccl:_broadcast_oop", seq=1) for number in (0, 1)]
    done = entry(2, "nccl:ALLGATHER_coalesced", seq=1, input_sizes=[], output_sizes=[])
    hangs = [scheduled(3, "nccl:_reduce_oop", seq=2), scheduled(4, "nccl:REDUCE_SCATTER_coalesced", seq=2)]
    part = load(tmp_path, {"trace_0": dump([*members, done, *hangs])})
    end = done["time_discovered_completed_ns"]
    assert rows(part.calls, "op", "seq", "outcome", "end_ns") == [
        ("broadcast", 1, "completed", end),
        ("broadcast", 1, "completed", end),
        ("all_gather_coalesced", 1, "completed", end),
        ("reduce", 2, "open", None),
        ("reduce_scatter_coalesced", 2, "open", None),
    ]


# Sends and receives


def p2p(number, op, seq, end=scheduled, **fields):
    return end(number, op, 0, p2p_seq_id=seq, is_p2p=True, process_group=("7", "pp"), pg_id=1, **fields)


PP = {"7": group("7", [1, 5], "pp")}


def test_peers_are_global_and_counted_by_pair(tmp_path):
    calls = [
        p2p(0, "nccl:send 0->1", 11, entry),
        entry(1),
        p2p(2, "nccl:send 0->1", 12),
        p2p(3, "nccl:recv 0<-1", 13),
    ]
    part = load(tmp_path, {"trace_1": dump(calls, world=8, groups=PP, counters={"0": status(1, 1, 1)})})
    assert rows(part.calls, "op", "source_op", "peer", "seq", "outcome") == [
        ("send", "send", 5, 1, "completed"),
        ("all_reduce", "all_reduce", None, 2, "completed"),
        ("send", "send", 5, 2, "open"),
        ("recv", "recv", 5, 1, "open"),
    ]


def test_counters_of_groups_with_sends_count_calls(tmp_path):
    counters = {"0": status(1, 1, 1), "1": status(12, -1, 11)}
    part = load(tmp_path, {"trace_1": dump([p2p(0, "nccl:send 0->1", 12)], world=8, groups=PP, counters=counters)})
    assert rows(part.progress, "group", "enqueued", "completed", "counts") == [
        (0, 12, 11, "calls"),
        (1, 1, 1, "collectives"),
    ]


def test_a_batch_ends_with_its_end_and_is_told_by_its_members(tmp_path):
    done = [p2p(0, "nccl:send 0->1", 1), p2p(1, "nccl:recv 0<-1", 1), p2p(2, "nccl:coalesced", 1, entry)]
    hangs = [p2p(3, "nccl:send 0->1", 2), p2p(4, "nccl:recv 0<-1", 2), p2p(5, "nccl:coalesced", 2)]
    part = load(tmp_path, {"trace_1": dump([*done, *hangs], world=8, groups=PP)})
    assert rows(part.calls, "op", "outcome") == [
        ("send", "completed"),
        ("recv", "completed"),
        ("send", "open"),
        ("recv", "open"),
    ]
    assert "2 ends are told of batches" in part.notes[0]


def test_members_whose_batch_was_left_out_as_done_are_not_open(tmp_path):
    """A dump of calls in flight: the ends of finished batches are not in it, their members never finish."""
    calls = [p2p(0, "nccl:send 0->1", 1), p2p(1, "nccl:recv 0<-1", 1), p2p(6, "nccl:send 0->1", 3), scheduled(9)]
    counters = {"0": status(10, -1, 9), "1": status(3, -1, 2)}
    part = load(tmp_path, {"trace_1": dump(calls, world=8, groups=PP, counters=counters)})
    assert rows(part.calls, "op", "outcome") == [
        ("send", "not_recorded"),
        ("recv", "not_recorded"),
        ("send", "open"),
        ("all_reduce", "open"),
    ]


def test_a_healthy_send_before_a_collective_is_no_coalesced_group(tmp_path):
    calls = [entry(0, "nccl:send 0->1", 0, p2p_seq_id=1, is_p2p=True), entry(1, seq=1, p2p_seq_id=1)]
    part = load(tmp_path, {"trace_0": dump(calls)})
    assert rows(part.calls, "op", "peer", "seq", "outcome") == [
        ("send", 1, 1, "completed"),
        ("all_reduce", None, 1, "completed"),
    ]


def test_xccl_records_no_end_of_a_batch(tmp_path):
    calls = [p2p(0, "xccl:send 0->1", 1), p2p(1, "xccl:recv 0<-1", 1), entry(2, "xccl:all_reduce")]
    part = load(tmp_path, {"trace_1": dump(calls, world=8, groups=PP)})
    assert rows(part.calls, "outcome") == ["not_recorded", "not_recorded", "completed"]


# Torchcomms, mirrored entries


def test_torchcomms_counts_over_all_groups_and_does_not_know_ends(tmp_path):
    def issued(number, name):
        return scheduled(
            number, "ncclx:all_reduce", number + 1, retired=True, process_group=(name, name), duration_ms=0.01
        )

    config = {"a": group("a", [0, 1], "a"), "b": group("b", [0, 1], "b")}
    calls = [issued(0, "a"), issued(1, "b"), issued(2, "b"), issued(3, "a")]
    part = load(tmp_path, {"torchcomm_fr_trace_0": dump(calls, groups=config, counters={})})
    names = dict(rows(part.groups, "group", "name"))
    assert [(names[key], seq) for key, seq in rows(part.calls, "group", "seq")] == [
        ("a", 1),
        ("b", 1),
        ("b", 2),
        ("a", 2),
    ]
    assert rows(part.calls, "outcome", "start_ns") == [("not_recorded", None)] * 4
    assert "torchcomms" in part.notes[0]


def test_entries_of_the_hook_beside_the_backends_are_left_out(tmp_path):
    calls = [scheduled(0, "gloo:all_reduce", retired=True), scheduled(1, "c10d:allreduce", retired=True)]
    part = load(tmp_path, {"trace_0": dump(calls)})
    assert rows(part.calls, "source_op", "outcome") == [("all_reduce", "completed")]
    only = load(tmp_path, {"trace_0": dump(calls[1:])})
    assert rows(only.calls, "op", "outcome") == [("all_reduce", "not_recorded")]


# Counters and groups


def test_a_dump_without_entries_speaks_through_its_counters(tmp_path):
    """Ids of groups are counted by the process, their names by the job: sorted both ways they are the same groups."""
    groups = {"12": group("12", [0, 1], "tp"), "9": group("9", [0, 1], "dp")}
    counters = {"0": status(7, -1, 7), "1": status(3, -1, 3), "3": status(100, -1, 99)}
    part = load(tmp_path, {f"_dump_{rank}": dump([], groups=groups, counters=counters) for rank in (0, 1)})
    names = dict(rows(part.groups, "group", "desc"))
    assert {(rank, names[key]): done for rank, key, done in rows(part.progress, "rank", "group", "completed")} == {
        (rank, desc): done for rank in (0, 1) for desc, done in (("default_pg", 7), ("dp", 3), ("tp", 99))
    }
    assert rows(part.ranks, "data", "calls", "first_call") == [("empty", 0, None)] * 2


def test_where_names_are_no_numbers_the_peers_entries_tell(tmp_path):
    groups = {"mesh_tp": group("mesh_tp", [0, 1], "mesh_tp")}
    counters = {"0": status(1, -1, 1), "4": status(9, -1, 8)}
    call = scheduled(0, process_group=("mesh_tp", "mesh_tp"), pg_id=4)
    files = {"t_0": dump([call], groups=groups, counters=counters), "t_1": dump([], groups=groups, counters=counters)}
    part = load(tmp_path, files)
    names = dict(rows(part.groups, "group", "name"))
    found = {(rank, names[key]): done for rank, key, done in rows(part.progress, "rank", "group", "completed")}
    assert found == {(rank, name): done for rank in (0, 1) for name, done in (("0", 1), ("mesh_tp", 8))}


def test_counters_of_a_group_that_nothing_tells_are_told(tmp_path):
    groups = {"mesh_tp": group("mesh_tp", [0, 1], "mesh_tp"), "mesh_dp": group("mesh_dp", [0, 1], "mesh_dp")}
    counters = {"0": status(1, -1, 1), "4": status(9, -1, 8)}
    part = load(tmp_path, {"t_0": dump([], groups=groups, counters=counters)})
    assert rows(part.progress, "completed") == [1]
    assert part.notes == ("1 counter of 1 rank belongs to groups that are not told",)


def test_entries_overrule_sorted_names(tmp_path):
    groups = {"1": group("1", [0, 1], "tp"), "2": group("2", [0, 1], "dp")}
    counters = {str(number): status(number, -1, number) for number in range(3)}
    call = entry(0, process_group=("2", "dp"), pg_id=1)
    part = load(tmp_path, {"t_0": dump([call], groups=groups, counters=counters)})
    names = dict(rows(part.groups, "group", "desc"))
    assert {names[key]: done for key, done in rows(part.progress, "group", "completed")} == {
        "default_pg": 0,
        "dp": 1,
    }


def test_one_name_may_be_different_groups_on_different_ranks(tmp_path):
    files = {f"t{rank}": dump([entry(0, process_group=("1", "sub"), pg_id=1)]) for rank in (0, 1)}
    for rank in (0, 1):
        files[f"t{rank}"]["pg_config"]["1"] = group("1", [rank], "sub")
    part = load(tmp_path, files)
    assert rows(part.calls, "group") == [0, 1]
    assert rows(part.groups, "name", "ranks")[:2] == [("1", [0]), ("1", [1])]


def test_the_ring_is_told(tmp_path):
    part = load(tmp_path, {"t0": dump([entry(number) for number in range(100, 120)])})
    assert rows(part.ranks, "calls", "calls_lost", "first_call") == [(20, 100, 101)]


# Files


def test_the_rank_is_in_the_name(tmp_path):
    names = ["nccl_trace_rank_container-node02_5", "_dump_6.json", "rank7", "trace_08.pickle"]
    part = load(tmp_path, {name: dump([entry(0)], world=16) for name in names})
    assert rows(part.ranks, "rank", "source") == [(5, names[0]), (6, names[1]), (7, names[2]), (8, names[3])]


def test_where_the_name_has_none_it_is_told(tmp_path):
    files = {"node1rank": dump([entry(0)], world=2), "trace": dump([entry(0)])}
    part = load(tmp_path, files, Hints(rank_pattern=re.compile(r"node(\d+)")))
    assert part.read == ("node1rank",)
    assert [(one.path, "--rank-pattern" in one.why) for one in part.unreadable] == [("trace", True)]


@pytest.mark.parametrize("name", ["trace_20260102", "trace_99999999999999999999"])
def test_a_number_that_is_no_rank_is_not_taken_for_one(tmp_path, name):
    part = load(tmp_path, {name: dump([entry(0)])})
    assert not part.calls.height
    assert "--rank-pattern" in part.unreadable[0].why


def test_a_rank_that_is_not_in_the_job_is_not_believed(tmp_path):
    part = load(tmp_path, {"torch_trace_node_125": dump([entry(0)], world=16), "t_3": dump([entry(0)], world=16)})
    assert rows(part.ranks, "rank") == [3]
    assert [one.path for one in part.unreadable] == ["torch_trace_node_125"]


def test_of_two_dumps_of_a_rank_the_newer_is_taken(tmp_path):
    files = {"t_0": dump([entry(5)]), "u_0": dump([entry(9)]), "v_0": dump([entry(1)])}
    part = load(tmp_path, files)
    assert rows(part.ranks, "source") == ["u_0"]
    assert part.notes[0].startswith("2 dumps are left out for a newer one of the same rank")


def _run(folders, second, world=None):
    """A run's dumps, one per rank of each folder, with their one call in that second."""
    world = world or max(rank for ranks in folders.values() for rank in ranks) + 1
    return {
        f"{folder}/t_{rank}": dump([entry(second)], world=world) for folder, ranks in folders.items() for rank in ranks
    }


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"a": range(4)}, {"b": range(4)}),
        ({"a/n0": [0, 1], "a/n1": [2, 3]}, {"b/n0": [0, 1], "b/n1": [2, 3]}),
        ({"n0/a": [0, 1], "n1/a": [2, 3]}, {"n0/b": [0, 1], "n1/b": [2, 3]}),
        ({f"a/{rank}": [rank] for rank in range(4)}, {f"b/{rank}": [rank] for rank in range(4)}),
    ],
)
def test_of_two_runs_in_folders_one_is_taken_and_none_mixed(tmp_path, first, second):
    """Each rank's newer dump would be of either run in turn."""
    older, newer = _run(first, 5), _run(second, 7)
    older[next(name for name in older if name.endswith("t_2"))] = dump([entry(6)], world=4)
    newer[next(name for name in newer if name.endswith("t_1"))] = dump([entry(4)], world=4)
    part = load(tmp_path, older | newer)
    assert sorted(rows(part.ranks, "source")) == sorted(newer)
    assert set(part.read) == set(newer)
    assert "left out is a (ranks 0-3)" in part.notes[0]


def test_one_run_may_have_a_folder_per_host(tmp_path):
    files = _run({"n0": [0, 1], "n1": [2, 3]}, 5)
    part = load(tmp_path, files)
    assert sorted(rows(part.ranks, "source")) == sorted(files)
    assert part.notes == ()


def test_a_host_whose_dumps_are_there_once_is_of_the_run_that_is_taken(tmp_path):
    part = load(tmp_path, _run({"n0": [0, 1], "n1": [2, 3]}, 9, world=4) | _run({"old": [0, 1]}, 5, world=4))
    assert rows(part.ranks, "source") == ["n0/t_0", "n0/t_1", "n1/t_2", "n1/t_3"]


def test_a_stray_newer_dump_does_not_replace_a_whole_run(tmp_path):
    part = load(tmp_path, _run({"a": range(4)}, 5, world=4) | _run({"b": [1]}, 9, world=4))
    assert rows(part.ranks, "source") == ["a/t_0", "a/t_1", "a/t_2", "a/t_3"]


def test_dumps_of_jobs_of_different_sizes_are_refused(tmp_path):
    files = _run({"jobA": range(4)}, 5) | _run({"jobB": range(8)}, 6)
    with pytest.raises(RunError, match="of 4 ranks in jobA, of 8 ranks in jobB; name one"):
        load(tmp_path, files)


def test_an_empty_file_is_told_apart_from_a_dump_without_calls(tmp_path):
    part = load(tmp_path, {"t_0": b"", "t_1": dump([]), "t_2": dump([entry(0)])})
    empty = part.facts.filter(pl.col("kind") == "dump_empty")
    assert rows(empty, "rank") == [0]
    assert "the dump of rank 0 is an empty file" in part.notes[0]


def test_ray_marks_a_rank_whose_dump_it_could_not_fetch(tmp_path):
    files = {
        "hang_detector/flight_recorder/rank_0.json": as_json(dump([entry(0)], world=2)),
        "hang_detector/flight_recorder/rank_1.json": {"ray_train_dump_error": "timed out after 30 s"},
    }
    part = load(tmp_path, files)
    assert rows(part.ranks, "rank", "data") == [(0, "present"), (1, "missing")]
    assert rows(part.facts, "rank", "kind") == [(1, "dump_error")]
    assert json.loads(part.facts["fields"][0]) == {"error": "timed out after 30 s"}


def test_health_checks_of_nvrx_are_facts(tmp_path):
    checks = {"nic": {"status": "Failed", "output": "mlx5_0 link_downed 2"}, "gpu": {"status": "Healthy", "output": ""}}
    part = load(tmp_path, {"_dump_3.json": dump([], world=4) | {"health_check_results": checks}})
    assert rows(part.facts, "rank", "kind", "text")[0] == (3, "health_check", "health check of nic: Failed")
    assert json.loads(part.facts["fields"][0]) == {"check": "nic", "status": "Failed", "output": "mlx5_0 link_downed 2"}


def test_the_debug_server_adds_rank_and_host(tmp_path):
    part = load(tmp_path, {"worker.json": as_json(dump([entry(0)])) | {"rank": 1, "host_name": "node02:25999"}})
    assert rows(part.ranks, "rank", "host") == [(1, "node02:25999")]


def test_an_empty_file_is_an_empty_dump(tmp_path):
    part = load(tmp_path, {"t_0": dump([entry(0)]), "t_1": b""})
    assert rows(part.ranks, "rank", "data") == [(0, "present"), (1, "empty")]


def test_an_empty_file_of_a_rank_beyond_the_job_is_none_of_its(tmp_path):
    part = load(tmp_path, {"t_0": dump([entry(0)], world=3), "t_2": b"", "t_9": b""})
    assert rows(part.ranks, "rank", "data") == [(0, "present"), (2, "empty")]
    assert [(one.path, "--rank-pattern" in one.why) for one in part.unreadable] == [("t_9", True)]
    assert part.read == ("t_0", "t_2")


def test_the_inventory_counts_empty_ranks_only_with_counters(tmp_path):
    silent = dump([], world=3, counters={"0": status(4, 4, 3)})
    part = load(tmp_path, {"t_0": dump([entry(0)], world=3), "t_1": silent, "t_2": b"", "t_9": b""})
    shown = inventory.render(merge([part], None, tmp_path, []), [part])
    assert "2 of 3 with data" in shown


def test_half_a_character_is_replaced(tmp_path):
    whole = as_json(dump([entry(0, profiling_name="nccl:all_reduce\ud800", process_group=["\udfff", "\U0001f600"])]))
    part = load(tmp_path, {"t_0.json": json.dumps(whole).encode()})
    assert rows(part.groups, "name", "desc")[0] == ("\ufffd", "\U0001f600")
    assert part.calls["source_op"].to_list() == ["all_reduce"]


def test_where_all_names_end_in_one_number_the_pattern_is_named(tmp_path):
    part = load(tmp_path, {f"r{rank}.node1": dump([entry(rank)]) for rank in (0, 1)})
    assert any("--rank-pattern" in note for note in part.notes)
    part = load(tmp_path, {f"r{rank}.node7": dump([entry(rank)]) for rank in (0, 1)})
    assert "--rank-pattern" in part.unreadable[0].why


@pytest.mark.parametrize("form", [pickled, lambda whole: json.dumps(as_json(whole)).encode()])
def test_a_cut_dump_is_used_as_far_as_it_goes(tmp_path, form):
    whole = form(dump([entry(number) for number in range(40)]))
    part = load(tmp_path, {"t_0": whole[: len(whole) * 2 // 3], "t_1.json": form(dump([entry(0)]))})
    assert part.truncated == (0,)
    assert rows(part.ranks, "rank", "data") == [(0, "truncated"), (1, "present")]
    kept = part.ranks["calls"][0]
    assert 10 < kept < 40
    assert rows(part.calls, "rank", "seq")[:kept] == [(0, seq + 1) for seq in range(kept)]
    assert any(note.startswith("t_0 ends") and f"the {kept} calls before that are used" in note for note in part.notes)


class Payload:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(6))
def test_a_dump_that_would_run_code_is_refused_and_the_rest_is_read(tmp_path, protocol):
    evil = pickle.dumps(dump([entry(0)]) | {"extra": Payload(tmp_path / "ran")}, protocol)
    inputs = write(tmp_path, {"t_0": evil, "t_1": dump([entry(0)])})
    assert all(flight_recorder.recognises(item) for item in inputs)
    part = flight_recorder.load(inputs, Hints())
    assert part.read == ("t_1",)
    assert part.unreadable[0].path == "t_0"
    assert part.unreadable[0].why.startswith(f"refused: this pickle would run `{os.name}.mkdir` when loaded")
    assert not (tmp_path / "ran").exists()


def test_other_pickles_are_ignored(tmp_path):
    part = load(tmp_path, {"cache.pkl": pickle.dumps({"a": 1}), "list_1": pickle.dumps([1, 2])})
    assert part.ignored == ("cache.pkl", "list_1")
    assert not part.unreadable


@pytest.mark.parametrize(
    ("content", "is_one"),
    [
        (pickled(dump([entry(0)])), True),
        (json.dumps(as_json(dump([]))).encode(), True),
        (b"\xef\xbb\xbf" + json.dumps(as_json(dump([]))).encode(), True),
        (pickle.dumps({"a": 1}), True),
        (b"", False),
        (b"{}", False),
        (b'{"commHash": "1"}', False),
        (b"cuda error: an illegal memory access\n(rank 3) R\n", False),
        (b"rank,seq,op,enter_us\n", False),
        (b"(RayTrainWorker pid=615, ip=10.0.0.6) step 12\n" * 2000, False),
        (b"c10d\nready\n", False),
        (b"\x7fELF", False),
    ],
)
def test_dumps_are_recognised_by_content(tmp_path, content, is_one):
    (item,) = write(tmp_path, {"x_1": content})
    assert flight_recorder.recognises(item) is is_one


@INPLACE
@given(st.binary(max_size=60))
def test_any_bytes_are_recognised_or_not(tmp_path, data):
    for content in (data, b"\x80\x02" + data, b'{"pg_config": ' + data):
        (item,) = write(tmp_path, {"x_1": content})
        if flight_recorder.recognises(item):
            part = flight_recorder.load([item], Hints())
            assert len(part.read) + len(part.unreadable) + len(part.ignored) == 1


calls = st.lists(
    st.tuples(
        st.sampled_from(["nccl:all_reduce", "nccl:barrier", "nccl:send 0->1"]),
        st.integers(1, 10**6),
        st.sampled_from(["scheduled", "completed"]),
        st.lists(st.integers(0, 10**6), max_size=3),
    ),
    max_size=12,
)


@INPLACE
@given(calls, st.booleans())
def test_generated_content_survives(tmp_path, made, is_json):
    listed = [
        (entry if state == "completed" else scheduled)(number, op, seq, input_sizes=[shape], p2p_seq_id=number)
        for number, (op, seq, state, shape) in enumerate(made)
    ]
    name, whole = ("t_0.json", as_json(dump(listed))) if is_json else ("t_0", dump(listed))
    part = load(tmp_path, {name: whole})
    assert part.calls.height == len(made)
    for (op, seq, state, shape), row in zip(made, part.calls.iter_rows(named=True), strict=True):
        assert row["source_op"] == op.removeprefix("nccl:").split()[0]
        assert row["outcome"] == ("completed" if state == "completed" else "open")
        assert row["shapes"].startswith(f"[{shape}]")
        assert row["op"] == "send" or row["seq"] == seq


@INPLACE
@given(st.data(), st.booleans())
def test_damage_gives_partial_data_or_a_reason(tmp_path, data, is_json):
    whole = dump([entry(number) for number in range(5)], nccl_comm_state={"ab": {"rank": "0", "nRanks": "2"}})
    content = bytearray(json.dumps(as_json(whole)).encode() if is_json else pickled(whole))
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = bytes(content[: data.draw(st.integers(0, len(content)))])
    part = load(tmp_path, {"t_0": content, "t_1": dump([entry(0)])})
    # A damaged digit of a time makes two runs of them, of which one is left out with the reason.
    assert "t_1" in part.read or {one.path for one in part.unreadable} == {"t_1"}
    assert len(part.read) + len(part.unreadable) + len(part.ignored) == 2
    assert all(one.why for one in part.unreadable)


def test_a_dump_of_another_day_is_left_out_and_said(tmp_path):
    day = 24 * 3600 * 1000 * MS
    old = [entry(n) | {"time_created_ns": T0 - day, "time_discovered_started_ns": None} for n in range(3)]
    for one in old:
        one["time_discovered_completed_ns"] = T0 - day + MS
    files = {f"nccl_trace_rank_{rank}": dump([entry(n) for n in range(3)], world=4) for rank in (0, 1, 3)}
    part = load(tmp_path, files | {"nccl_trace_rank_2": dump(old, world=4)})
    assert part.calls["rank"].unique().to_list() == [0, 1, 3]
    assert "nccl_trace_rank_2" not in part.read
    assert [(one.path, "24 h" in one.why) for one in part.unreadable] == [("nccl_trace_rank_2", True)]
    assert any("rank" in note and "one run" in note for note in part.notes)


def test_ranks_whose_last_calls_lie_an_hour_apart_are_of_one_run(tmp_path):
    hour = 3600 * 1000 * MS
    late = [entry(n) | {"time_created_ns": T0 + hour, "time_discovered_completed_ns": T0 + hour} for n in range(3)]
    part = load(tmp_path, {"r0": dump([entry(0)]), "r1": dump(late)})
    assert part.calls["rank"].unique().to_list() == [0, 1]
    assert part.unreadable == ()


def test_bytes_with_odd_escapes_are_looked_at_without_a_warning(tmp_path):
    (odd,) = write(tmp_path, {"odd.bin": b"S'" + bytes((92, 0x17)) + b"'" + bytes((10,)) + b".rest"})
    assert not flight_recorder.recognises(odd)


def test_an_empty_file_in_the_folder_of_its_host_is_an_empty_dump(tmp_path):
    """Folders are named by hosts, so not only the rank's number differs between the dumps of a job."""
    one = dump([entry(0)], world=3)
    files = {"gpu-1/dump_0": one, "gpu-02/dump_1": one, "gpu-117/dump_2": b""}
    write(tmp_path, files)
    trace, _ = sources.load([str(tmp_path)])
    assert rows(trace.ranks, "rank", "data") == [(0, "present"), (1, "present"), (2, "empty")]
