"""Calls that are not dispatched: who makes them, how they are numbered, and that nothing changes for the user."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import types

import pytest

from roundk.hooks import groups, pseudo

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8"}


@pytest.mark.parametrize(
    ("arguments", "environment", "expected"),
    [
        ({}, TORCHRUN, (3, 8)),
        ({"init_method": "env://", "rank": -1, "world_size": -1}, TORCHRUN, (3, 8)),
        ({"rank": 1, "world_size": 2}, TORCHRUN, (1, 2)),
        ({"rank": 1}, TORCHRUN, (1, 8)),
        ({"init_method": "tcp://host:1?rank=2&world_size=4"}, TORCHRUN, (2, 4)),
        ({"init_method": "tcp://host:1?rank=2", "world_size": 4}, {}, (2, 4)),
        ({"init_method": "env://?rank=0"}, TORCHRUN, (0, 8)),
        ({"init_method": "file:///somewhere"}, TORCHRUN, None),
        ({"store": object(), "rank": 1, "world_size": 2}, TORCHRUN, (1, 2)),
        ({"store": object()}, TORCHRUN, None),
        ({"backend": "mpi"}, TORCHRUN, None),
        ({}, {}, None),
        ({}, {"RANK": "x", "WORLD_SIZE": "8"}, None),
        ({"rank": 8}, TORCHRUN, None),
    ],
)
def test_rank_and_world_size_are_known_before_init_where_torch_will_take_them_from(arguments, environment, expected):
    assert pseudo.placed(arguments, environment) == expected


class Side:
    def __init__(self):
        self.lines = []

    def append(self, line):
        self.lines.append(json.loads(json.dumps(line)))


def test_between_start_and_end_of_coalescing_collectives_share_a_number():
    group = groups.Group(1, [0, 1], is_gloo_on_cpu=False)
    assert [group.next_seq(), group.next_seq()] == [1, 2]
    group.coalesce()
    assert [group.next_seq() for _ in range(3)] == [3, 3, 3]
    assert [group.next_of_pair("send", 1), group.next_of_pair("send", 1)] == [1, 2]
    group.coalesced()
    assert group.next_seq() == 4
    group.coalesce()  # of sends and receives only: no number is spent
    group.coalesced()
    assert group.next_seq() == 5


def test_a_control_group_is_known_by_who_must_call_and_starts_anew_with_the_world():
    side = Side()
    known = groups.Groups(side)
    world = known.control(range(4))
    assert known.control((0, 1, 2, 3)) is world
    assert known.control([0, 1]) is not world
    assert known.control(range(4), "0/coalescing") is not world
    assert world.next_seq() == 1
    known.destroyed("0")
    assert known.control(range(4)) is world
    known.destroyed(None)
    again = known.control(range(4))
    assert again is not world
    assert again.next_seq() == 1
    assert side.lines[0] == {
        "kind": "group",
        "id": 1,
        "name": "",
        "desc": "control",
        "backend": "",
        "epoch": 0,
        "size": 4,
        "ranks": [[0, 4, 1]],
    }
    assert (side.lines[-1]["id"], side.lines[-1]["epoch"]) == (4, 1)


class Coalescing:
    """Stands for a ProcessGroup whose backend coalesces, as gloo does not."""

    group_name = "0"
    refuses = False

    def start(self, device):
        if self.refuses:
            raise RuntimeError("not implemented")

    def end(self, device):
        return device


@pytest.fixture
def coalescing(monkeypatch):
    group = groups.Group(1, [0, 1], is_gloo_on_cpu=False)
    rows = []

    def enter_pseudo(code, control, enter_ns):
        rows.append([code, control.ranks, control.next_seq(), None])
        return rows[-1]

    def leave_pseudo(call, *, raised):
        call[-1] = raised

    known = groups.Groups(Side())
    recorder = types.SimpleNamespace(
        groups=types.SimpleNamespace(register=lambda pg: group, control=known.control),
        enter_pseudo=enter_pseudo,
        leave_pseudo=leave_pseudo,
    )
    watch = pseudo._Coalescing(types.SimpleNamespace(current=lambda: recorder))
    monkeypatch.setattr(Coalescing, "start", Coalescing.start)
    monkeypatch.setattr(Coalescing, "end", Coalescing.end)
    pseudo._wrap_method(Coalescing, "start", watch.start_entered, watch.started)
    pseudo._wrap_method(Coalescing, "end", watch.end_entered, watch.ended)
    return group, rows


def test_the_end_of_coalescing_is_a_row_and_ends_the_sharing(coalescing):
    group, rows = coalescing
    pg = Coalescing()
    pg.start("cuda:0")
    assert [group.next_seq(), group.next_seq()] == [1, 1]
    assert pg.end("cuda:0") == "cuda:0"
    assert group.next_seq() == 2
    assert [row[1:] for row in rows] == [[(0, 1), 1, False]]


def test_where_the_backend_refuses_to_coalesce_nothing_is_shared(coalescing):
    group, rows = coalescing
    pg = Coalescing()
    pg.refuses = True
    with pytest.raises(RuntimeError, match="not implemented"):
        pg.start("cuda:0")
    assert [group.next_seq(), group.next_seq()] == [1, 2]
    assert rows == []


def test_a_wrapped_function_is_the_same_to_the_user_wherever_it_is_bound():
    module, elsewhere = types.ModuleType("torch_like"), types.ModuleType("user_like")

    def made(ranks=None, *, name: str = "x") -> list:
        """What it says."""
        return [ranks, name]

    module.made = elsewhere.made = made
    entered, left = [], []
    sys.modules.update({"torch_like": module, "user_like": elsewhere})
    try:
        pseudo._wrap(module, "made", lambda given: entered.append(dict(given)) or 7, lambda *told: left.append(told))
        pseudo._wrap(module, "not_there", None, None)
    finally:
        del sys.modules["torch_like"], sys.modules["user_like"]
    assert module.made is elsewhere.made is not made
    assert inspect.signature(module.made) == inspect.signature(made)
    assert (module.made.__name__, module.made.__doc__) == ("made", "What it says.")
    assert module.made([1]) == [[1], "x"]
    assert entered == [{"ranks": [1], "name": "x"}]
    assert left == [(7, [[1], "x"], False)]
    with pytest.raises(TypeError, match="unexpected keyword argument 'wrong'"):
        module.made(wrong=1)
    assert len(entered) == len(left) == 1  # a call that never was one


@pytest.mark.parametrize("ranks", [[0, 1], (1, 0), range(2), {0, 1}])
def test_ranks_are_read_from_what_can_be_read_twice(ranks):
    assert sorted(pseudo._numbers(ranks)) == [0, 1]


@pytest.mark.parametrize("ranks", [None, iter([0, 1]), "01", ["0"], 5])
def test_what_is_no_list_of_ranks_is_left_to_torch(ranks):
    assert pseudo._numbers(ranks) == []


UNCHANGED = """
import inspect, pickle, sys
import torch.distributed as dist
import torch.distributed.device_mesh as mesh
import torch.distributed.distributed_c10d as c10d
names = ["init_process_group", "new_group", "split_group", "destroy_process_group"]
before = {name: (str(inspect.signature(getattr(dist, name))), getattr(dist, name).__doc__) for name in names}
roundk = __import__("roundk.hooks").hooks
roundk.install(sys.argv[1])
after = {name: (str(inspect.signature(getattr(dist, name))), getattr(dist, name).__doc__) for name in names}
assert before == after
for name in ("init_process_group", "new_group", "split_group"):
    assert getattr(dist, name) is getattr(mesh, name) is getattr(c10d, name)
    assert pickle.loads(pickle.dumps(getattr(dist, name))) is getattr(dist, name)
assert "torch._dynamo" not in sys.modules
"""


def test_torchs_functions_keep_signature_and_identity(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", UNCHANGED, str(tmp_path / "run")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "run").exists()  # no file before there is a group
