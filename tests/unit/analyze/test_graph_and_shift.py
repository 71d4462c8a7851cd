"""The two algorithms that are not table expressions, against slow and obvious ones."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roundk.analyze.scc import components
from roundk.analyze.structure.shift import continued, find_shifts


@st.composite
def graphs(draw):
    size = draw(st.integers(0, 9))
    return [draw(st.lists(st.integers(0, size - 1), max_size=3)) for _ in range(size)]


def reachable(edges, start):
    seen, todo = {start}, [start]
    while todo:
        for node in edges[todo.pop()]:
            if node not in seen:
                seen.add(node)
                todo.append(node)
    return seen


@given(graphs())
def test_components_are_the_sets_that_reach_each_other(edges):
    found = components(edges)
    reach = [reachable(edges, node) for node in range(len(edges))]
    together = {frozenset(b for b in range(len(edges)) if b in reach[a] and a in reach[b]) for a in range(len(edges))}
    assert {frozenset(c) for c in found} == together
    home = {node: number for number, c in enumerate(found) for node in c}
    assert all(home[to] <= home[node] for node, row in enumerate(edges) for to in row)


def test_long_chain_needs_no_recursion():
    size = 50_000
    assert len(components([[n + 1] if n + 1 < size else [] for n in range(size)])) == size


A, B, C, X = 1, 2, 3, 9


@pytest.mark.parametrize(
    ("calls", "reference", "at", "by"),
    [
        ([A, B, C, A, C, A, B], [A, B, C, A, B, C, A, B], 4, 1),
        ([A, B, C, A, B, B, C, A], [A, B, C, A, B, C, A, B], 5, -1),
        ([A, A, A, B, A, A], [A, A, A, A, B, A, A], 3, 1),
        ([A, B, X, C, A, B, C], [A, B, C, A, B, C], 2, -1),
    ],
)
def test_shift_is_found_where_it_begins(calls, reference, at, by):
    shift = find_shifts(calls, reference, reached=len(reference))[0]
    assert (shift.at, shift.by) == (at, by)


def test_both_directions_are_given_where_a_loop_allows_both():
    """A B left out of an iteration, or its C made twice."""
    shifts = find_shifts([A, B, C, C, A, B], [A, B, C, A, B, C, A, B, C], reached=9)
    assert [(s.at, s.by, s.left) for s in shifts] == [(3, -1, 0), (3, 2, 0)]


@pytest.mark.parametrize("calls", [[A, B, A, B], [A, B, X, B], [A, X, A, X]])
def test_no_shift_where_calls_agree_or_were_replaced(calls):
    assert find_shifts(calls, [A, B, A, B], reached=4) == []


@settings(deadline=None)  # other work on the machine is not its fault
@given(st.lists(st.integers(1, 4), min_size=8, max_size=60), st.data())
def test_leaving_out_one_call_is_explained_by_a_skip_that_leaves_nothing(reference, data):
    gone = data.draw(st.integers(0, len(reference) - 1))
    calls = [*reference[:gone], *reference[gone + 1 :]]
    skips = [s for s in find_shifts(calls, reference, reached=len(reference)) if s.by > 0]
    assert calls == reference[:-1] or skips[0].left == 0 or skips[0].explained > 0


def test_continuation_follows_the_last_repetition():
    assert continued([A, B, C, A, B, C, A], 4) == [B, C, A, B]
    assert continued([A, B, C], 2) == []
