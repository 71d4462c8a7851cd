"""How member lists are stored."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from roundk.hooks.groups import runs


@given(st.lists(st.integers(0, 20_000), unique=True, max_size=200))
def test_runs_give_the_ranks_back_in_order(ranks):
    found = runs(ranks)
    assert [rank for first, count, step in found for rank in range(first, first + count * step, step)] == ranks


def test_a_large_regular_group_is_one_run():
    assert runs(range(16_384)) == [[0, 16_384, 1]]
    assert runs(range(3, 16_384, 8)) == [[3, 2_048, 8]]
    assert runs([]) == []
