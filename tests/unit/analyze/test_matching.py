"""What the calls of a round must agree on, by pairs of entries: those of torch's own tests of fr_trace, and more.

Each pair is analysed as two ranks' calls, of which neither can be picked, and again among four ranks that agree.
"""

from __future__ import annotations

import time

import dumps
import pytest

from roundk.analyze import sources
from roundk.analyze.diagnose import diagnose

FOUR_BY_FOUR = {"input_sizes": [[4, 4]], "output_sizes": [[4, 4]]}


def entry(op="all_reduce", *, make=dumps.scheduled, backend="nccl", **fields):
    return lambda number: make(number, f"{backend}:{op}", **(FOUR_BY_FOUR | fields))


def root(folder, ranks, *, before=1, **times):
    """The first verdict on ranks that have completed an all_reduce or more and then made these calls."""
    files = {}
    for rank, calls in enumerate(ranks):
        made = [dumps.entry(number, **times) for number in range(before)]
        made += [call(number) for number, call in enumerate(calls, start=before)]
        told = dumps.status(len(made), -1, before)
        files[f"trace_rank_{rank}"] = dumps.dump(made, world=len(ranks), counters={"0": told})
    dumps.write(folder, files)
    trace, _ = sources.load([str(folder)])
    return diagnose(trace, now_ns=time.time_ns()).verdicts[0]


