"""Exact probabilities of counts, as logarithms: those of a fault that comes back 200 times are below any float.

Sources:
    The number of successes in independent trials of unequal chances (Poisson binomial): Y. H. Wang, "On the number of
    successes in independent trials", Statistica Sinica 3 (1993); computed by convolving one trial after the other.
    The hypergeometric tail of a two-by-two table: R. A. Fisher, "The logic of inductive inference", J. R. Stat. Soc. 98
    (1935).
    The correction for many tests: S. Holm, "A simple sequentially rejective multiple test procedure", Scand. J. Stat. 6
    (1979).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

LEVEL: Final = 0.05
"""Chance, over all units tested for one question, that anything is named although only chance is at work."""


def log_tail(chances: Sequence[float], least: int) -> float:
    """Logarithm of the probability of at least so many successes.

    Args:
        chances: The chance of success of each trial.
        least: How many.
    """
    if least <= 0:
        return 0.0
    if least > len(chances):
        return -math.inf
    # The last state takes in all that is beyond it: only sums of positive terms, nothing cancels.
    state = np.full(least + 1, -np.inf)
    state[0] = 0.0
    for chance in chances:
        moved = state[:-1] + (math.log(chance) if chance > 0 else -math.inf)
        kept = math.log1p(-chance) if chance < 1 else -math.inf
        last = state[-1]
        state = state + kept
        state[-1] = last
        state[1:] = np.logaddexp(state[1:], moved)
    return min(float(state[-1]), 0.0)


def log_hypergeometric_tail(marked: int, total: int, draws: int, least: int) -> float:
    """Logarithm of the probability that so many draws without putting back hold at least so many marked ones.

    Args:
        marked: How many of all are marked.
        total: How many there are.
        draws: How many are drawn.
        least: How many marked ones at least.
    """
    first, last = max(least, draws - (total - marked)), min(marked, draws)
    if first > last:
        return -math.inf
    if first > least or first <= 0:
        return 0.0
    terms = [
        _log_choose(marked, k) + _log_choose(total - marked, draws - k) - _log_choose(total, draws)
        for k in range(first, last + 1)
    ]
    top = max(terms)
    return min(top + math.log(math.fsum(math.exp(term - top) for term in terms)), 0.0)


def corrected(log_p: float, left: int, before: float = -math.inf) -> float:
    """Logarithm of a probability as Holm's procedure corrects it.

    Args:
        log_p: The smallest probability among the tests that are left.
        left: How many tests are left.
        before: The corrected one of the step before, than which none may be smaller.
    """
    return min(0.0, max(log_p + math.log(left), before))


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