DIFFERENT = {
    "operations": (entry(), entry("all_gather"), "OP"),
    "inputs": (entry(), entry(input_sizes=[[5, 4]]), "SIZE"),
    "outputs": (entry(), entry(output_sizes=[[5, 4]]), "SIZE"),
    "shapes of as many elements": (entry(), entry(input_sizes=[[2, 8]], output_sizes=[[16]]), None),
    "types": (entry(), entry(input_dtypes=["Half"], output_dtypes=["Half"]), "DTYPE"),
    "types of as many bytes": (entry(), entry(input_dtypes=["Int"], output_dtypes=["Int"]), "DTYPE"),
    "types of the output": (entry(), entry(output_dtypes=["Half"]), "DTYPE"),
    "outputs of a gather into a tensor": (
        entry("_all_gather_base", output_sizes=[[16, 4]]),
        entry("_all_gather_base", output_sizes=[[12, 4]]),
        "SIZE",
    ),
    "inputs of a reduce_scatter": (
        entry("_reduce_scatter_base", input_sizes=[[16, 4]]),
        entry("_reduce_scatter_base", input_sizes=[[12, 4]]),
        "SIZE",
    ),
    "lists of an all_gather": (
        entry("all_gather", output_sizes=[[4, 4]] * 4),
        entry("all_gather", output_sizes=[[4, 4]] * 3 + [[5, 4]]),
        "SIZE",
    ),
    "tensors of a coalesced call": (
        entry("allreduce_coalesced", input_sizes=[[4], [2]], output_sizes=[[4], [2]]),
        entry("allreduce_coalesced", input_sizes=[[2], [4]], output_sizes=[[2], [4]]),
        "SIZE",
    ),
    "an operation that nobody knows": (entry("my_reduce"), entry("my_gather"), "OP"),
    "sizes of an operation that nobody knows": (entry("my_reduce"), entry("my_reduce", input_sizes=[[5]]), None),
    "spellings of one operation": (entry("_all_gather_base"), entry("all_gather_into_tensor"), None),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_of_two_ranks_that_differ_both_are_named_and_none_is_picked(tmp_path, what):
    one, other, detail = DIFFERENT[what]
    verdict = root(tmp_path, [[one], [other]])
    if detail is None:
        assert verdict.structure == "ALL_ENTERED_NONE_COMPLETED"
        return
    assert (verdict.structure, verdict.detail, verdict.seq) == ("SIGNATURE_MISMATCH", detail, 2)
    assert verdict.culprit_ranks == ()
    for text in (verdict.summary, " ".join(evidence.what for evidence in verdict.evidence)):
        assert "rank 0 called" in text
        assert "rank 1 called" in text


@pytest.mark.parametrize("odd", [0, 2])
@pytest.mark.parametrize("what", DIFFERENT)
def test_of_four_ranks_the_one_that_differs_is_picked(tmp_path, what, odd):
    usual, other, detail = DIFFERENT[what]
    verdict = root(tmp_path, [[other if rank == odd else usual] for rank in range(4)])
    if detail is None:
        assert verdict.structure == "ALL_ENTERED_NONE_COMPLETED"
        return
    assert (verdict.structure, verdict.detail, verdict.seq) == ("SIGNATURE_MISMATCH", detail, 2)
    assert verdict.culprit_ranks == (odd,)


@pytest.mark.parametrize("odd", [0, 2])
def test_the_larger_side_is_no_reference_where_its_own_call_cannot_be_right(tmp_path, odd):
    impossible = entry(output_sizes=[[5, 4]])
    verdict = root(tmp_path, [[entry() if rank == odd else impossible] for rank in range(4)])
    assert (verdict.structure, verdict.detail) == ("SIGNATURE_MISMATCH", "SIZE")
    assert verdict.culprit_ranks == ()
    assert any("do not fit each other" in evidence.what for evidence in verdict.evidence)


@pytest.mark.parametrize("world", [2, 4])
def test_an_impossible_call_that_all_make_is_told_and_nobody_blamed(tmp_path, world):
    verdict = root(tmp_path, [[entry(output_sizes=[[5, 4]])]] * world)
    assert (verdict.structure, verdict.detail, verdict.culprit_ranks) == ("SIGNATURE_MISMATCH", "SIZE", ())
    assert "[[4, 4]] -> [[5, 4]]" in verdict.summary


def test_what_all_gather_into_a_tensor_must_hold_what_all_pass(tmp_path):
    right, wrong = ({"output_sizes": [[rows, 4]]} for rows in (8, 7))
    calls = [entry("_all_gather_base", make=dumps.entry, **right), entry("_all_gather_base", **wrong)]
    verdict = root(tmp_path, [calls] * 2)
    assert (verdict.structure, verdict.detail, verdict.seq) == ("SIGNATURE_MISMATCH", "SIZE", 3)
    assert verdict.culprit_ranks == ()


def test_members_that_are_not_told_are_no_wrong_sizes(tmp_path):
    """Of four ranks the last has left no dump, and gloo does not tell that there are four."""
    call = entry("all_gather", backend="gloo", retired=True, output_sizes=[[4, 16]])
    config = {"": {"name": "", "desc": "", "ranks": "[]"}}
    made = [call(number) for number in range(3)]
    dump = dumps.dump(made, counters={"0": dumps.status(3, -1, 3)}, pg_config=config)
    files = {f"trace_rank_{rank}": dump for rank in range(2)}
    dumps.write(tmp_path, files)
    trace, _ = sources.load([str(tmp_path)])
    assert diagnose(trace, now_ns=time.time_ns()).verdicts[0].structure != "SIGNATURE_MISMATCH"


# torch's names of collectives, and names that it does not have yet
NAMES = (
    "broadcast",
    "_broadcast_oop",
    "reduce",
    "_reduce_oop",
    "all_gather",
    "all_reduce",
    "_all_gather_base",
    "all_gather_into_tensor_coalesced",
    "reduce_scatter",
    "reduce_scatter_tensor_coalesced",
    "_reduce_scatter_base",
    "gather",
    "scatter",
    "all_to_all",
    "all_reduce_barrier",
    "allreduce_coalesced",
    "ALLGATHER_coalesced",
    "REDUCE_SCATTER_coalesced",
    "all_gather_single",
    "reduce_scatter_single",
    "all_to_all_single",
    "my_collective",
)


def sizes_of(op):
    if "reduce_scatter" in op.lower():
        return {"input_sizes": [[4, 4]], "output_sizes": [[8]]}
    return {"output_sizes": [[32]]} if "gather" in op.lower() and op != "gather" else {}


@pytest.mark.parametrize("op", NAMES)
def test_every_operation_matches_itself(tmp_path, op):
    call = entry(op, make=dumps.entry, **sizes_of(op))
    assert root(tmp_path, [[call]] * 2).structure == "HEALTHY"


@pytest.mark.parametrize("backend", ["nccl", "ncclx", "xccl", "nccl2", "of_nobody"])
def test_every_backend_is_accepted(tmp_path, backend):
    call = entry(make=dumps.entry, backend=backend)
    assert root(tmp_path, [[call]] * 2).structure == "HEALTHY"


@pytest.mark.parametrize("op", ["all_reduce", "all_to_all"])
def test_ranks_in_different_states_have_not_all_got_out(tmp_path, op):
    untimed = {"time_discovered_started_ns": None}
    verdict = root(tmp_path, [[entry(op)], [entry(op, make=dumps.entry, **untimed)]], **untimed)
    assert verdict.structure in ("PARTIAL_COMPLETION", "IN_PROGRESS")
    assert verdict.culprit_ranks == ()


def exchange(sent, *, expected=None, splits=True, op="all_to_all_single"):
    """The calls of an all_to_all by what each rank sends to each; `expected`: what each takes of each."""
    taken = expected or [list(column) for column in zip(*sent, strict=True)]
    calls = []
    for given, got in zip(sent, taken, strict=True):
        told = {"input_split_sizes": given, "output_split_sizes": got} if splits else {}
        calls.append([entry(op, input_sizes=[[sum(given), 2]], output_sizes=[[sum(got), 2]], **told)])
    return calls


UNEVEN = [[1, 2, 3], [4, 0, 1], [2, 2, 2]]


@pytest.mark.parametrize("splits", [True, False])
def test_sizes_of_an_all_to_all_may_differ_by_rank(tmp_path, splits):
    assert root(tmp_path, exchange(UNEVEN, splits=splits)).structure == "ALL_ENTERED_NONE_COMPLETED"


def test_totals_of_an_all_to_all_that_do_not_match_are_told_and_nobody_is_picked(tmp_path):
    wrong = [[1, 4, 2], [2, 0, 2], [3, 1, 3]]  # rank 2 takes one row more of itself
    verdict = root(tmp_path, exchange(UNEVEN, expected=wrong, splits=False))
    assert (verdict.structure, verdict.detail, verdict.culprit_ranks) == ("SIGNATURE_MISMATCH", "SIZE", ())
    assert "pass 136 bytes and take 144" in verdict.summary


def test_pair_of_an_all_to_all_that_does_not_match_is_named(tmp_path):
    """Rank 1 sends one row to rank 2, which takes two of it and one less of itself: the totals are right."""
    verdict = root(tmp_path, exchange(UNEVEN, expected=[[1, 4, 2], [2, 0, 2], [3, 2, 2]]))
    assert (verdict.structure, verdict.detail, verdict.culprit_ranks) == ("SIGNATURE_MISMATCH", "SIZE", ())
    assert "rank 1 sends 2 elements to rank 2, which expects 4" in verdict.summary


def test_rank_on_all_pairs_that_do_not_match_is_picked(tmp_path):
    verdict = root(tmp_path, exchange(UNEVEN, expected=[[1, 4, 2], [2, 0, 2], [2, 2, 2]]))
    assert verdict.culprit_ranks == (2,)
    assert verdict.structure_confidence == "medium"


def test_lists_of_an_all_to_all_tell_the_pairs(tmp_path):
    """Rank 0 sends three rows to rank 1, which takes two."""
    first = entry("all_to_all", input_sizes=[[1, 2], [3, 2]], output_sizes=[[1, 2], [1, 2]])
    second = entry("all_to_all", input_sizes=[[1, 2], [1, 2]], output_sizes=[[2, 2], [1, 2]])
    verdict = root(tmp_path, [[first], [second]])
    assert (verdict.structure, verdict.detail, verdict.culprit_ranks) == ("SIGNATURE_MISMATCH", "SIZE", ())
    assert "rank 0 sends 6 elements to rank 1, which expects 4" in verdict.summary


def gathers(op, *, whole, part, none):
    """Rank 0 is the root."""
    key, types = ("output_sizes", "output_dtypes") if op == "gather" else ("input_sizes", "input_dtypes")
    at_root = entry(op, make=dumps.entry, **{key: [whole] * 2, types: ["Float"] * 2})
    other = entry(op, make=dumps.entry, **{key: none, types: part})
    return [[at_root], [other]]


@pytest.mark.parametrize("op", ["gather", "scatter"])
@pytest.mark.parametrize(
    ("none", "types"), [([[]], ""), ([[4, 4]], ""), ([], []), ([[]], ["Undefined"]), ([[0]], ["Float"])]
)
def test_who_is_not_the_root_has_no_list(tmp_path, op, none, types):
    assert root(tmp_path, gathers(op, whole=[4, 4], part=types, none=none)).structure == "HEALTHY"
